//! The operations as single passes over contiguous f32 in host memory, on every core.

use std::ops::Range;
use std::sync::OnceLock;

use candle_core::{
    CpuStorage, CustomOp1, CustomOp2, CustomOp3, Layout, Result, Shape, Storage, Tensor, bail,
};
use pulp::{Simd, WithSimd};
use rayon::prelude::*;
use swinq_kernels::{Cpu, Quantizer, reference, rows_f32};

use super::product::Product;
use super::{Gather, Norm};

/// Values that one task handles at least: less is not worth handing to another core.
const GRAIN: usize = 1 << 14;

/// A pass: from the contiguous values of its arguments to those of its result.
struct Pass<F> {
    name: &'static str,
    shape: Shape,
    run: F,
}

impl<F: Fn(&[&[f32]], &mut [f32])> Pass<F> {
    fn new(name: &'static str, shape: impl Into<Shape>, run: F) -> Pass<F> {
        Pass { name, shape: shape.into(), run }
    }

    fn on(&self, arguments: &[&Tensor]) -> Result<Tensor> {
        match arguments {
            [a] => a.contiguous()?.apply_op1_no_bwd(self),
            [a, b] => a.contiguous()?.apply_op2_no_bwd(&b.contiguous()?, self),
            [a, b, c] => a.contiguous()?.apply_op3_no_bwd(&b.contiguous()?, &c.contiguous()?, self),
            _ => bail!("{}: {} arguments", self.name, arguments.len()),
        }
    }

    fn execute(&self, arguments: &[(&CpuStorage, &Layout)]) -> Result<(CpuStorage, Shape)> {
        let mut slices = Vec::with_capacity(arguments.len());
        for (storage, layout) in arguments {
            let Some((start, end)) = layout.contiguous_offsets() else {
                bail!("{}: an argument is not contiguous", self.name)
            };
            slices.push(&storage.as_slice::<f32>()?[start..end]);
        }
        let mut out = vec![0.0; self.shape.elem_count()];
        (self.run)(&slices, &mut out);
        Ok((CpuStorage::F32(out), self.shape.clone()))
    }
}

impl<F: Fn(&[&[f32]], &mut [f32])> CustomOp1 for Pass<F> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(&self, s: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
        self.execute(&[(s, l)])
    }
}

impl<F: Fn(&[&[f32]], &mut [f32])> CustomOp2 for Pass<F> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(
        &self,
        s: &CpuStorage,
        l: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.execute(&[(s, l), (s2, l2)])
    }
}

impl<F: Fn(&[&[f32]], &mut [f32])> CustomOp3 for Pass<F> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(
        &self,
        s: &CpuStorage,
        l: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
        s3: &CpuStorage,
        l3: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.execute(&[(s, l), (s2, l2), (s3, l3)])
    }
}

/// Runs `f` once, compiled for the best instruction set of this processor. `f` and what it calls must be
/// `#[inline(always)]` to be compiled so. (Were it any `FnOnce`, a closure that borrows would be called through a function
/// of the compiler's, which is not.)
#[inline]
pub(super) fn vectorised<R>(mut f: impl FnMut() -> R) -> R {
    struct Run<'a, F>(&'a mut F);
    impl<R, F: FnMut() -> R> WithSimd for Run<'_, F> {
        type Output = R;

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) -> R {
            (self.0)()
        }
    }
    pulp::Arch::new().dispatch(Run(&mut f))
}

/// Calls `f(row index, row)` for every row of `out`, in vector code, rows spread over the cores.
fn each_row(out: &mut [f32], width: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
    let rows_per_task = GRAIN.div_ceil(width);
    out.par_chunks_mut(rows_per_task * width).enumerate().for_each(|(task, rows)| {
        vectorised(
            #[inline(always)]
            || {
                for (i, row) in rows.chunks_exact_mut(width).enumerate() {
                    f(task * rows_per_task + i, row);
                }
            },
        );
    });
}

fn row(values: &[f32], width: usize, index: usize) -> &[f32] {
    &values[index * width..][..width]
}

