//! Elementwise ops, whose speed is limited by memory bandwidth.

use super::{blocks, expect};
use crate::params::ladder_elementwise::Params;
use crate::{CudaError, Device, DeviceSlice, Kernel, LaunchConfig, Program, Stream, launch};

/// Threads of a block.
const THREADS: u32 = 256;
/// Maximum number of blocks per multiprocessor for an op whose blocks have a fixed start-up cost.
const RESIDENT: usize = 8;

/// An elementwise op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementwiseOp {
    /// `out = x`, f32, with loads of single elements.
    Copy,
    /// `out = x`, f32, four elements at a time.
    CopyVector,
    /// `out = fma(x, scale, y)`, f32, with loads of single elements.
    ScaleAdd,
    /// `out = fma(x, scale, y)`, f32, four elements at a time.
    ScaleAddVector,
    /// `out = gelu(x)` of the number contract ([`gelu`](swinq_numerics::reference::gelu)), f32.
    Gelu,
    /// `out = code(x * scale)` ([`code`](swinq_numerics::reference::code)), f32 to s8.
    Quantize,
    /// `out = x + y`, f16, rounded once.
    HalfAdd,
}

impl ElementwiseOp {
    /// All ops.
    pub const ALL: [ElementwiseOp; 7] = [
        ElementwiseOp::Copy,
        ElementwiseOp::CopyVector,
        ElementwiseOp::ScaleAdd,
        ElementwiseOp::ScaleAddVector,
        ElementwiseOp::Gelu,
        ElementwiseOp::Quantize,
        ElementwiseOp::HalfAdd,
    ];

    /// The program to compile.
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

    /// Bytes per element of the operands and of the output.
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

    /// Bytes read and written per element.
    pub fn bytes(self) -> usize {
        let (operand, result) = self.element_bytes();
        operand * if self.is_binary() { 2 } else { 1 } + result
    }

    /// Number of elements that a thread processes at a time; for single elements, UNROLL of
    /// ladder_elementwise.cu.
    fn group(self) -> usize {
        match self {
            ElementwiseOp::Quantize | ElementwiseOp::HalfAdd => 8,
            _ => 4,
        }
    }

    /// Launch configuration for `count` elements on a device with this many multiprocessors.
    ///
    /// # Panics
    /// If 2^31 blocks or more are needed.
    pub fn launch(self, count: usize, multiprocessors: usize) -> LaunchConfig {
        let needed = count.div_ceil(self.group() * THREADS as usize).max(1);
        if self != ElementwiseOp::Gelu {
            return LaunchConfig::linear(blocks(needed), THREADS);
        }
        // Each block first fills a table, so the number of blocks is limited.
        let config = LaunchConfig::linear(blocks(needed.min(RESIDENT * multiprocessors)), THREADS);
        LaunchConfig { shared: 384, ..config }
    }
}

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

    /// Runs the op on `count` elements of `x` and, for a binary op, of `y`.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Panics
    /// If a slice is too short, or there are 2^31 elements or more.
    pub fn run(
        &self,
        stream: &Stream,
        count: usize,
        scale: f32,
        [x, y, out]: [&DeviceSlice; 3],
    ) -> Result<(), CudaError> {
        let (operand, result) = self.op.element_bytes();
        expect("ladder: x", x, &[count, operand]);
        if self.op.is_binary() {
            expect("ladder: y", y, &[count, operand]);
        }
        expect("ladder: the output", out, &[count, result]);
        [x, y, out].into_iter().for_each(|slice| stream.hold(slice));
        let params = Params { x: x.ptr(), y: y.ptr(), out: out.ptr(), count: count as u64, scale };
        // SAFETY: `Params` is the kernels' parameter. The lengths were checked above, the kernels
        // access no element beyond them, and all slices are held.
        unsafe { launch(&self.kernel, self.op.launch(count, self.multiprocessors), stream, &params) }
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
                // Full groups are processed in a loop, but each remaining element needs a thread.
                assert!(threads >= count % op.group(), "{op:?} {count}");
                assert!(op == ElementwiseOp::Gelu || threads * op.group() >= count, "{op:?} {count}");
            }
            assert!(op.bytes() >= 5);
        }
    }
}
