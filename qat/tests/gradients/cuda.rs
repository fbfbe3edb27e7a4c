//! Whole networks on a GPU against the same on the CPU. Skipped, and said so, without a GPU; a failure if `REQUIRE_IMPL`
//! names `candle_cuda`.

use std::time::Instant;

use swinq_model::float::tape::Passes;
use swinq_qat::adamw::{AdamW, Update};
use swinq_qat::job::OptimizerKeys;

use super::*;

fn gpu() -> Option<Device> {
    match Device::new_cuda(0) {
        Ok(device) => Some(device),
        Err(error) => {
            let required = std::env::var("REQUIRE_IMPL").unwrap_or_default();
            assert!(!required.split(',').any(|name| name == "candle_cuda"), "candle_cuda: {error}");
            eprintln!("SKIPPED: no GPU: {error}");
            None
        }
    }
}

/// Loss and gradients by name, on the host.
fn step(case: &Case, device: &Device, passes: Passes) -> (f64, BTreeMap<String, Vec<f32>>) {
    let mut student = case.student_on(device);
    student.set_passes(passes);
    let clock = Instant::now();
    let lesson = Teacher::new(&case.teacher, true, device).unwrap().teach(&case.batch).unwrap();
    let logits = student.forward(&case.batch, None, true).unwrap();
    let (parts, gradients) =
        student.backward(&keys(), &logits, &case.batch, Some(&lesson), (1.0, 1.0)).unwrap();
    let host =
        |parameter: &Tensor| values(&gradients.get(parameter).unwrap().to_device(&Device::Cpu).unwrap());
    let all = student.parameters().iter().map(|(name, p)| (name.clone(), host(p))).collect();
    eprintln!("  {passes:?} on {:?}: {:.1} ms", device.location(), 1e3 * clock.elapsed().as_secs_f64());
    (parts.total, all)
}

fn gpu_agrees(what: &str, case: &Case, tolerance: f64) {
    let Some(device) = gpu() else { return };
    let (loss, wanted) = step(case, &Device::Cpu, Passes::Fused);
    for passes in [Passes::Composed, Passes::Fused] {
        let (total, gradients) = step(case, &device, passes);
        let worst = wanted.iter().map(|(name, want)| (distance(&gradients[name], want), name));
        let worst = worst.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap();
        eprintln!("{what}, {passes:?}: loss {total} for {loss}, the farthest {} by {:.1e}", worst.1, worst.0);
        assert!((total / loss - 1.0).abs() < tolerance, "{what}: {total} instead of {loss}");
        assert!(worst.0 < tolerance, "{what}: the gradient of {} is off by {}", worst.1, worst.0);
    }
    assert_eq!(
        step(case, &device, Passes::Fused).1,
        step(case, &device, Passes::Fused).1,
        "{what}: other bits"
    );
}

/// Heads of 32 channels, for which attention has a kernel, in whole windows and in padded ones.
fn wide() -> [SwinConfig; 2] {
    [shifted(), padded()].map(|config| SwinConfig {
        name: format!("{}, wide", config.name),
        embed_dim: 64,
        num_heads: vec![2, 4],
        ..config
    })
}

#[test]
fn gpu_float_training() {
    for config in [shifted(), padded(), odd()].into_iter().chain(wide()) {
        gpu_agrees(&config.name.clone(), &Case::new(config, None, |_| false), ROUNDING);
    }
}

#[test]
fn gpu_quantized_training() {
    for config in [shifted(), padded(), odd()].into_iter().chain(wide()) {
        gpu_agrees(&config.name.clone(), &Case::new(config, Some("default"), |_| false), CODES);
    }
    for config in wide() {
        gpu_agrees("everything", &Case::new(config, Some(EVERYTHING), |_| true), CODES);
    }
    gpu_agrees("w4", &Case::new(padded(), Some(W4), |_| true), CODES);
}

#[test]
fn gpu_updates() {
    let Some(device) = gpu() else { return };
    let values_of = |p: &Tensor| values(&p.to_device(&Device::Cpu).unwrap());
    let update = |device: &Device, passes| {
        let start: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.37).sin()).collect();
        let p = Tensor::new(start.as_slice(), device).unwrap();
        let parameters = BTreeMap::from([("p".to_owned(), p.clone())]);
        let mut adam = AdamW::new(&OptimizerKeys::default(), &parameters).unwrap();
        adam.passes = passes;
        for i in 1..=5 {
            let gradient = ((&p * f64::from(i)).unwrap() - 1.0).unwrap();
            adam.begin();
            adam.update("p", &p, &gradient, Update { lr: 0.1, decay: 0.05, gradient: 0.5 }).unwrap();
        }
        [values_of(&p), values_of(&adam.moments["p"].first), values_of(&adam.moments["p"].second)]
    };
    let want = update(&Device::Cpu, Passes::Fused);
    for (got, want) in update(&device, Passes::Fused).iter().zip(&want) {
        let off = distance(got, want);
        assert!(off < 1e-6, "off by {off}");
    }
}

/// The median of five, in milliseconds.
fn median(device: &Device, mut run: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..6)
        .map(|_| {
            device.synchronize().unwrap();
            let clock = Instant::now();
            run();
            device.synchronize().unwrap();
            1e3 * clock.elapsed().as_secs_f64()
        })
        .skip(1)
        .collect();
    times.sort_by(f64::total_cmp);
    times[2]
}

/// Prints times of forward and backward of Swin-T; run by name, with `--ignored`.
#[test]
#[ignore = "a measurement"]
fn gpu_times() {
    let Some(device) = gpu() else { return };
    println!("forward and backward of Swin-T, 32 images of 224; milliseconds");
    println!("{:<10} {:>22} {:>12} {:>10}", "recipe", "candle's own gradients", "composed", "fused");
    for (recipe, learned) in [(None, false), (Some("default"), false), (Some("default"), true)] {
        let mut case = Case::new(SwinConfig::default(), recipe, |_| learned);
        case.batch = Images::of(&case.float.config, 32, 1).batch(0, 0).unwrap();
        let lesson = Teacher::new(&case.teacher, true, &device).unwrap().teach(&case.batch).unwrap();
        let mut student = case.student_on(&device);
        let reference = Reference::new(&case, student.parameters());
        let plain = median(&device, || drop(reference.gradients(&case, &keys(), &lesson)));
        let [composed, fused] = [Passes::Composed, Passes::Fused].map(|passes| {
            student.set_passes(passes);
            median(&device, || {
                let logits = student.forward(&case.batch, None, true).unwrap();
                student.backward(&keys(), &logits, &case.batch, Some(&lesson), (1.0, 1.0)).unwrap();
            })
        });
        let what = format!("{}{}", recipe.unwrap_or("float"), if learned { ", LSQ" } else { "" });
        println!("{what:<14} {plain:>18.1} {composed:>12.1} {fused:>10.1}");
    }
}
