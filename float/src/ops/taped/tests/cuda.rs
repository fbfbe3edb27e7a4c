//! Every pass by its CUDA kernel against the pass on the host, and times of the passes on the GPU. Without a
//! GPU the tests say SKIPPED, or fail if `REQUIRE_IMPL` names `candle_cuda`.

use std::time::Instant;

use super::*;
use crate::ops::taped::cuda::scales_of_weight;

/// The GPU, if there is one.
fn gpu() -> Option<Device> {
    match Device::new_cuda_with_stream(0) {
        Ok(device) => Some(device),
        Err(error) => {
            let required = std::env::var("REQUIRE_IMPL").unwrap_or_default();
            assert!(!required.split(',').any(|name| name == "candle_cuda"), "candle_cuda: {error}");
            eprintln!("SKIPPED: no GPU: {error}");
            None
        }
    }
}

/// The operation under test.
type Run<'a> = &'a dyn Fn(&Ops, &[Tensor]) -> Result<Tensor>;

/// Result and gradients of `run` on `device`, copied to the host.
fn on_device(device: &Device, compute: Compute, inputs: &[Tensor], run: Run<'_>) -> (Tensor, Vec<Tensor>) {
    let ops = taped(compute);
    let tape = ops.tape.as_ref().unwrap();
    let inputs: Vec<Tensor> = inputs.iter().map(|x| x.to_device(device).unwrap()).collect();
    inputs.iter().for_each(|input| tape.watch(input));
    let out = run(&ops, &inputs).unwrap();
    let seed = weights_of(&out).to_device(device).unwrap();
    let gradients = tape.backward([(out.id(), seed)]).unwrap();
    let home = |x: &Tensor| x.to_device(&Device::Cpu).unwrap();
    let gradients = inputs.iter().map(|input| home(gradients.get(input).expect("a gradient"))).collect();
    (home(&out), gradients)
}

/// The distance of two tensors, relative to the length of the second.
fn distance(got: &Tensor, want: &Tensor) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let (got, want) = (values(got), values(want));
    let off: f64 = got.iter().zip(&want).map(|(g, w)| square(g - w)).sum();
    (off / want.iter().map(|w| square(*w)).sum::<f64>()).sqrt()
}

/// Compares the GPU with the host within `tolerance`; a second run must give the same bits.
fn same(device: &Device, what: &str, inputs: &[Tensor], tolerance: f64, run: Run<'_>) {
    let (want, wanted) = on_tape(inputs, run);
    let (out, gradients) = on_device(device, Compute::Cuda, inputs, run);
    let mut worst = (distance(&out, &want), "the result".to_owned());
    for (i, (got, want)) in gradients.iter().zip(&wanted).enumerate() {
        assert_eq!(got.dims(), want.dims(), "{what}: gradient {i}");
        let off = distance(got, want);
        if off > worst.0 || off.is_nan() {
            worst = (off, format!("gradient {i}"));
        }
    }
    eprintln!("{what}: off by {:.1e} ({})", worst.0, worst.1);
    assert!(worst.0 < tolerance, "{what}: {} is off by {}", worst.1, worst.0);
    let again = on_device(device, Compute::Cuda, inputs, run);
    assert_eq!(values(&again.0), values(&out), "{what}: a second run gives another result");
    for (a, b) in again.1.iter().zip(&gradients) {
        assert_eq!(values(a), values(b), "{what}: a second run gives another gradient");
    }
}

