//! Whole networks on a GPU against the same networks on the CPU. Without a GPU the tests say SKIPPED, or fail
//! if `REQUIRE_IMPL` names `candle_cuda`.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use swinq_model::Size;

use swinq_qat::adamw::{AdamW, Moments, Update};
use swinq_qat::job::OptimizerKeys;

use super::*;

/// The GPU, for one test at a time: a module that another thread loads may end the recording of a graph.
struct Gpu {
    device: Device,
    _alone: MutexGuard<'static, ()>,
}

fn gpu() -> Option<Gpu> {
    static ONE_TEST: Mutex<()> = Mutex::new(());
    let alone = ONE_TEST.lock().unwrap_or_else(PoisonError::into_inner);
    match Device::new_cuda_with_stream(0) {
        Ok(device) => Some(Gpu { device, _alone: alone }),
        Err(error) => {
            let required = std::env::var("REQUIRE_IMPL").unwrap_or_default();
            assert!(!required.split(',').any(|name| name == "candle_cuda"), "candle_cuda: {error}");
            eprintln!("SKIPPED: no GPU: {error}");
            None
        }
    }
}

/// Gradients by parameter name.
type Gradients = BTreeMap<String, Vec<f32>>;

/// Loss and gradients of an iteration on `device`; the gradients are copied to the host.
fn iteration(case: &Case, device: &Device, compute: Compute) -> (f64, Gradients) {
    let mut student = case.student_on(device, compute);
    let teacher_output = case.taught(device);
    let outputs = student.forward(&case.batch, None, true).unwrap();
    let (parts, gradients) = student
        .backward(&case.keys(), &outputs, (&case.batch, None), Some(&teacher_output), (1.0, 1.0))
        .unwrap();
    let host =
        |parameter: &Tensor| values(&gradients.get(parameter).unwrap().to_device(&Device::Cpu).unwrap());
    let all = student.parameters().iter().map(|(name, p)| (name.clone(), host(p))).collect();
    (parts.total, all)
}

/// The largest distance of an iteration's loss and gradients from `want`, with its name.
fn farthest_from(want: &(f64, Gradients), got: &(f64, Gradients)) -> (f64, String) {
    let mut errors = Errors::of_loss(got.0, want.0);
    want.1.iter().for_each(|(name, want)| errors.add(name, relative_distance(&got.1[name], want)));
    errors.farthest()
}

/// Tolerance of the best of [`BATCHES`] batches on the GPU against the CPU, with quantization. Products
/// differ in their last bits there, so that a network with many sites has other codes in every batch.
const CODES: f64 = 5e-2;

/// Compares losses and gradients of several batches: candle's operations on the GPU with the CPU, and our
/// kernels on the GPU with candle's operations there, whose products have the same bits. With quantization,
/// one code that differs may change a whole gradient ([`agree`]), so that not every batch can be compared.
fn gpu_agrees(what: &str, mut case: Case) {
    let Some(gpu) = gpu() else { return };
    let (mut composed_off, mut fused_off) = (Vec::new(), Vec::new());
    for batch in 0..BATCHES {
        case.batch = case.images().batch(0, batch).unwrap();
        let cpu = iteration(&case, &Device::Cpu, Compute::host().unwrap());
        let [composed, fused] =
            [Compute::Candle, Compute::Cuda].map(|compute| iteration(&case, &gpu.device, compute));
        for (kind, want, got, off) in
            [("composed", &cpu, &composed, &mut composed_off), ("fused", &composed, &fused, &mut fused_off)]
        {
            let (far, of) = farthest_from(want, got);
            eprintln!("{what}, batch {batch}, {kind}: the farthest is {of} by {far:.1e}");
            let of_loss = (got.0 / want.0 - 1.0).abs();
            assert!(of_loss < NOISE, "{what}, batch {batch}, {kind}: the loss is off by {of_loss}");
            off.push(far);
        }
    }
    let least = |off: &[f64]| off.iter().copied().fold(f64::INFINITY, f64::min);
    if case.quantized.is_some() {
        assert!(least(&composed_off) < CODES, "{what}, composed: {composed_off:?}");
        assert!(least(&fused_off) < ROUNDING, "{what}, fused: {fused_off:?}");
        assert!(super::median(fused_off.clone()) < NOISE, "{what}, fused: {fused_off:?}");
    } else {
        let all = composed_off.iter().chain(&fused_off);
        assert!(all.clone().all(|off| *off < ROUNDING), "{what}: {composed_off:?}, {fused_off:?}");
    }
    let [once, again] = [(); 2].map(|()| iteration(&case, &gpu.device, Compute::Cuda).1);
    assert_eq!(once, again, "{what}: a second run gives other bits");
}

/// Configurations with heads of 32 channels, which have a fused attention kernel: without and with padding.
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
        gpu_agrees(&config.name.clone(), Case::new(config, None, |_| false));
    }
}

#[test]
fn gpu_quantized_training() {
    for config in [shifted(), padded(), odd()].into_iter().chain(wide()) {
        gpu_agrees(&config.name.clone(), Case::new(config, Some("default"), |_| false));
    }
    for config in wide() {
        gpu_agrees("everything", Case::new(config, Some(EVERYTHING), |_| true));
    }
    gpu_agrees("w4", Case::new(padded(), Some(W4), |_| true));
}

