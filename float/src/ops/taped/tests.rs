//! Gradients of the taped operations against candle's gradients of candle's operations, and against
//! finite differences.

#[cfg(feature = "cuda")]
mod cuda;

use std::sync::Arc;

use candle_core::{Device, Result, Tensor, Var};
use swinq_numerics::{ColumnQuantizers, Quantizer};

use super::*;
use crate::ops::tests::{noise, values};
use crate::ops::{Norm, candle};
use crate::tape::Tape;
use crate::weights::PositionMlp;

/// The weights of the loss whose gradients are compared: the sum of the result times these weights.
fn weights_of(out: &Tensor) -> Tensor {
    noise(out.dims(), 99)
}

/// The operations of `compute` on an empty tape.
fn taped(compute: Compute) -> Ops {
    Ops { tape: Some(Tape::default()), ..Ops::from(compute) }
}

/// The operations on the host and in candle, as on devices without kernels, each on an empty tape.
fn both() -> [Ops; 2] {
    [Compute::host().unwrap(), Compute::Candle].map(taped)
}

/// Result and gradients of `run` on the host.
fn on_tape(inputs: &[Tensor], run: impl Fn(&Ops, &[Tensor]) -> Result<Tensor>) -> (Tensor, Vec<Tensor>) {
    let [host, _] = both();
    on_this_tape(&host, inputs, run)
}

fn on_this_tape(
    ops: &Ops,
    inputs: &[Tensor],
    run: impl Fn(&Ops, &[Tensor]) -> Result<Tensor>,
) -> (Tensor, Vec<Tensor>) {
    let tape = ops.tape.as_ref().unwrap();
    inputs.iter().for_each(|input| tape.watch(input));
    let out = run(ops, inputs).unwrap();
    let gradients = tape.backward([(out.id(), weights_of(&out))]).unwrap();
    assert!(tape.is_empty());
    (out, inputs.iter().map(|input| gradients.get(input).expect("a gradient").clone()).collect())
}

/// Result and gradients of `run`, differentiated by candle.
fn by_candle(inputs: &[Tensor], run: impl Fn(&[Tensor]) -> Result<Tensor>) -> (Tensor, Vec<Tensor>) {
    let vars: Vec<Var> = inputs.iter().map(|input| Var::from_tensor(input).unwrap()).collect();
    let out = run(&vars.iter().map(|var| var.as_tensor().clone()).collect::<Vec<_>>()).unwrap();
    let loss = (&out * weights_of(&out)).unwrap().sum_all().unwrap();
    let gradients = loss.backward().unwrap();
    (out, vars.iter().map(|var| gradients.get(var).expect("a gradient").clone()).collect())
}

fn close(what: &str, got: &Tensor, want: &Tensor, tolerance: f32) {
    assert_eq!(got.dims(), want.dims(), "{what}");
    let (got, want) = (values(got), values(want));
    let largest = want.iter().fold(0f32, |max, v| max.max(v.abs()));
    assert!(largest > 0.0, "{what}: all values are zero, so nothing is compared");
    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
        assert!((g - w).abs() <= tolerance * largest, "{what}: {g} instead of {w} at flat index {i}");
    }
}

fn agree(
    what: &str,
    inputs: &[Tensor],
    taped: impl Fn(&Ops, &[Tensor]) -> Result<Tensor>,
    plain: impl Fn(&[Tensor]) -> Result<Tensor>,
) {
    let (want, wanted) = by_candle(inputs, plain);
    for ops in both() {
        let (out, gradients) = on_this_tape(&ops, inputs, &taped);
        let what = format!("{what}, {:?}", ops.compute);
        close(&what, &out, &want, 2e-6);
        for (i, (gradient, wanted)) in gradients.iter().zip(&wanted).enumerate() {
            // Most terms of the gradient of a scale cancel.
            let tolerance = if gradient.elem_count() <= 3 { 5e-4 } else { 1e-5 };
            close(&format!("{what}, gradient {i}"), gradient, wanted, tolerance);
        }
    }
}