/// The fastest instruction set there is; all give the same results.
pub(super) fn cpu() -> Cpu {
    static FASTEST: OnceLock<Cpu> = OnceLock::new();
    *FASTEST.get_or_init(|| *Cpu::available().last().expect("the scalar reference is always there"))
}

/// Calls `f(range, values)` for parts of `out` of whole rows of `width`, spread over the cores; `range` is where they are.
fn each_part(out: &mut [f32], width: usize, f: impl Fn(Range<usize>, &mut [f32]) + Sync) {
    let size = GRAIN.div_ceil(width) * width;
    let parts = out.par_chunks_mut(size).enumerate();
    parts.for_each(|(i, part)| f(i * size..i * size + part.len(), part));
}

pub(super) fn norm(x: &Tensor, norm: &Norm) -> Result<Tensor> {
    let (_, c) = x.dims2()?;
    let eps = norm.eps as f32;
    Pass::new("layer_norm", x.shape(), |arguments: &[&[f32]], out: &mut [f32]| {
        let [x, weight, bias] = [arguments[0], arguments[1], arguments[2]];
        each_part(out, c, |range, out| rows_f32::layer_norm(cpu(), &x[range], weight, bias, eps, out));
    })
    .on(&[x, &norm.weight, &norm.bias])
}

/// The source row of output row `i` over all images; `None` where it is absent.
#[inline(always)]
fn source(gather: &Gather, i: usize) -> Option<usize> {
    let per_image = gather.index.len();
    let source = gather.index[i % per_image];
    (source != Gather::ABSENT).then(|| i / per_image * gather.source_rows + source as usize)
}

pub(super) fn norm_then_gather(x: &Tensor, norm: &Norm, gather: &Gather) -> Result<Tensor> {
    let (rows, c) = x.dims2()?;
    let eps = norm.eps as f32;
    let shape = (rows / gather.source_rows * gather.rows(), c);
    Pass::new("layer_norm_gather", shape, |arguments: &[&[f32]], out: &mut [f32]| {
        let [x, weight, bias] = [arguments[0], arguments[1], arguments[2]];
        each_part(out, c, |range, out| {
            for (i, out) in out.chunks_exact_mut(c).enumerate() {
                if let Some(from) = source(gather, range.start / c + i) {
                    rows_f32::layer_norm(cpu(), row(x, c, from), weight, bias, eps, out);
                }
            }
        });
    })
    .on(&[x, &norm.weight, &norm.bias])
}

pub(super) fn gather(x: &Tensor, gather: &Gather) -> Result<Tensor> {
    let (rows, c) = x.dims2()?;
    let shape = (rows / gather.source_rows * gather.rows(), gather.parts * c);
    Pass::new("gather", shape, |arguments: &[&[f32]], out: &mut [f32]| {
        each_row(
            out,
            c,
            #[inline(always)]
            |i, out| {
                if let Some(from) = source(gather, i) {
                    out.copy_from_slice(row(arguments[0], c, from));
                }
            },
        );
    })
    .on(&[x])
}

#[inline(always)]
fn add_row(x: &[f32], y: &[f32], out: &mut [f32]) {
    for ((out, &x), &y) in out.iter_mut().zip(x).zip(y) {
        *out = x + y;
    }
}

pub(super) fn mean_rows(x: &Tensor, images: usize) -> Result<Tensor> {
    let (rows, c) = x.dims2()?;
    let size = rows / images * c;
    Pass::new("mean_rows", (images, c), |arguments: &[&[f32]], out: &mut [f32]| {
        for (out, x) in out.chunks_exact_mut(c).zip(arguments[0].chunks_exact(size)) {
            reference::mean_of_rows(x, out);
        }
    })
    .on(&[x])
}

pub(super) fn add_bias(x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let (_, c) = x.dims2()?;
    Pass::new("add_bias", x.shape(), |arguments: &[&[f32]], out: &mut [f32]| {
        each_row(
            out,
            c,
            #[inline(always)]
            |i, out| add_row(row(arguments[0], c, i), arguments[1], out),
        );
    })
    .on(&[x, bias])
}