#[test]
fn gpu_rows() {
    let Some(device) = gpu() else { return };
    for (rows, c) in [(1, 5), (33, 7), (700, 96), (300, 768), (40, 3072)] {
        let inputs = [noise(&[rows, c], 1), noise(&[c], 2), noise(&[c], 3)];
        same(&device, &format!("norm {rows} x {c}"), &inputs, 2e-6, &|t, x| t.norm(&x[0], &norm_of(x)));
        let bias = [inputs[0].clone(), inputs[1].clone()];
        same(&device, &format!("bias {rows} x {c}"), &bias, 1e-6, &|t, x| t.add_rows(&x[0], &x[1]));
        same(&device, &format!("gelu {rows} x {c}"), &inputs[..1], 2e-6, &|t, x| t.gelu(&x[0]));
    }
    let long = [noise(&[5000, 40], 1), noise(&[40], 2)];
    same(&device, "bias 5000 x 40", &long, 1e-6, &|t, x| t.add_rows(&x[0], &x[1]));
    for c in [5, 96] {
        let x = [noise(&[3 * 6, c], 6)];
        let shuffle = Gather::new(6, 1, [Some(4), None, Some(0), Some(5), Some(1), Some(3), None, Some(2)]);
        same(&device, "gather", &x, 1e-9, &|t, x| t.gather(&x[0], &shuffle));
        let pairs = Gather::new(6, 2, [Some(5), Some(1), Some(0), None, Some(2), Some(4)]);
        same(&device, "pairs", &x, 1e-9, &|t, x| t.gather(&x[0], &pairs));
    }
    let index: Vec<u32> = (0..49 * 49).map(|i| i * 7 % 169).collect();
    let table =
        |t: &Ops, x: &[Tensor]| relative_bias(t, &x[0], &Tensor::new(index.as_slice(), x[0].device())?, 49);
    same(&device, "table", &[noise(&[169, 3], 1)], 2e-6, &table);
}

/// Tolerance of gradients of scales: most of their terms cancel.
const SCALE_GRADIENTS: f64 = 5e-4;

#[test]
fn gpu_fake_quantization() {
    let Some(device) = gpu() else { return };
    for step in [0.03f32, 0.009] {
        let quantizer = Quantizer::new(step).unwrap();
        let inputs = [noise(&[190, 201], 4), Tensor::new(&[1.0f32], &Device::Cpu).unwrap()];
        let fake = |x: &[Tensor]| FakeActivation { quantizer, learned: Some(learned(&x[1], &[step])) };
        let run = |t: &Ops, x: &[Tensor]| fake_quantize(t, &x[0], &fake(x));
        same(&device, "fake_quantize", &inputs, SCALE_GRADIENTS, &run);
        let (got, want) = (on_device(&device, Compute::Cuda, &inputs, &run).0, on_tape(&inputs, run).0);
        assert_eq!(values(&got), values(&want), "codes");
    }
    let base = [0.01f32, 0.3, 0.02];
    for channels in [1, 3] {
        let ratio = Tensor::ones(channels, DType::F32, &Device::Cpu).unwrap();
        let inputs = [noise(&[3, 2, 50], 4), ratio];
        let run = |t: &Ops, x: &[Tensor]| {
            let scales = base[..channels].to_vec();
            let learned = Some(learned(&x[1], &scales));
            let fake = FakeWeight { scales: WeightScales::Host(scales), largest: 7.0, learned };
            fake_quantize_weight(t, &x[0], &fake, None)
        };
        same(&device, "fake_quantize_weight", &inputs, SCALE_GRADIENTS, &run);
        let (got, want) = (on_device(&device, Compute::Cuda, &inputs, &run).0, on_tape(&inputs, run).0);
        assert_eq!(values(&got), values(&want), "codes of weights");
    }
}

#[test]
fn gpu_columns() {
    let Some(device) = gpu() else { return };
    for (rows, c) in [(70, 7), (3000, 96), (50, 1536)] {
        let step = 0.02f32;
        let factors: Vec<f32> = (0..c).map(|i| 0.5 + (i % 7) as f32 / 7.0).collect();
        let zero_points: Vec<i8> = (0..c).map(|i| (i % 200) as i8).collect();
        let columns = Arc::new(ColumnQuantizers::channels(step, &factors, &zero_points).unwrap());
        let ratio = Tensor::new(&[1.0f32], &Device::Cpu).unwrap();
        let inputs = [noise(&[rows, c], 4), noise(&[c], 5), ratio.clone()];
        let fake = |x: &[Tensor]| FakeChannels {
            quantizer: Quantizer::new(step).unwrap(),
            columns: Arc::clone(&columns),
            resident: Some(resident_columns(&columns, x[0].device()).unwrap()),
            learned: Some(learned(&x[x.len() - 1], &[step])),
        };
        let run = |t: &Ops, x: &[Tensor]| fake_quantize_channels(t, &x[0], &fake(x));
        same(&device, "channels", &[inputs[0].clone(), ratio], SCALE_GRADIENTS, &run);
        let run = |t: &Ops, x: &[Tensor]| hidden(t, &x[0], &x[1], &FakeHidden::Channels(fake(x)));
        same(&device, "hidden, channels", &inputs, 2e-2, &run);
        let run = |t: &Ops, x: &[Tensor]| hidden(t, &x[0], &x[1], &FakeHidden::Off);
        same(&device, "hidden", &inputs[..2], 2e-6, &run);
    }
}