/// Compares the gradients of a smooth operation with a directional derivative by central differences.
fn differences(what: &str, inputs: &[Tensor], run: impl Fn(&Ops, &[Tensor]) -> Result<Tensor>) {
    let (out, gradients) = on_tape(inputs, &run);
    let weights = weights_of(&out);
    let loss = |step: f64| {
        let moved: Vec<Tensor> = inputs
            .iter()
            .enumerate()
            .map(|(i, x)| (x + (noise(x.dims(), 50 + i as u64) * step).unwrap()).unwrap())
            .collect();
        let out = run(&crate::ops::tests::host(), &moved).unwrap();
        values(&out).iter().zip(values(&weights)).map(|(o, w)| f64::from(*o) * f64::from(w)).sum::<f64>()
    };
    let step = 3e-3;
    let numeric = (loss(step) - loss(-step)) / (2.0 * step);
    let along = |(i, g): (usize, &Tensor)| {
        let direction = values(&noise(inputs[i].dims(), 50 + i as u64));
        values(g).iter().zip(direction).map(|(g, d)| f64::from(*g) * f64::from(d)).sum::<f64>()
    };
    let analytic: f64 = gradients.iter().enumerate().map(along).sum();
    let tolerance = 2e-3 * analytic.abs().max(1.0);
    assert!((numeric - analytic).abs() < tolerance, "{what}: {analytic}, by differences {numeric}");
}

fn norm_of(inputs: &[Tensor]) -> Norm {
    Norm { weight: inputs[1].clone(), bias: inputs[2].clone(), eps: 1e-5 }
}

#[test]
fn layer_norm() {
    for (rows, c) in [(1, 5), (3, 7), (10, 16), (700, 33), (300, 128)] {
        let inputs = [noise(&[rows, c], 1), noise(&[c], 2), noise(&[c], 3)];
        let taped = |t: &Ops, x: &[Tensor]| t.norm(&x[0], &norm_of(x));
        agree("norm", &inputs, taped, |x| candle::norm(&x[0], &norm_of(x)));
        differences("norm", &inputs, taped);
    }
}

#[test]
fn rows_and_gathers() {
    let (images, source, c) = (3, 6, 5);
    let x = [noise(&[images * source, c], 6)];
    let shuffle = Gather::new(source, 1, [Some(4), None, Some(0), Some(5), Some(1), Some(3), None, Some(2)]);
    let with_norm = [noise(&[images * source, c], 6), noise(&[c], 2), noise(&[c], 3)];
    let plain = |x: &[Tensor]| candle::gather(&candle::norm(&x[0], &norm_of(x))?, &shuffle);
    agree("norm_then_gather", &with_norm, |t, x| t.norm_then_gather(&x[0], &norm_of(x), &shuffle), plain);
    agree("gather", &x, |t, x| t.gather(&x[0], &shuffle), |x| candle::gather(&x[0], &shuffle));
    let pairs = Gather::new(source, 2, [Some(5), Some(1), Some(0), None, Some(2), Some(4)]);
    agree("pairs", &x, |t, x| t.gather(&x[0], &pairs), |x| candle::gather(&x[0], &pairs));
    agree("mean", &x, |t, x| t.mean_rows(&x[0], 3), |x| Compute::Candle.mean_rows(&x[0], 3));
    agree("gelu", &x, |t, x| t.gelu(&x[0]), |x| x[0].gelu_erf());
    let two = [noise(&[18, 5], 7), noise(&[18, 5], 8)];
    agree("add", &two, |t, x| t.add(&x[0], &x[1]), |x| &x[0] + &x[1]);
    let table = [noise(&[18, 5], 7), noise(&[1, 6, 5], 8)];
    let plain = |x: &[Tensor]| x[0].reshape((3, 6, 5))?.broadcast_add(&x[1])?.reshape((18, 5));
    agree("position", &table, |t, x| t.add_rows(&x[0], &x[1]), plain);
    let factors = Tensor::new(&[0.0f32, 1.25, 2.0], &Device::Cpu).unwrap();
    let plain = |x: &[Tensor]| x[0].reshape((3, 30))?.broadcast_mul(&factors.unsqueeze(1)?)?.reshape((18, 5));
    agree("images", &x, |t, x| scale_images(t, &x[0], &factors), plain);
}

#[test]
fn a_tensor_used_twice_gets_both_gradients() {
    let x = [noise(&[4, 5], 6)];
    let taped = |t: &Ops, x: &[Tensor]| t.add(&t.gelu(&x[0])?, &x[0]);
    agree("x + gelu(x)", &x, taped, |x| x[0].gelu_erf()? + &x[0]);
    differences("x + gelu(x)", &x, taped);
}

