//! Window attention as one operation, from what the qkv product gave to what the projection takes.
//!
//! Nothing of size `[n, n]` is kept for the backward pass: it is computed again, window by window, in the first cache
//! levels (Dao et al., "FlashAttention", NeurIPS 2022, for the idea).

mod composed;
mod head;

use candle_core::{Result, Tensor, bail};
use rayon::prelude::*;

#[cfg(feature = "cuda")]
use super::cuda;
use super::fake_quant::{Fake, FakeProbs};
use super::host::{in_order, slices};
use crate::tape::{Tape, Way};
use composed::Forward;
pub(super) use head::Shape;
use head::{Head, Scratch};

/// Parts that the windows are split into where gradients are summed over them; fixed, so that sums are.
const PARTS: usize = 32;

/// The fake quantization inside attention; `None` is a site that is off.
#[derive(Clone, Debug)]
pub struct AttentionSites {
    /// Queries.
    pub q: Option<Fake>,
    /// Keys.
    pub k: Option<Fake>,
    /// Values.
    pub v: Option<Fake>,
    /// `q k^T` before scale, bias and mask.
    pub scores: Option<Fake>,
    /// Probabilities.
    pub probs: FakeProbs,
}

impl AttentionSites {
    /// Nothing is quantized.
    pub const FLOAT: AttentionSites =
        AttentionSites { q: None, k: None, v: None, scores: None, probs: FakeProbs::Float };

    /// In the order of the gradients of their steps.
    pub(super) fn fakes(&self) -> [Option<&Fake>; 5] {
        let probs = match &self.probs {
            FakeProbs::S8(fake) => Some(fake),
            _ => None,
        };
        [self.q.as_ref(), self.k.as_ref(), self.v.as_ref(), self.scores.as_ref(), probs]
    }
}

/// Attention inside every window: `qkv` `[windows * n, 3 * c]`, the `bias` `[heads, n, n]`, and the `mask` `[windows of an
/// image, n, n]` to `[windows * n, c]`. See [`swinq_kernels::reference::attention_window`].
///
/// # Errors
/// Shapes that do not fit.
pub fn attention(
    tape: &Tape,
    qkv: &Tensor,
    scale: f32,
    bias: &Tensor,
    mask: Option<&Tensor>,
    sites: &AttentionSites,
) -> Result<Tensor> {
    let (rows, width) = qkv.dims2()?;
    let (heads, n, _) = bias.dims3()?;
    let shape = Shape { n, heads, d: width / 3 / heads, scale };
    if rows % n != 0 || width != shape.width() {
        bail!("attention: {:?} with {heads} heads of {n} tokens", qkv.shape())
    }
    let (qkv, bias, mask) = (qkv.contiguous()?, bias.contiguous()?, mask.cloned());
    let way = tape.way(&qkv);
    #[cfg(feature = "cuda")]
    let way =
        if way == Way::Cuda && !cuda::takes_attention(shape, &qkv, sites)? { Way::Composed } else { way };
    let out = match way {
        Way::Host => on_host(shape, &qkv, &bias, mask.as_ref(), sites)?,
        #[cfg(feature = "cuda")]
        Way::Cuda => cuda::attention(shape, &qkv, &bias, mask.as_ref(), sites)?,
        Way::Composed => Forward::new(shape, &qkv, &bias, mask.as_ref(), sites)?.output()?,
    };
    let learned = sites.fakes().into_iter().flatten().filter_map(|fake| fake.learned.as_ref());
    let inputs: Vec<Tensor> = [&qkv, &bias].into_iter().chain(learned.map(|l| &l.ratio)).cloned().collect();
    let sites = sites.clone();
    tape.record(&inputs.iter().collect::<Vec<_>>(), &out, move |grad, sink| {
        let grad = grad.tensor().contiguous()?;
        let (dqkv, dbias, steps) = match way {
            Way::Host => backward_on_host(shape, &qkv, &bias, mask.as_ref(), &sites, &grad)?,
            #[cfg(feature = "cuda")]
            Way::Cuda => {
                let [dqkv, dbias] =
                    cuda::attention_gradient(shape, &qkv, &bias, mask.as_ref(), &sites, &grad, sink)?;
                sink.add(&bias, dbias)?;
                return sink.add(&qkv, dqkv);
            }
            Way::Composed => {
                Forward::new(shape, &qkv, &bias, mask.as_ref(), &sites)?.backward(shape, &sites, &grad)?
            }
        };
        for (fake, step) in sites.fakes().into_iter().zip(steps) {
            if let (Some(learned), Some(step)) = (fake.and_then(|fake| fake.learned.as_ref()), &step) {
                learned.add(sink, step)?;
            }
        }
        sink.add(&bias, dbias)?;
        sink.add(&qkv, dqkv)
    });
    Ok(out)
}