pub(super) fn gelu(x: &Tensor) -> Result<Tensor> {
    let (_, c) = x.dims2()?;
    Pass::new("gelu", x.shape(), |arguments: &[&[f32]], out: &mut [f32]| {
        each_part(out, c, |range, out| {
            out.copy_from_slice(&arguments[0][range]);
            rows_f32::gelu(cpu(), out);
        });
    })
    .on(&[x])
}

pub(super) fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (_, c) = a.dims2()?;
    Pass::new("add", a.shape(), |arguments: &[&[f32]], out: &mut [f32]| {
        each_row(
            out,
            c,
            #[inline(always)]
            |i, out| add_row(row(arguments[0], c, i), row(arguments[1], c, i), out),
        );
    })
    .on(&[a, b])
}

pub(super) fn split_heads(qkv: &Tensor, heads: usize, n: usize) -> Result<Tensor> {
    let (rows, width) = qkv.dims2()?;
    let d = width / 3 / heads;
    let windows = rows / n;
    Pass::new("split_heads", (3, windows, heads, n, d), |arguments: &[&[f32]], out: &mut [f32]| {
        each_row(
            out,
            d,
            #[inline(always)]
            |i, out| {
                let (token, head) = (i % n, i / n % heads);
                let (window, which) = (i / (n * heads) % windows, i / (n * heads * windows));
                let column = (which * heads + head) * d;
                out.copy_from_slice(&arguments[0][(window * n + token) * width + column..][..d]);
            },
        );
    })
    .on(&[qkv])
}

pub(super) fn merge_heads(x: &Tensor) -> Result<Tensor> {
    let (windows, heads, n, d) = x.dims4()?;
    Pass::new("merge_heads", (windows * n, heads * d), |arguments: &[&[f32]], out: &mut [f32]| {
        each_row(
            out,
            d,
            #[inline(always)]
            |i, out| {
                let (head, token, window) = (i % heads, i / heads % n, i / (heads * n));
                out.copy_from_slice(row(arguments[0], d, (window * heads + head) * n + token));
            },
        );
    })
    .on(&[x])
}

/// Calls `f(head index, its matrix, scratch)` for every `size` values of `out`, heads spread over the cores.
fn each_head(out: &mut [f32], size: usize, f: impl Fn(usize, &mut [f32], &mut [Vec<f32>; 2]) + Sync) {
    out.par_chunks_exact_mut(size)
        .enumerate()
        .with_min_len(4)
        .for_each_init(|| [Vec::new(), Vec::new()], |scratch, (head, out)| f(head, out, scratch));
}

pub(super) fn scores(q: &Tensor, k: &Tensor) -> Result<Tensor> {
    let (windows, heads, n, d) = q.dims4()?;
    Pass::new("scores", (windows, heads, n, n), |arguments: &[&[f32]], out: &mut [f32]| {
        each_head(out, n * n, |head, out, [packed, _]| {
            let [a, b] = [row(arguments[0], n * d, head), row(arguments[1], n * d, head)];
            pulp::Arch::new().dispatch(Product { a, b, transposed: true, n, k: d, out, packed });
        });
    })
    .on(&[q, k])
}

pub(super) fn logits(scores: &Tensor, scale: f32, bias: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
    let (_, heads, n, _) = scores.dims4()?;
    let size = n * n;
    let run = |arguments: &[&[f32]], out: &mut [f32]| {
        let [x, bias] = [arguments[0], arguments[1]];
        let mask = arguments.get(2);
        let windows = mask.map_or(1, |mask| mask.len() / size);
        each_row(
            out,
            size,
            #[inline(always)]
            |i, out| {
                let (x, bias) = (row(x, size, i), row(bias, size, i % heads));
                for ((out, &x), &b) in out.iter_mut().zip(x).zip(bias) {
                    *out = x.mul_add(scale, b);
                }
                if let Some(mask) = mask {
                    for (out, &m) in out.iter_mut().zip(row(mask, size, i / heads % windows)) {
                        *out += m;
                    }
                }
            },
        );
    };
    let pass = Pass::new("logits", scores.shape(), run);
    match mask {
        Some(mask) => pass.on(&[scores, bias, mask]),
        None => pass.on(&[scores, bias]),
    }
}