/// Scales computed on the GPU are those of the host.
#[test]
fn gpu_scales_of_weights() {
    let Some(device) = gpu() else { return };
    for (rows, columns) in [(1, 9000), (7, 33), (192, 768)] {
        let w = noise(&[rows, columns], 3);
        let factors = Tensor::stack(&[noise(&[columns], 4), noise(&[columns], 5)], 0).unwrap();
        for factors in [None, Some(&factors)] {
            let folded = factors.map_or_else(|| w.clone(), |f| w.broadcast_mul(&f.get(0).unwrap()).unwrap());
            let most = values(&folded.abs().unwrap().max(1).unwrap());
            let scales: Vec<f32> = most.iter().map(|most| most / 127.0).collect();
            let there = |t: &Tensor| t.to_device(&device).unwrap();
            let factors = factors.map(there);
            let table = scales_of_weight(&there(&w), rows, factors.as_ref(), 127.0).unwrap();
            let recips = scales.iter().map(|s| 1.0 / s);
            let want: Vec<f32> = scales.iter().copied().chain(recips).chain(vec![1.0; rows]).collect();
            assert_eq!(values(&table.to_device(&Device::Cpu).unwrap()), want);
        }
    }
}

/// Products of every compute type, against f64.
#[test]
fn gpu_products() {
    let Some(device) = gpu() else { return };
    let (rows, c, out) = (130, 96, 40);
    let inputs = [noise(&[rows, c], 1), noise(&[out, c], 2), noise(&[out], 3)];
    let plain = |t: &Ops, x: &[Tensor]| linear(t, &x[0], &x[1], Some(&x[2]));
    let want = on_tape(&inputs, plain);
    for (compute_type, tolerance) in [
        (ComputeType::F32, 1e-5),
        (ComputeType::Tf32, 2e-3),
        (ComputeType::F16, 2e-3),
        (ComputeType::Bf16, 1e-2),
    ] {
        let ops = Ops { compute_type, ..taped(Compute::Cuda) };
        let tape = ops.tape.as_ref().unwrap();
        let there: Vec<Tensor> = inputs.iter().map(|x| x.to_device(&device).unwrap()).collect();
        there.iter().for_each(|x| tape.watch(x));
        let y = plain(&ops, &there).unwrap();
        let gradients =
            tape.backward([(y.id(), noise(&[rows, out], 9).to_device(&device).unwrap())]).unwrap();
        let cpu = |t: &Tensor| t.to_device(&Device::Cpu).unwrap();
        close(&format!("{compute_type:?}"), &cpu(&y), &want.0, tolerance);
        for (x, host) in there.iter().zip(&inputs) {
            let [ops, _] = both();
            let tape = ops.tape.as_ref().unwrap();
            inputs.iter().for_each(|x| tape.watch(x));
            let y = plain(&ops, &inputs).unwrap();
            let found = tape.backward([(y.id(), noise(&[rows, out], 9))]).unwrap();
            close(
                &format!("{compute_type:?}, gradient"),
                &cpu(gradients.get(x).unwrap()),
                found.get(host).unwrap(),
                tolerance,
            );
        }
    }
}

/// The largest difference is at most `tolerance` times the largest magnitude.
fn close(what: &str, got: &Tensor, want: &Tensor, tolerance: f64) {
    let (got, want) = (values(got), values(want));
    let largest = want.iter().fold(0f32, |most, x| most.max(x.abs()));
    let off = got.iter().zip(&want).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
    assert!(f64::from(off) <= tolerance * f64::from(largest), "{what}: off by {off} of {largest}");
}

/// Inputs of an attention of `windows` windows, with the learned scales of `kind`.
fn attention_inputs(windows: usize, n: usize, heads: usize, kind: &str) -> Vec<Tensor> {
    let steps = if kind == "float" {
        0
    } else if kind == "u8" {
        3
    } else {
        5
    };
    let mut inputs = vec![noise(&[windows * n, 3 * heads * 32], 1), noise(&[heads, n, n], 2)];
    inputs.extend((0..steps).map(|_| Tensor::new(&[1.0f32], &Device::Cpu).unwrap()));
    inputs
}

