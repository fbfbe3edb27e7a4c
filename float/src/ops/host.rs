//! Operations as single passes over contiguous f32 in host memory, on every core.

use std::ops::Range;
use std::sync::OnceLock;

use candle_core::{
    CpuStorage, CustomOp1, CustomOp2, CustomOp3, Layout, Result, Shape, Storage, Tensor, bail,
};
use pulp::{Simd, WithSimd};
use swinq_kernels::Cpu;

use crate::threads::{pool, zeros};

mod attention;
mod fake_quant;
mod rows;

pub(super) use attention::{attend, logits, merge_heads, normalize, scores, split_heads};
pub use attention::{probs_times_values, softmax};
pub(super) use fake_quant::rounded;
pub use fake_quant::{fake_quantize, fake_quantize_columns};
pub(super) use rows::{add, add_bias, gather, gelu, mean_rows, norm, norm_then_gather};

/// Minimum number of values per task; less work does not pay for another core.
const GRAIN: usize = 1 << 14;

/// A pass over tensors: `run` reads the contiguous values of the arguments and writes the values of the
/// result.
struct Pass<F> {
    name: &'static str,
    shape: Shape,
    run: F,
}

impl<F: Fn(&[&[f32]], &mut [f32])> Pass<F> {
    fn new(name: &'static str, shape: impl Into<Shape>, run: F) -> Pass<F> {
        Pass { name, shape: shape.into(), run }
    }

    /// Runs the pass on one to three tensors.
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
        let mut out = zeros(self.shape.elem_count());
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

/// Runs `f` once, compiled for the best instruction set of this processor. `f` and the functions it calls
/// must be `#[inline(always)]`; a function that is not inlined keeps the default instruction set. `f` is not
/// an `FnOnce`, because the compiler calls a borrowing `FnOnce` through a shim that is not inlined.
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

/// Calls `f(row index, row)` for every row of `out`, in vector code; the rows are spread over the cores.
fn each_row(out: &mut [f32], width: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
    let rows_per_task = GRAIN.div_ceil(width);
    pool().run_parts(out, rows_per_task * width, &|task, rows| {
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

/// The fastest available instruction set; all give the same results.
pub(super) fn cpu() -> Cpu {
    static FASTEST: OnceLock<Cpu> = OnceLock::new();
    *FASTEST.get_or_init(|| *Cpu::available().last().expect("the scalar reference is always there"))
}

/// Calls `f(range, values)` for parts of `out`, spread over the cores. A part is a whole number of rows of
/// `width` values; `range` is its position in `out`.
fn each_part(out: &mut [f32], width: usize, f: impl Fn(Range<usize>, &mut [f32]) + Sync) {
    let size = GRAIN.div_ceil(width) * width;
    pool().run_parts(out, size, &|i, part| f(i * size..i * size + part.len(), part));
}

/// Calls `f` with the values of `x`, f32 in host memory, row-major.
///
/// # Errors
/// The tensor is on another device or has another element type.
pub(crate) fn with_values<R>(x: &Tensor, f: impl FnOnce(&[f32]) -> R) -> Result<R> {
    let x = x.contiguous()?;
    let (storage, layout) = x.storage_and_layout();
    let (Storage::Cpu(storage), Some((start, end))) = (&*storage, layout.contiguous_offsets()) else {
        bail!("the tensor must be in host memory")
    };
    Ok(f(&storage.as_slice::<f32>()?[start..end]))
}
