//! Elementwise ops, which the memory bounds.

use super::{blocks, expect};
use crate::cuda::{CudaError, Device, DeviceSlice, Kernel, LaunchConfig, Params, Program, Stream, launch};

/// Threads of a block.
const THREADS: u32 = 256;
/// Blocks for each multiprocessor where a block does more than its elements need.
const RESIDENT: usize = 8;

/// An elementwise op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementwiseOp {
    /// `out = x`, f32, an element at a time.
    Copy,
    /// `out = x`, f32, four elements at a time.
    CopyVector,
    /// `out = fma(x, scale, y)`, f32, an element at a time.
    ScaleAdd,
    /// `out = fma(x, scale, y)`, f32, four elements at a time.
    ScaleAddVector,
    /// `out = gelu(x)` of the number contract ([`gelu`](crate::reference::gelu)), f32.
    Gelu,
    /// `out = code(x * scale)` ([`code`](crate::reference::code)), f32 to s8.
    Quantize,
    /// `out = x + y`, f16, rounded once.
    HalfAdd,
}

impl ElementwiseOp {
    /// Every one.
    pub const ALL: [ElementwiseOp; 7] = [
        ElementwiseOp::Copy,
        ElementwiseOp::CopyVector,
        ElementwiseOp::ScaleAdd,
        ElementwiseOp::ScaleAddVector,
        ElementwiseOp::Gelu,
        ElementwiseOp::Quantize,
        ElementwiseOp::HalfAdd,
    ];

    /// What is compiled.
    pub fn program(self) -> Program {
        let entry = match self {
            ElementwiseOp::Copy => "copy_f32",
            ElementwiseOp::CopyVector => "copy_f32x4",
            ElementwiseOp::ScaleAdd => "scale_add_f32",
            ElementwiseOp::ScaleAddVector => "scale_add_f32x4",
            ElementwiseOp::Gelu => "gelu_f32x4",
            ElementwiseOp::Quantize => "quantize_s8",
            ElementwiseOp::HalfAdd => "add_f16x8",
        };
        Program::new("ladder_elementwise.cu", entry).define("THREADS", THREADS.into())
    }

    /// Bytes of an element of the operands, and of the output.
    pub fn element_bytes(self) -> (usize, usize) {
        match self {
            ElementwiseOp::Quantize => (4, 1),
            ElementwiseOp::HalfAdd => (2, 2),
            _ => (4, 4),
        }
    }

    /// Whether there is a second operand.
    pub fn is_binary(self) -> bool {
        matches!(self, ElementwiseOp::ScaleAdd | ElementwiseOp::ScaleAddVector | ElementwiseOp::HalfAdd)
    }

    /// Bytes read and written for each element.
    pub fn bytes(self) -> usize {
        let (operand, result) = self.element_bytes();
        operand * if self.is_binary() { 2 } else { 1 } + result
    }

    /// Elements that a thread takes at a time.
    fn group(self) -> usize {
        match self {
            ElementwiseOp::Copy | ElementwiseOp::ScaleAdd => 1,
            ElementwiseOp::Quantize | ElementwiseOp::HalfAdd => 8,
            _ => 4,
        }
    }

    /// How `count` elements are launched on a device with this many multiprocessors.
    ///
    /// # Panics
    /// For 2^31 blocks or more.
    pub fn launch(self, count: usize, multiprocessors: usize) -> LaunchConfig {
        let needed = count.div_ceil(self.group() * THREADS as usize).max(1);
        if self != ElementwiseOp::Gelu {
            return LaunchConfig::linear(blocks(needed), THREADS);
        }
        // Each block fills a table first.
        let config = LaunchConfig::linear(blocks(needed.min(RESIDENT * multiprocessors)), THREADS);
        LaunchConfig { shared: 384, ..config }
    }
}

/// `Params` of ladder_elementwise.cu.
#[repr(C)]
#[derive(Clone, Copy)]
struct ElementwiseParams {
    x: u64,
    y: u64,
    out: u64,
    count: u64,
    scale: f32,
}

// SAFETY: the fields of `Params` in ladder_elementwise.cu, in their order.
unsafe impl Params for ElementwiseParams {}

/// An op, compiled.
pub struct Elementwise {
    kernel: Kernel,
    op: ElementwiseOp,
    multiprocessors: usize,
}

impl Elementwise {
    /// Compiles `op`.
    ///
    /// # Errors
    /// NVRTC is missing, the source does not compile, or the driver fails.
    pub fn new(device: &Device, op: ElementwiseOp) -> Result<Elementwise, CudaError> {
        let multiprocessors = device.multiprocessors() as usize;
        Ok(Elementwise { kernel: device.kernel(&op.program())?, op, multiprocessors })
    }

    /// The op on `count` elements of `x` and, where there is a second operand, of `y`.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Panics
    /// If a slice is too short, or there are 2^31 elements or more.
    pub fn run(
        &self,
        on: &Stream,
        count: usize,
        scale: f32,
        [x, y, out]: [&DeviceSlice; 3],
    ) -> Result<(), CudaError> {
        let (operand, result) = self.op.element_bytes();
        expect("ladder: x", x, count * operand);
        if self.op.is_binary() {
            expect("ladder: y", y, count * operand);
        }
        expect("ladder: the output", out, count * result);
        [x, y, out].into_iter().for_each(|slice| on.hold(slice));
        let params = ElementwiseParams { x: x.ptr(), y: y.ptr(), out: out.ptr(), count: count as u64, scale };
        // SAFETY: `ElementwiseParams` is the kernels' parameter; the lengths were checked above, the kernels touch no
        // element beyond them, and all slices are held.
        unsafe { launch(&self.kernel, self.op.launch(count, self.multiprocessors), on, &params) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_reach_every_element() {
        for op in ElementwiseOp::ALL {
            for count in [1, 255, 2049, 1 << 24] {
                let config = op.launch(count, 132);
                let threads = config.grid[0] as usize * config.threads as usize;
                // The elements that are no whole group have a thread each; the others have a loop.
                assert!(threads >= count % op.group(), "{op:?} {count}");
                assert!(op == ElementwiseOp::Gelu || threads * op.group() >= count, "{op:?} {count}");
            }
            assert!(op.bytes() >= 5);
        }
    }
}