fn masks(windows: usize, n: usize) -> Tensor {
    (noise(&[windows, n, n], 5).ge(1.5).unwrap().to_dtype(DType::F32).unwrap() * -100.0).unwrap()
}

#[test]
fn gpu_attention() {
    let Some(device) = gpu() else { return };
    // The last size is too large for the kernels, so candle's operations run.
    for (n, heads) in [(9, 2), (49, 3), (64, 4), (144, 2), (196, 1), (300, 1)] {
        for kind in ["float", "u8", "s8"] {
            for mask in [None, Some(masks(3, n))] {
                let run = |t: &Ops, x: &[Tensor]| {
                    let mask = mask.as_ref().map(|m| m.to_device(x[0].device())).transpose()?;
                    attention(t, &x[0], 0.1768, &x[1], mask.as_ref(), &sites(x, kind))
                };
                // A score near the edge of two codes may round to the other code.
                let tolerance = if kind == "float" { 1e-5 } else { 2e-2 };
                let what = format!("attention of {n} tokens, {kind}, mask {}", mask.is_some());
                same(&device, &what, &attention_inputs(6, n, heads, kind), tolerance, &run);
            }
        }
    }
}

/// Milliseconds of the forward and backward pass of `run` with `compute`.
fn time(device: &Device, compute: Compute, inputs: &[Tensor], run: Run<'_>) -> f64 {
    let inputs: Vec<Tensor> = inputs.iter().map(|x| x.to_device(device).unwrap()).collect();
    let ops = taped(compute);
    let tape = ops.tape.as_ref().unwrap();
    inputs.iter().for_each(|input| tape.watch(input));
    let mut seed = None;
    let mut times = Vec::new();
    for _ in 0..8 {
        device.synchronize().unwrap();
        let clock = Instant::now();
        let out = run(&ops, &inputs).unwrap();
        let seed = seed.get_or_insert_with(|| out.ones_like().unwrap());
        tape.backward([(out.id(), seed.clone())]).unwrap();
        device.synchronize().unwrap();
        times.push(1e3 * clock.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    times[3]
}

/// Prints times; run it by name with `--ignored`.
#[test]
#[ignore = "a measurement"]
fn gpu_times() {
    let Some(device) = gpu() else { return };
    println!("forward and backward, 32 images of 224 in Swin-T; milliseconds");
    println!("{:<28} {:>9} {:>9}", "pass", "candle", "kernels");
    let report = |what: &str, inputs: &[Tensor], run: Run<'_>| {
        let [candle, kernels] = [Compute::Candle, Compute::Cuda].map(|on| time(&device, on, inputs, run));
        println!("{what:<28} {candle:>9.3} {kernels:>9.3}");
    };
    for (stage, (windows, heads)) in [(64, 3), (16, 6), (4, 12), (1, 24)].into_iter().enumerate() {
        let rows = 32 * windows * 49;
        let c = 32 * heads;
        for kind in ["float", "u8"] {
            let run = |t: &Ops, x: &[Tensor]| attention(t, &x[0], 0.1768, &x[1], None, &sites(x, kind));
            report(
                &format!("attention {kind}, stage {stage}"),
                &attention_inputs(32 * windows, 49, heads, kind),
                &run,
            );
        }
        let x = [noise(&[rows, c], 1), noise(&[c], 2), noise(&[c], 3)];
        report(&format!("norm, stage {stage}"), &x, &|t, x| t.norm(&x[0], &norm_of(x)));
        report(&format!("bias, stage {stage}"), &x[..2], &|t, x| t.add_rows(&x[0], &x[1]));
        report(&format!("gelu, stage {stage}"), &x[..1], &|t, x| t.gelu(&x[0]));
        let quantizer = Quantizer::new(0.01).unwrap();
        report(&format!("fake, stage {stage}"), &x[..1], &|t, x| {
            fake_quantize(t, &x[0], &FakeActivation { quantizer, learned: None })
        });
        let index = Gather::new(49 * windows, 1, (0..49 * windows).rev().map(Some));
        report(&format!("gather, stage {stage}"), &x[..1], &|t, x| t.gather(&x[0], &index));
    }
    let index: Vec<u32> = (0..49 * 49).map(|i| i * 7 % 169).collect();
    let index = Tensor::new(index, &device).unwrap();
    report("table, 24 heads", &[noise(&[169, 24], 1)], &|t, x| relative_bias(t, &x[0], &index, 49));
}