/// Multiplies each row of `width` by the reciprocal of its total.
fn scale_rows(out: &mut [f32], width: usize, totals: &[f32]) {
    vectorised(
        #[inline(always)]
        || {
            for (row, total) in out.chunks_exact_mut(width).zip(totals) {
                let factor = 1.0 / total;
                row.iter_mut().for_each(|x| *x *= factor);
            }
        },
    );
}

pub(super) fn softmax(x: &Tensor) -> Result<Tensor> {
    let n = x.dim(candle_core::D::Minus1)?;
    Pass::new("softmax", x.shape(), |arguments: &[&[f32]], out: &mut [f32]| {
        each_part(out, n, |range, out| {
            let mut totals = vec![0.0; out.len() / n];
            out.copy_from_slice(&arguments[0][range]);
            rows_f32::exp_minus_max(cpu(), n, out, &mut totals);
            scale_rows(out, n, &totals);
        });
    })
    .on(&[x])
}

pub(super) fn mix(probs: &Tensor, v: &Tensor) -> Result<Tensor> {
    let (_, _, n, d) = v.dims4()?;
    Pass::new("mix", v.shape(), |arguments: &[&[f32]], out: &mut [f32]| {
        each_head(out, n * d, |head, out, [packed, _]| {
            let [a, b] = [row(arguments[0], n * n, head), row(arguments[1], n * d, head)];
            pulp::Arch::new().dispatch(Product { a, b, transposed: false, n: d, k: n, out, packed });
        });
    })
    .on(&[probs, v])
}

pub(super) fn attend(logits: &Tensor, v: &Tensor) -> Result<Tensor> {
    let (_, _, n, d) = v.dims4()?;
    Pass::new("attend", v.shape(), |arguments: &[&[f32]], out: &mut [f32]| {
        each_head(out, n * d, |head, out, [packed, scratch]| {
            let [x, b] = [row(arguments[0], n * n, head), row(arguments[1], n * d, head)];
            scratch.resize(n * n + n, 0.0);
            let (weights, totals) = scratch.split_at_mut(n * n);
            weights.copy_from_slice(x);
            rows_f32::exp_minus_max(cpu(), n, weights, totals);
            pulp::Arch::new().dispatch(Product { a: weights, b, transposed: false, n: d, k: n, out, packed });
            scale_rows(out, d, totals);
        });
    })
    .on(&[logits, v])
}

/// Calls `f` with the values of `x`, f32 in host memory, row-major.
///
/// # Errors
/// Another device or element type.
pub(crate) fn with_values<R>(x: &Tensor, f: impl FnOnce(&[f32]) -> R) -> Result<R> {
    let x = x.contiguous()?;
    let (storage, layout) = x.storage_and_layout();
    let (Storage::Cpu(storage), Some((start, end))) = (&*storage, layout.contiguous_offsets()) else {
        bail!("a tensor in host memory is wanted")
    };
    Ok(f(&storage.as_slice::<f32>()?[start..end]))
}

/// What the code of `x` stands for, without a branch.
#[inline(always)]
pub(super) fn rounded(x: f32, scale: f32, recip: f32) -> f32 {
    let code = (x * recip).clamp(-128.0, 127.0).round_ties_even() * scale;
    if code.is_nan() { 0.0 } else { code }
}

/// What codes of `quantizer` make of `x`: `code(x) * scale`. NaN becomes 0. Any shape.
///
/// # Errors
/// A device without host memory.
pub fn fake_quantize(x: &Tensor, quantizer: Quantizer) -> Result<Tensor> {
    let (scale, recip) = (quantizer.scale(), quantizer.recip());
    let width = x.elem_count().clamp(1, GRAIN);
    Pass::new("fake_quantize", x.shape(), |arguments: &[&[f32]], out: &mut [f32]| {
        out.par_chunks_mut(width).zip(arguments[0].par_chunks(width)).for_each(|(out, x)| {
            vectorised(
                #[inline(always)]
                || {
                    // Copies: what is behind a reference is read again for each value.
                    let (scale, recip) = (scale, recip);
                    for (out, &x) in out.iter_mut().zip(x) {
                        *out = rounded(x, scale, recip);
                    }
                },
            );
        });
    })
    .on(&[x])
}
