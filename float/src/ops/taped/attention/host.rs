//! Attention on the host: windows are spread over the cores, heads of a window run one after the other.

use candle_core::{Result, Tensor};

use super::head::{Head, Scratch, Shape};
use super::{AttentionGradients, Inputs};
use crate::ops::taped::host::{slices, sum_in_order};
use crate::threads::{map_each, zeros};

/// Windows of a task where nothing is summed over them.
const WINDOWS: usize = 4;

/// Number of parts into which the windows are split where gradients are summed over them. It is fixed, so
/// that the sums do not depend on the number of threads.
const PARTS: usize = 32;

pub(super) fn forward(inputs: &Inputs) -> Result<Tensor> {
    let Inputs { shape, qkv, bias, mask, sites } = inputs;
    let (rows, width) = qkv.dims2()?;
    let Shape { n, heads, .. } = *shape;
    let mut out = zeros(rows * shape.c());
    let tensors: Vec<&Tensor> = [qkv, bias].into_iter().chain(mask).collect();
    slices(&tensors, |values| {
        let head = Head::new(*shape, values[1], values.get(2).copied(), sites);
        let parts = out.chunks_mut(WINDOWS * n * shape.c()).zip(values[0].chunks(WINDOWS * n * width));
        map_each(parts.enumerate(), |(part, (out, qkv))| {
            let mut scratch = Scratch::default();
            let windows = out.chunks_mut(n * shape.c()).zip(qkv.chunks(n * width));
            for (window, (out, qkv)) in windows.enumerate() {
                let window = WINDOWS * part + window;
                (0..heads).for_each(|index| head.forward(window, index, qkv, out, &mut scratch));
            }
        });
    })?;
    Tensor::from_vec(out, (rows, shape.c()), qkv.device())
}

/// The gradients of the inputs and scales, from the contiguous gradient `grad` of the output.
pub(super) fn backward(inputs: &Inputs, grad: &Tensor) -> Result<AttentionGradients> {
    let Inputs { shape, qkv, bias, mask, sites } = inputs;
    let Shape { n, heads, .. } = *shape;
    let (rows, width) = qkv.dims2()?;
    let mut dqkv = zeros(rows * width);
    let part = (rows / n).div_ceil(PARTS);
    let size = heads * n * n;
    let tensors: Vec<&Tensor> = [qkv, bias, grad].into_iter().chain(mask).collect();
    // The gradient of the bias, then the gradients of the five scales.
    let sums = slices(&tensors, |values| {
        let head = Head::new(*shape, values[1], values.get(3).copied(), sites);
        let parts = dqkv
            .chunks_mut(part * n * width)
            .zip(values[0].chunks(part * n * width))
            .zip(values[2].chunks(part * n * shape.c()));
        let parts = map_each(parts.enumerate(), |(index, ((dqkv, qkv), grad))| {
            let (mut sums, mut scratch) = (vec![0.0; size + 5], Scratch::default());
            let (dbias, dscales) = sums.split_at_mut(size);
            let windows =
                dqkv.chunks_mut(n * width).zip(qkv.chunks(n * width)).zip(grad.chunks(n * shape.c()));
            for (window, ((dqkv, qkv), grad)) in windows.enumerate() {
                for (h, dbias) in dbias.chunks_exact_mut(n * n).enumerate() {
                    head.backward(index * part + window, h, qkv, grad, dqkv, dbias, dscales, &mut scratch);
                }
            }
            sums
        });
        sum_in_order(parts, size + 5)
    })?;
    let mut scales = [const { None }; 5];
    for (scale, &sum) in scales.iter_mut().zip(&sums[size..]) {
        *scale = Some(Tensor::from_slice(&[sum], 1, qkv.device())?);
    }
    Ok(AttentionGradients {
        qkv: Tensor::from_vec(dqkv, (rows, width), qkv.device())?,
        bias: Tensor::from_slice(&sums[..size], bias.shape(), bias.device())?,
        scales,
    })
}