#[test]
fn products() {
    for (rows, k, n) in [(1, 3, 2), (65, 48, 33)] {
        let inputs = [noise(&[rows, k], 1), noise(&[n, k], 2), noise(&[n], 3)];
        let taped = |t: &Ops, x: &[Tensor]| linear(t, &x[0], &x[1], Some(&x[2]));
        agree("linear", &inputs, taped, |x| x[0].matmul(&x[1].t()?)?.broadcast_add(&x[2]));
        differences("linear", &inputs, taped);
    }
    let inputs = [noise(&[5, 12], 1), noise(&[4, 3, 2, 2], 2)];
    let plain = |x: &[Tensor]| x[0].matmul(&x[1].flatten_from(1)?.t()?);
    agree("patches", &inputs, |t, x| linear(t, &x[0], &x[1], None), plain);
}

/// Rounds small values, ties to even, with a gradient of 1.
fn round_through(x: &Tensor) -> Result<Tensor> {
    let rounded = ((x.detach() + 12_582_912.0)? - 12_582_912.0)?;
    x + (rounded - x.detach())?
}

/// Fake quantization with a learned scale, composed of candle's operations; `s` carries a gradient.
fn lsq(x: &Tensor, s: &Tensor, (low, high): (f64, f64)) -> Result<Tensor> {
    // The number contract multiplies by the rounded reciprocal, but the gradient is the gradient of a
    // division.
    let recip = s.detach().recip()?;
    let scaled = (x.broadcast_mul(&recip)? + (x.broadcast_div(s)? - x.broadcast_div(s)?.detach())?)?;
    let scaled = (&scaled - x.broadcast_mul(&recip)?)?.broadcast_add(&x.detach().broadcast_mul(&recip)?)?;
    round_through(&scaled.clamp(low, high)?)?.broadcast_mul(s)
}

fn learned(ratio: &Tensor, base: &[f32]) -> LearnedScale {
    LearnedScale { ratio: ratio.clone(), base: base.to_vec(), gradient_scale: 0.25 }
}

/// Multiplies the gradient by `factor` and leaves the value unchanged.
fn scale_gradient(x: &Tensor, factor: f64) -> Result<Tensor> {
    (x * factor)? + (x.detach() * (1.0 - factor))?
}

#[test]
fn fake_quantization() {
    for step in [0.03f32, 0.009] {
        let inputs = [noise(&[90, 200], 4), Tensor::new(&[1.0f32], &Device::Cpu).unwrap()];
        let quantizer = Quantizer::new(step).unwrap();
        let plain =
            |x: &[Tensor]| lsq(&x[0], &(scale_gradient(&x[1], 0.25)? * f64::from(step))?, (-128.0, 127.0));
        let taped = |t: &Ops, x: &[Tensor]| {
            fake_quantize(t, &x[0], &FakeActivation { quantizer, learned: Some(learned(&x[1], &[step])) })
        };
        agree("fake_quantize", &inputs, taped, plain);
        let (out, _) = on_tape(&inputs[..1], |t, x| {
            fake_quantize(t, &x[0], &FakeActivation { quantizer, learned: None })
        });
        let codes = values(&inputs[0]).into_iter().map(|x| quantizer.fake(x));
        assert!(values(&out).into_iter().zip(codes).all(|(a, b)| a == b));
    }
}