#[test]
fn gpu_training_of_backbones() {
    for (first, size) in [(true, Size::new(32, 32)), (false, Size::new(37, 22))] {
        let case = |recipe| Case::new(backbone(first), recipe, |site| site.is_weight()).with_images_of(size);
        gpu_agrees("a backbone in float", case(None));
        gpu_agrees("a backbone", case(Some("default")));
    }
}

#[test]
fn gpu_updates() {
    let Some(Gpu { device, .. }) = &gpu() else { return };
    let values_of = |p: &Tensor| values(&p.to_device(&Device::Cpu).unwrap());
    let update = |device: &Device, compute| {
        let start: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.37).sin()).collect();
        let p = Tensor::new(start.as_slice(), device).unwrap();
        let parameters = BTreeMap::from([("p".to_owned(), p.clone())]);
        let mut adam = AdamW::new(&OptimizerKeys::default(), Moments::zeros(&parameters).unwrap(), compute);
        for i in 1..=5 {
            let gradient = ((&p * f64::from(i)).unwrap() - 1.0).unwrap();
            adam.begin();
            adam.update("p", &p, &gradient, Update { lr: 0.1, decay: 0.05, gradient: 0.5 }).unwrap();
        }
        [values_of(&p), values_of(&adam.moments["p"].first), values_of(&adam.moments["p"].second)]
    };
    let want = update(&Device::Cpu, Compute::host().unwrap());
    for (got, want) in update(device, Compute::Cuda).iter().zip(&want) {
        let off = relative_distance(got, want);
        assert!(off < 1e-6, "off by {off}");
    }
}

/// Iterations without the host, launched as graphs from the second one on, give the losses of iterations in
/// which the host takes part.
#[test]
fn gpu_iterations() {
    let Some(Gpu { device, .. }) = &gpu() else { return };
    let more =
        [("accumulate", "2"), ("optimizer.ema", "0.9"), ("recompute", "true"), ("optimizer.lr", "1e-3")];
    let mixed = [("mixing.mixup", "0.8"), ("loss.smoothing", "0.1"), ("optimizer.clip_norm", "0.1")];
    for keys in [&[][..], &more, &mixed] {
        for (recipe, tolerance) in [(None, 1e-4), (Some("default"), 2e-2)] {
            let case = Case::new(shifted(), recipe, |_| false);
            let (want, by_host) = losses(&case, device, Compute::Candle, keys);
            let (got, launches) = losses(&case, device, Compute::Cuda, keys);
            assert!(
                by_host.is_none() && launches.as_ref().is_some_and(|l| l.contains("graphs")),
                "{recipe:?}, {keys:?}: {launches:?}"
            );
            same_losses(&format!("{keys:?}"), &got, &want, tolerance);
        }
    }
}

/// Learned scales of activations are read by the host, and the training says so.
#[test]
fn gpu_iterations_with_learned_scales() {
    let Some(Gpu { device, .. }) = &gpu() else { return };
    let case = Case::new(shifted(), Some("default"), |_| true);
    let keys = [("quantization.activation_scales", "learned"), ("quantization.weight_scales", "learned")];
    let (want, _) = losses(&case, device, Compute::Candle, &keys);
    let (got, launches) = losses(&case, device, Compute::Cuda, &keys);
    assert!(launches.as_ref().is_some_and(|l| l.contains("is learned")), "{launches:?}");
    same_losses("learned scales", &got, &want, 2e-2);
}

/// The median time of five runs, in milliseconds.
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

/// Prints times of forward and backward pass for Swin-T and for the sample's architecture. Run it by name
/// with `--ignored`.
#[test]
#[ignore = "a measurement"]
fn gpu_times() {
    let Some(Gpu { device, .. }) = &gpu() else { return };
    let sample = SwinConfig {
        image_size: Size::square(56),
        embed_dim: 64,
        depths: vec![2, 4],
        num_heads: vec![2, 4],
        ..SwinConfig::default()
    };
    for (name, config, images) in [("Swin-T", SwinConfig::default(), 32), ("the sample's shape", sample, 128)]
    {
        println!("forward and backward of {name}, {images} images of {}; milliseconds", config.image_size);
        println!("{:<14} {:>22} {:>12} {:>10}", "recipe", "candle's own gradients", "composed", "fused");
        for (recipe, learned) in [(None, false), (Some("default"), false), (Some("default"), true)] {
            let [plain, composed, fused] = times(device, &config, images, recipe, learned);
            let what = format!("{}{}", recipe.unwrap_or("float"), if learned { ", LSQ" } else { "" });
            println!("{what:<14} {plain:>22.1} {composed:>12.1} {fused:>10.1}");
        }
    }
}

/// Times with candle's own gradients, composed passes and fused passes.
fn times(
    device: &Device,
    config: &SwinConfig,
    images: usize,
    recipe: Option<&str>,
    learned: bool,
) -> [f64; 3] {
    let mut case = Case::new(config.clone(), recipe, |_| learned);
    case.batch = Images::of(config, images, 1).batch(0, 0).unwrap();
    let teacher_output = case.taught(device);
    let reference = Reference::new(&case, case.student_on(device, Compute::Candle).parameters());
    let plain = median(device, || drop(reference.gradients(&case, &keys(), &teacher_output)));
    let [composed, fused] = [Compute::Candle, Compute::Cuda].map(|compute| {
        let mut student = case.student_on(device, compute);
        median(device, || {
            let logits = student.forward(&case.batch, None, true).unwrap();
            student
                .backward(&keys(), &logits, (&case.batch, None), Some(&teacher_output), (1.0, 1.0))
                .unwrap();
        })
    });
    [plain, composed, fused]
}