fn on_host(
    shape: Shape,
    qkv: &Tensor,
    bias: &Tensor,
    mask: Option<&Tensor>,
    sites: &AttentionSites,
) -> Result<Tensor> {
    let (rows, width) = qkv.dims2()?;
    let Shape { n, heads, .. } = shape;
    let mut out = vec![0.0; rows * shape.c()];
    let tensors: Vec<&Tensor> = [qkv, bias].into_iter().chain(mask).collect();
    slices(&tensors, |values| {
        let head = Head::new(shape, values[1], values.get(2).copied(), sites);
        let windows = out.par_chunks_mut(n * shape.c()).zip(values[0].par_chunks(n * width));
        windows.enumerate().for_each_init(Scratch::default, |scratch, (window, (out, qkv))| {
            (0..heads).for_each(|index| head.forward(window, index, qkv, out, scratch));
        });
    })?;
    Tensor::from_vec(out, (rows, shape.c()), qkv.device())
}

fn backward_on_host(
    shape: Shape,
    qkv: &Tensor,
    bias: &Tensor,
    mask: Option<&Tensor>,
    sites: &AttentionSites,
    grad: &Tensor,
) -> Result<(Tensor, Tensor, [Option<Tensor>; 5])> {
    let Shape { n, heads, .. } = shape;
    let (rows, width) = qkv.dims2()?;
    let mut dqkv = vec![0.0; rows * width];
    let part = (rows / n).div_ceil(PARTS);
    let size = heads * n * n;
    let tensors: Vec<&Tensor> = [qkv, bias, grad].into_iter().chain(mask).collect();
    // The bias's gradient, then the steps'.
    let sums = slices(&tensors, |values| {
        let head = Head::new(shape, values[1], values.get(3).copied(), sites);
        let parts = dqkv
            .par_chunks_mut(part * n * width)
            .zip(values[0].par_chunks(part * n * width))
            .zip(values[2].par_chunks(part * n * shape.c()));
        let parts = parts.enumerate().map(|(index, ((dqkv, qkv), grad))| {
            let (mut sums, mut scratch) = (vec![0.0; size + 5], Scratch::default());
            let (dbias, steps) = sums.split_at_mut(size);
            let windows =
                dqkv.chunks_mut(n * width).zip(qkv.chunks(n * width)).zip(grad.chunks(n * shape.c()));
            for (window, ((dqkv, qkv), grad)) in windows.enumerate() {
                for (h, dbias) in dbias.chunks_exact_mut(n * n).enumerate() {
                    head.backward(index * part + window, h, qkv, grad, dqkv, dbias, steps, &mut scratch);
                }
            }
            sums
        });
        in_order(parts.collect(), size + 5)
    })?;
    let dqkv = Tensor::from_vec(dqkv, (rows, width), qkv.device())?;
    let dbias = Tensor::from_slice(&sums[..size], bias.shape(), bias.device())?;
    let mut steps = [const { None }; 5];
    for (step, &sum) in steps.iter_mut().zip(&sums[size..]) {
        *step = Some(Tensor::from_slice(&[sum], 1, qkv.device())?);
    }
    Ok((dqkv, dbias, steps))
}