#[test]
fn fake_quantization_of_channels() {
    let inputs = [noise(&[90, 5], 4), Tensor::new(&[1.0f32], &Device::Cpu).unwrap()];
    let (step, factors, zero_points) = (0.01f32, [0.5f32, 1.0, 2.0, 1.3, 0.7], [0i8, -100, 127, -128, 3]);
    let columns = ColumnQuantizers::channels(step, &factors, &zero_points).unwrap();
    let vector = |values: Vec<f32>| Tensor::new(values, &Device::Cpu);
    let plain = |x: &[Tensor]| {
        let scales =
            (scale_gradient(&x[1], 0.25)? * f64::from(step))?.broadcast_mul(&vector(factors.to_vec())?)?;
        let z = vector(zero_points.map(f32::from).to_vec())?;
        // Rounding and clamping of `x / s + z`, minus `z`.
        let scaled = x[0].broadcast_div(&scales)?.broadcast_add(&z)?;
        round_through(&scaled.clamp(-128f64, 127f64)?)?.broadcast_sub(&z)?.broadcast_mul(&scales)
    };
    let quantizer = Quantizer::new(step).unwrap();
    let fake =
        |learned| FakeChannels { quantizer, columns: Arc::new(columns.clone()), resident: None, learned };
    let taped =
        |t: &Ops, x: &[Tensor]| fake_quantize_channels(t, &x[0], &fake(Some(learned(&x[1], &[step]))));
    agree("fake_quantize_channels", &inputs, taped, plain);
    let (out, _) = on_tape(&inputs[..1], |t, x| fake_quantize_channels(t, &x[0], &fake(None)));
    let codes = values(&inputs[0]).into_iter().enumerate().map(|(i, x)| columns.fake(i % 5, x));
    assert!(values(&out).into_iter().zip(codes).all(|(a, b)| a == b));
}

/// Factors of the columns are multiplied before fake quantization and divided out behind it.
#[test]
fn fake_quantization_of_weights_with_factors() {
    let factors = Tensor::new(&[[0.5f32, 2.0, 1.5], [2.0, 0.5, 1.0 / 1.5]], &Device::Cpu).unwrap();
    let w = [noise(&[4, 3], 4)];
    let fake =
        FakeWeight { scales: WeightScales::Host(vec![0.02, 0.3, 0.1, 0.05]), largest: 7.0, learned: None };
    let run = |t: &Ops, x: &[Tensor]| fake_quantize_weight(t, &x[0], &fake, Some(&factors));
    let (out, gradients) = on_tape(&w, run);
    let (f, inverse) = (factors.get(0).unwrap(), factors.get(1).unwrap());
    let folded = [w[0].broadcast_mul(&f).unwrap()];
    let (plain, passed) = on_tape(&folded, |t, x| fake_quantize_weight(t, &x[0], &fake, None));
    assert_eq!(values(&out), values(&plain.broadcast_mul(&inverse).unwrap()));
    let inside: Vec<f32> = values(&passed[0]).iter().map(|g| f32::from(u8::from(*g != 0.0))).collect();
    assert!(inside.contains(&0.0) && inside.contains(&1.0));
    for (got, inside) in values(&gradients[0]).iter().zip(&inside) {
        assert_eq!(*got != 0.0, *inside != 0.0);
    }
}

/// The hidden layer as one operation is bias, GELU and fake quantization.
#[test]
fn hidden_layers() {
    let inputs = [noise(&[9, 5], 4), noise(&[5], 2)];
    let quantizer = Quantizer::new(0.03).unwrap();
    let fake = FakeActivation { quantizer, learned: None };
    let whole = |t: &Ops, x: &[Tensor]| hidden(t, &x[0], &x[1], &FakeHidden::Tensor(fake.clone()));
    let parts = |t: &Ops, x: &[Tensor]| fake_quantize(t, &t.gelu(&t.add_rows(&x[0], &x[1])?)?, &fake);
    let (got, want) = (on_tape(&inputs, whole), on_tape(&inputs, parts));
    assert_eq!(values(&got.0), values(&want.0));
    for (got, want) in got.1.iter().zip(&want.1) {
        assert_eq!(values(got), values(want));
    }
}

#[test]
fn columns_times_constants() {
    let factors = noise(&[7], 3);
    let inputs = [noise(&[12, 7], 4)];
    let plain = |x: &[Tensor]| x[0].broadcast_mul(&factors);
    agree("scale_columns", &inputs, |t, x| scale_columns(t, &x[0], &factors), plain);
}

#[test]
fn fake_quantization_of_weights() {
    let base = [0.01f32, 0.3, 0.02];
    for channels in [1, 3] {
        let ratio = Tensor::ones(channels, candle_core::DType::F32, &Device::Cpu).unwrap();
        let inputs = [noise(&[3, 2, 50], 4), ratio];
        let plain = |x: &[Tensor]| {
            let base = Tensor::new(&base[..channels], &Device::Cpu)?;
            let s = (scale_gradient(&x[1], 0.25)? * base)?.unsqueeze(1)?;
            lsq(&x[0].reshape((channels, ()))?, &s, (-7.0, 7.0))?.reshape((3, 2, 50))
        };
        let taped = |t: &Ops, x: &[Tensor]| {
            let scales = base[..channels].to_vec();
            let learned = Some(learned(&x[1], &scales));
            let fake = FakeWeight { scales: WeightScales::Host(scales), largest: 7.0, learned };
            fake_quantize_weight(t, &x[0], &fake, None)
        };
        agree("fake_quantize_weight", &inputs, taped, plain);
    }
}

