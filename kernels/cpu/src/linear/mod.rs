//! Linears: products with a weight, with their epilogue in the same pass: bias, GELU, quantization, residual
//! addition.
//!
//! ```text
//! out[row] = store(gelu(output(input[row] x weight^T) + bias))
//! ```
//! A linear is divided into blocks of rows and panels of columns. A kernel computes one tile of accumulators,
//! a few rows by one panel, in registers; the epilogue turns the tile into stored values while it is in the
//! first-level cache.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx_vnni;
mod dest;
mod epilogue;
mod finish;
mod float;
mod int8;
pub(crate) mod kernel;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_dotprod;
#[cfg(target_arch = "aarch64")]
mod neon_i8mm;
mod pack;
mod scalar;
mod spec;
mod split;
mod transposed;

use std::ops::Range;

pub(crate) use dest::Dest;
pub use float::LinearF32;
pub use int8::LinearI8;
pub use spec::{LinearOut, LinearSpec, Store};
pub use transposed::transposed_product;

use kernel::Int8Kernel;

/// All INT8 kernels for this type of processor, simplest first: the last one that the processor can run is
/// the default. To add a kernel, write a file with a `KERNEL`, declare it above and list it here.
pub(crate) static KERNELS: &[&Int8Kernel] = &[
    &scalar::KERNEL,
    // It needs the instructions of AVX-512 and precedes it, so it is never the default.
    #[cfg(target_arch = "x86_64")]
    &amx::EMULATED,
    #[cfg(target_arch = "x86_64")]
    &avx2::KERNEL,
    #[cfg(target_arch = "x86_64")]
    &avx_vnni::KERNEL,
    #[cfg(target_arch = "x86_64")]
    &avx512::KERNEL,
    #[cfg(target_arch = "x86_64")]
    &amx::KERNEL,
    #[cfg(target_arch = "aarch64")]
    &neon_dotprod::KERNEL,
    #[cfg(target_arch = "aarch64")]
    &neon_i8mm::KERNEL,
];

/// The most bytes of weights that are multiplied with all row tiles before the next weights (one panel may
/// exceed it).
const GROUP_BYTES: usize = 256 << 10;

/// The part that one task computes: rows `rows` of the input by the panels `panels` of the weight.
struct Block<'a, X, W> {
    input: &'a [X],
    /// Elements from one row of the input to the next.
    stride: usize,
    /// Inputs of a column.
    k: usize,
    weight: &'a [W],
    /// Elements of a panel.
    panel_len: usize,
    rows: Range<usize>,
    panels: Range<usize>,
}

impl<X, W> Block<'_, X, W> {
    fn input_from(&self, row: usize) -> &[X] {
        &self.input[row * self.stride..]
    }

    fn panel(&self, panel: usize) -> &[W] {
        &self.weight[panel * self.panel_len..][..self.panel_len]
    }

    /// The panels in groups, each of which stays in the second-level cache while it is multiplied with all
    /// row tiles.
    fn panel_groups(&self) -> impl Iterator<Item = Range<usize>> {
        let all = self.panels.len() * self.panel_len == self.weight.len();
        let each = if all { (GROUP_BYTES / (self.panel_len * size_of::<W>()).max(1)).max(1) } else { 1 };
        let end = self.panels.end;
        self.panels.clone().step_by(each).map(move |first| first..end.min(first + each))
    }
}
