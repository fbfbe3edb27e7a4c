//! The descriptors of product kernels. `linear/mod.rs` has the list of all INT8 kernels.

use super::dest::Dest;
use super::epilogue::Epilogue;
#[cfg(target_arch = "aarch64")]
use super::neon;
use super::pack::Layout;
use super::{Block, scalar};
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use crate::buffer::AlignedBuf;
use crate::isa::Isa;
use crate::probe::Peak;

/// A kernel for INT8 products.
pub(crate) struct Int8Kernel {
    /// Name, as `SWINQ_ISA` takes it.
    pub(crate) name: &'static str,
    /// Vector registers that all other ops use together with this kernel.
    pub(crate) isa: Isa,
    /// Why the kernel cannot be used on a processor that has `isa`: it lacks further instructions, or the
    /// operating system does not permit their use. `None` if the kernel can be used.
    pub(super) refusal: fn() -> Option<String>,
    /// The most rows of a tile.
    pub(super) tile_rows: usize,
    /// The order of packed weights. A panel has as many columns as a tile.
    pub(super) layout: Layout,
    /// Whether the kernel multiplies unsigned bytes, `code + 128`, instead of codes. If so, the initial
    /// accumulators ([`compensation`](super::pack::compensation)) cancel the 128.
    pub(super) unsigned_input: bool,
    /// Computes one block.
    pub(super) block: BlockI8,
    /// See [`Cpu::fused_block_rows`](crate::Cpu::fused_block_rows).
    pub(crate) fused_block_rows: usize,
    /// See [`Cpu::min_rows_per_thread`](crate::Cpu::min_rows_per_thread).
    pub(crate) min_rows_per_thread: usize,
    /// See [`Cpu::macs_per_ns`](crate::Cpu::macs_per_ns).
    pub(crate) macs_per_ns: u64,
    /// A loop that runs at the peak rate of the kernel's multiply-add instruction, for benchmarks.
    pub(crate) peak: Option<Peak>,
}

/// Computes the results of a block from the initial accumulator of each column (padded to full panels) and
/// stores them through the epilogue. The last argument is the thread's scratch memory, which the kernel grows
/// as needed.
///
/// Calling it is sound if [`Int8Kernel::is_available`].
pub(super) type BlockI8 = unsafe fn(&Block<'_, u8, i8>, &[i32], &Epilogue, &Dest<'_>, &mut AlignedBuf);

impl Int8Kernel {
    /// Whether this processor can run the kernel, and the other ops with the kernel's `isa`.
    pub(crate) fn is_available(&self) -> bool {
        self.absence().is_none()
    }

    /// Why this processor cannot run the kernel, or `None` if it can.
    pub(crate) fn absence(&self) -> Option<String> {
        match self.isa.is_available() {
            true => (self.refusal)(),
            false => Some("the processor lacks its instructions".to_owned()),
        }
    }
}

/// A kernel for f32 products. [`Isa`] determines it.
pub(crate) struct F32Kernel {
    /// The most rows of a tile.
    pub(super) tile_rows: usize,
    /// The order of packed weights.
    pub(super) layout: Layout,
    /// Computes one block. Calling it is sound if the kernel's [`Isa`] is available.
    pub(super) block: unsafe fn(&Block<'_, f32, f32>, &Epilogue, &Dest<'_>),
    /// As [`Int8Kernel::peak`].
    pub(crate) peak: Option<Peak>,
}

/// The kernel for f32 products with the registers of `isa`.
pub(crate) fn f32_kernel(isa: Isa) -> &'static F32Kernel {
    match isa {
        Isa::Scalar => &scalar::F32_KERNEL,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx2Vnni => &avx2::F32_KERNEL,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni => &avx512::F32_KERNEL,
        #[cfg(target_arch = "aarch64")]
        Isa::Neon | Isa::NeonI8mm => &neon::F32_KERNEL,
    }
}

/// Calls `$tile::<R>` with `R` equal to `$rows`, one of the listed numbers of rows; the last serves as the
/// default.
macro_rules! with_rows {
    ($rows:expr, $tile:ident $args:tt, [$($r:literal)*] $last:literal) => {
        match $rows {
            $($r => $tile::<$r> $args,)*
            _ => $tile::<$last> $args,
        }
    };
}
pub(super) use with_rows;