/// The largest weight, which defines the scale, keeps its gradient however the scale's reciprocal is rounded.
#[test]
fn the_end_of_the_range_is_inside() {
    for (amax, largest) in (1..200).flat_map(|i| [(0.037 * i as f32, 127.0), (0.037 * i as f32, 7.0)]) {
        let w = Tensor::new(&[amax, -amax, 0.5 * amax, 1.0001 * amax, -2.0 * amax], &Device::Cpu).unwrap();
        for ops in both() {
            let tape = ops.tape.as_ref().unwrap();
            tape.watch(&w);
            let scales = WeightScales::Host(vec![amax / largest]);
            let fake = FakeWeight { scales, largest, learned: None };
            let out = fake_quantize_weight(&ops, &w, &fake, None).unwrap();
            let gradients = tape.backward([(out.id(), out.ones_like().unwrap())]).unwrap();
            assert_eq!(values(gradients.get(&w).unwrap()), [1.0, 1.0, 1.0, 0.0, 0.0], "{amax} / {largest}");
        }
    }
}

/// Attention composed of candle's operations, with `lsq` and straight-through rounding at its sites.
fn attention_by_candle(
    x: &[Tensor],
    heads: usize,
    n: usize,
    scale: f64,
    mask: Option<&Tensor>,
    kind: &str,
) -> Result<Tensor> {
    let parts = candle::split_heads(&x[0], heads, n)?;
    let site = |part: &Tensor, i: usize| match kind {
        "float" => Ok(part.clone()),
        _ => lsq(part, &(scale_gradient(&x[2 + i], 0.25)? * 0.02)?, (-128.0, 127.0)),
    };
    let [q, k, v] = [0, 1, 2].map(|i| site(&parts.get(i).unwrap().contiguous().unwrap(), i).unwrap());
    let scores = candle::scores(&q, &k)?;
    let scores = if kind == "s8" {
        lsq(&scores, &(scale_gradient(&x[5], 0.25)? * 0.05)?, (-128.0, 127.0))?
    } else {
        scores
    };
    let logits = candle::logits(&scores, &[scale as f32], &x[1], mask)?;
    let mixed = match kind {
        "u8" => {
            let below = logits.broadcast_sub(&logits.max_keepdim(D::Minus1)?.detach())?;
            let codes = round_through(&(below.exp()? * 255.0)?)?;
            codes.broadcast_div(&codes.sum_keepdim(D::Minus1)?)?.matmul(&v)?
        }
        "s8" => {
            let probs = candle::softmax(&logits)?;
            lsq(&probs, &(scale_gradient(&x[6], 0.25)? * 0.004)?, (-128.0, 127.0))?.matmul(&v)?
        }
        _ => candle::attend(&logits, &v)?,
    };
    candle::merge_heads(&mixed)
}

/// The sites of `kind`, with learned scales `x[2..]`.
fn sites(x: &[Tensor], kind: &str) -> AttentionSites {
    let fake = |i: usize, step: f32| FakeActivation {
        quantizer: Quantizer::new(step).unwrap(),
        learned: Some(learned(&x[2 + i], &[step])),
    };
    match kind {
        "float" => AttentionSites::FLOAT,
        _ => AttentionSites {
            q: Some(fake(0, 0.02)),
            k: Some(fake(1, 0.02)),
            v: Some(fake(2, 0.02)),
            scores: (kind == "s8").then(|| fake(3, 0.05)),
            probs: if kind == "s8" { FakeProbs::S8(fake(4, 0.004)) } else { FakeProbs::U8 },
        },
    }
}

