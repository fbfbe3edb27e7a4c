//! Operations on the host against candle's operations, and fake quantization against its definition.

use candle_core::{Device, Result, Tensor};

use swinq_numerics::Quantizer;
use swinq_testing::Rng;

use super::{Compute, Gather, Norm, Ops, fake_quantize};

/// Random values in [-2, 2), the same in every run.
pub(super) fn noise(shape: &[usize], seed: u64) -> Tensor {
    Tensor::from_vec(Rng(seed).floats(shape.iter().product(), 2.0), shape, &Device::Cpu).unwrap()
}

pub(super) fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

fn quantizer(scale: f32) -> Quantizer {
    Quantizer::new(scale).unwrap()
}

/// The operations on the host.
pub(super) fn host() -> Ops {
    Compute::host().unwrap().into()
}

/// Asserts that the host and candle agree up to f32 rounding.
fn agree(name: &str, run: impl Fn(&Ops) -> Result<Tensor>) {
    let (host, candle) = (run(&host()).unwrap(), run(&Compute::Candle.into()).unwrap());
    assert_eq!(host.dims(), candle.dims(), "{name}");
    let (host, candle) = (values(&host), values(&candle));
    assert!(candle.iter().any(|v| *v != candle[0]), "{name}: the outputs are all equal");
    for (i, (h, c)) in host.iter().zip(&candle).enumerate() {
        assert!((h - c).abs() <= 2e-6 * c.abs().max(1.0), "{name}: {h} instead of {c} at flat index {i}");
    }
}

fn norm(c: usize) -> Norm {
    Norm { weight: noise(&[c], 1), bias: noise(&[c], 2), eps: 1e-5 }
}

#[test]
fn rows() {
    for (rows, c) in [(1, 1), (3, 7), (10, 16), (50, 33), (700, 96)] {
        let (x, y, bias) = (noise(&[rows, c], 3), noise(&[rows, c], 4), noise(&[c], 5));
        if c > 1 {
            agree("norm", |ops| ops.norm(&x, &norm(c)));
        }
        agree_unless_single("add_rows", rows * c, |ops| ops.add_rows(&x, &bias));
        agree_unless_single("gelu", rows * c, |ops| ops.gelu(&x));
        if c > 1 {
            agree("mean_rows", |ops| ops.mean_rows(&x, 1));
        }
        agree_unless_single("add", rows * c, |ops| ops.add(&x, &y));
    }
}

fn agree_unless_single(name: &str, values: usize, run: impl Fn(&Ops) -> Result<Tensor>) {
    if values > 1 {
        agree(name, run);
    }
}

#[test]
fn gathers() {
    let (images, source, c) = (3, 6, 5);
    let x = noise(&[images * source, c], 6);
    let shuffle = Gather::new(source, 1, [Some(4), None, Some(0), Some(5), Some(1), Some(3), None, Some(2)]);
    agree("norm_then_gather", |ops| ops.norm_then_gather(&x, &norm(c), &shuffle));
    agree("gather", |ops| ops.gather(&x, &shuffle));
    let pairs = Gather::new(source, 2, [Some(5), Some(1), Some(0), None, Some(2), Some(4)]);
    agree("pairs", |ops| ops.gather(&x, &pairs));
    let there = super::host::gather(&x, &shuffle).unwrap();
    let back = super::host::gather(&there, &shuffle.inverse()).unwrap();
    assert_eq!(values(&back), values(&x));
}

#[test]
fn attention() {
    for (windows, heads, n, d) in [(1, 1, 2, 1), (2, 3, 4, 5), (4, 2, 25, 6), (2, 1, 33, 16), (2, 2, 49, 32)]
    {
        let qkv = noise(&[windows * n, 3 * heads * d], 8);
        let parts = Compute::Candle.split_heads(&qkv, heads, n).unwrap();
        let agree = |name: &str, run: &dyn Fn(Compute) -> Result<Tensor>| agree(name, |ops| run(ops.compute));
        agree("split_heads", &|on| on.split_heads(&qkv, heads, n));
        let [q, k, v] = [0, 1, 2].map(|i| parts.get(i).unwrap());
        agree("scores", &|on| on.scores(&q, &k));
        agree("merge_heads", &|on| on.merge_heads(&q));
        let (bias, mask) = (noise(&[heads, n, n], 10), noise(&[windows / 2, n, n], 11));
        let scores = noise(&[windows, heads, n, n], 12);
        let mask = (windows > 1).then_some(&mask);
        agree("logits", &|on| on.logits(&scores, &[0.3], &bias, mask));
        let scales: Vec<f32> = (0..heads).map(|head| 0.3 + head as f32).collect();
        agree("logits with a factor for each head", &|on| on.logits(&scores, &scales, &bias, mask));
        agree("normalize", &|on| on.normalize(&q));
        agree("softmax", &|on| on.softmax(&scores));
        agree("attend", &|on| on.attend(&scores, &v));
        agree("probs_times_values", &|on| match on {
            Compute::Host(_) => super::probs_times_values(&scores, &v),
            _ => scores.matmul(&v),
        });
    }
}

#[test]
fn fake_quantization_rounds_ties_to_even_and_clamps() {
    let scale = 0.5;
    let x = [0.25, 0.75, -0.25, -0.75, 1.25, 63.4, 63.6, 1e9, -63.9, -64.2, -1e9, f32::NAN, f32::INFINITY];
    let want = [0.0, 1.0, 0.0, -1.0, 1.0, 63.5, 63.5, 63.5, -64.0, -64.0, -64.0, 0.0, 63.5];
    let x = Tensor::new(&x, &Device::Cpu).unwrap();
    assert_eq!(values(&fake_quantize(&x, quantizer(scale)).unwrap()), want);
}

#[test]
fn views_of_larger_tensors_are_read_at_their_offset() {
    let x = noise(&[4, 3, 8], 15);
    let view = x.narrow(0, 2, 1).unwrap();
    let [a, b] = [&view, &view.copy().unwrap()].map(|t| values(&fake_quantize(t, quantizer(0.01)).unwrap()));
    assert_eq!(a, b);
    assert_ne!(a, values(&fake_quantize(&x.narrow(0, 0, 1).unwrap(), quantizer(0.01)).unwrap()));
    let strided = x.transpose(1, 2).unwrap();
    let copied = strided.contiguous().unwrap();
    let [a, b] = [&strided, &copied].map(|t| values(&fake_quantize(t, quantizer(0.1)).unwrap()));
    assert_eq!(a, b);
}