#[test]
fn attention_of_every_kind() {
    let (windows, n, heads, d) = (6, 9, 2, 5);
    let one = || Tensor::new(&[1.0f32], &Device::Cpu).unwrap();
    let mask = (noise(&[3, n, n], 5).ge(1.5).unwrap().to_dtype(DType::F32).unwrap() * -100.0).unwrap();
    for (kind, scales) in [("float", 0), ("u8", 3), ("s8", 5)] {
        for mask in [None, Some(&mask)] {
            let mut inputs = vec![noise(&[windows * n, 3 * heads * d], 1), noise(&[heads, n, n], 2)];
            inputs.extend((0..scales).map(|_| one()));
            let taped = |t: &Ops, x: &[Tensor]| attention(t, &x[0], 0.4, &x[1], mask, &sites(x, kind));
            agree(kind, &inputs, taped, |x| attention_by_candle(x, heads, n, 0.4, mask, kind));
            if kind == "float" {
                differences(kind, &inputs, taped);
            }
        }
    }
}

#[test]
fn relative_bias_tables() {
    let index = Tensor::new(&[0u32, 1, 2, 1, 3, 0, 2, 2, 4], &Device::Cpu).unwrap();
    let table = [noise(&[5, 2], 1)];
    let plain = |x: &[Tensor]| x[0].index_select(&index, 0)?.t()?.contiguous()?.reshape((2, 3, 3));
    agree("bias", &table, |t, x| relative_bias(t, &x[0], &index, 3), plain);
}

/// Normalisation, sites and factors of queries and keys, differentiated by candle; learned scales are
/// `x[2..]`.
fn cosine_by_candle(x: &[Tensor], heads: usize, fake: bool) -> Result<Tensor> {
    let (rows, width) = x[0].dims2()?;
    let (c, d) = (width / 3, width / 3 / heads);
    let part = |which: usize| {
        let part = x[0].narrow(1, which * c, c)?.contiguous()?.reshape((rows, heads, d))?;
        let unit = candle::normalize(&part)?;
        match fake {
            true => lsq(&unit, &(scale_gradient(&x[2 + which], 0.25)? * 0.006)?, (-128.0, 127.0)),
            false => Ok(unit),
        }
    };
    let q = part(0)?.broadcast_mul(&candle::clamped_exp(&x[1])?.reshape((heads, 1))?)?;
    Tensor::cat(&[q.reshape((rows, c))?, part(1)?.reshape((rows, c))?, x[0].narrow(1, 2 * c, c)?], 1)
}

#[test]
fn cosine_attention_is_prepared() {
    for (rows, heads, d) in [(1, 1, 3), (7, 2, 5), (600, 3, 16)] {
        // The last factor is clamped, so its logarithm has no gradient.
        let logarithms: Vec<f32> =
            (0..heads).map(|h| if h + 1 == heads && h > 0 { 5.0 } else { 0.7 }).collect();
        let logarithms = Tensor::from_vec(logarithms, (heads, 1, 1), &Device::Cpu).unwrap();
        let mut inputs = vec![noise(&[rows, 3 * heads * d], 1), logarithms];
        let plain = |t: &Ops, x: &[Tensor]| cosine(t, &x[0], &x[1], [&None, &None]);
        agree("cosine", &inputs, plain, |x| cosine_by_candle(x, heads, false));
        differences("cosine", &inputs, plain);
        inputs.extend((0..2).map(|_| Tensor::new(&[1.0f32], &Device::Cpu).unwrap()));
        let faked = |t: &Ops, x: &[Tensor]| {
            let site = |i: usize| FakeActivation {
                quantizer: Quantizer::new(0.006).unwrap(),
                learned: Some(learned(&x[2 + i], &[0.006])),
            };
            cosine(t, &x[0], &x[1], [&Some(site(0)), &Some(site(1))])
        };
        if rows > 1 {
            agree("cosine with sites", &inputs, faked, |x| cosine_by_candle(x, heads, true));
        }
    }
}

#[test]
fn vectors_of_zeros_get_no_gradient() {
    let logarithms = Tensor::zeros((1, 1, 1), DType::F32, &Device::Cpu).unwrap();
    for ops in both() {
        let qkv = Tensor::new(&[[0f32, 0.0, 3.0, 4.0, 1.0, 2.0]], &Device::Cpu).unwrap();
        let (out, gradients) =
            on_this_tape(&ops, &[qkv], |t, x| cosine(t, &x[0], &logarithms, [&None, &None]));
        let out = values(&out);
        assert!(out[..2] == [0.0; 2] && (out[2] - 0.6).abs() < 1e-6 && out[4..] == [1.0, 2.0], "{out:?}");
        let gradient = values(&gradients[0]);
        assert!(gradient[..2] == [0.0; 2] && gradient[2] != 0.0, "{gradient:?}");
    }
}

#[test]
fn position_tables() {
    let coordinates = noise(&[9, 2], 1);
    let inputs = [noise(&[12, 2], 2), noise(&[12], 3), noise(&[3, 12], 4)];
    let mlp = |x: &[Tensor]| PositionMlp { weight: x[0].clone(), bias: x[1].clone(), output: x[2].clone() };
    let taped = |t: &Ops, x: &[Tensor]| position_table(t, &coordinates, &mlp(x));
    agree("position table", &inputs, taped, |x| {
        position_table(&Compute::Candle.into(), &coordinates, &mlp(x))
    });
}

#[test]
fn biases_of_keys_get_no_gradient() {
    let bias = [noise(&[9], 1)];
    let (out, gradients) = on_tape(&bias, |t, x| without_key_gradient(t, &x[0]));
    assert_eq!(values(&out), values(&bias[0]));
    let (got, want) = (values(&gradients[0]), values(&weights_of(&out)));
    assert_eq!((&got[..3], &got[3..6], &got[6..]), (&want[..3], &[0.0; 3][..], &want[6..]));
}

/// The squared difference of each image over the squares of its target, in f64.
fn relative_errors_of(x: &[f32], target: &[f32], images: usize) -> Vec<f64> {
    let of_image = x.len() / images;
    let squares = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>();
    let f64s = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
    let pairs = x.chunks(of_image).zip(target.chunks(of_image));
    let error = |(x, target): (&[f32], &[f32])| {
        let (x, target) = (f64s(x), f64s(target));
        let difference: Vec<f64> = x.iter().zip(&target).map(|(x, t)| x - t).collect();
        squares(&difference) / squares(&target)
    };
    pairs.map(error).collect()
}

#[test]
fn relative_errors_and_their_gradients_are_those_of_finite_differences() {
    let (images, shape) = (3, [3 * 35, 8]);
    let (x, target) = (noise(&shape, 1), noise(&shape, 2));
    let (data, wanted) = (values(&x), values(&target));
    let expected = relative_errors_of(&data, &wanted, images);
    assert!(expected.iter().any(|error| (error / expected[0] - 1.0).abs() > 1e-3), "{expected:?}");
    for compute in [Compute::host().unwrap(), Compute::Candle] {
        let (errors, gradient) = relative_errors(compute, &x, &target, images, 0.7).unwrap();
        for (error, expected) in errors.iter().zip(&expected) {
            assert!((error / expected - 1.0).abs() < 1e-5, "{errors:?} and {expected:?}");
        }
        let gradient = values(&gradient);
        for at in (0..data.len()).step_by(17) {
            let moved = |step: f32| {
                let mut data = data.clone();
                data[at] += step;
                0.7 * relative_errors_of(&data, &wanted, images).iter().sum::<f64>()
            };
            let numeric = (moved(1e-2) - moved(-1e-2)) / 2e-2;
            assert!((f64::from(gradient[at]) - numeric).abs() < 1e-6, "{at}: {} and {numeric}", gradient[at]);
        }
    }
}

/// Parts of fixed size are added in order: an image of several parts, and one that is no whole number of
/// them.
#[test]
fn relative_errors_of_large_maps() {
    let shape = [2 * 1111, 48];
    let (x, target) = (noise(&shape, 3), noise(&shape, 4));
    let (errors, _) = relative_errors(Compute::host().unwrap(), &x, &target, 2, 1.0).unwrap();
    let expected = relative_errors_of(&values(&x), &values(&target), 2);
    assert!(errors.iter().zip(&expected).all(|(a, b)| (a / b - 1.0).abs() < 1e-6), "{errors:?} {expected:?}");
}

#[test]
fn a_map_of_zeros_has_no_relative_error() {
    let target = Tensor::cat(&[&noise(&[4, 2], 1), &noise(&[4, 2], 2).zeros_like().unwrap()], 0).unwrap();
    for compute in [Compute::host().unwrap(), Compute::Candle] {
        let error = relative_errors(compute, &noise(&[8, 2], 3), &target, 2, 1.0).unwrap_err().to_string();
        assert!(error.contains("map of image 1") && error.contains("zero everywhere"), "{error}");
    }
}
