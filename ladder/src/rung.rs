//! The rungs of `bench gemm`.

use swinq_cuda::ladder::FloatRung;
use swinq_cuda::{FloatKind, Output};

use crate::reference::float_tolerance;
use crate::roofline::Arithmetic;
use crate::row::Workload;
use crate::shape::Shape;

/// Multiply-accumulates above which the scalar loop is skipped.
const SCALAR_MOST: f64 = 2.2e9;
/// Multiply-accumulates above which the CPU kernels are skipped.
const CPU_MOST: f64 = 7e10;
/// Multiply-accumulates above which the simplest GPU kernels are skipped.
const PLAIN_MOST: f64 = 1.4e11;

/// An implementation of the matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// Three loops on the CPU.
    CpuScalar,
    /// The CPU engine's f32 kernel.
    CpuFloat,
    /// The CPU engine's INT8 kernel.
    CpuInt8,
    /// A GPU kernel in f32 without tensor cores.
    Float(FloatRung),
    /// swinq's INT8 kernels on the tensor cores, with accumulators stored as f32.
    OwnInt8,
    /// swinq's INT8 kernels with INT8 results.
    OwnCodes,
    /// swinq's FP16 kernels on the tensor cores.
    OwnHalf,
    /// cuBLASLt in float.
    LtFloat(FloatKind),
    /// cuBLASLt in INT8.
    LtInt8(Output),
    /// cuBLASLt in INT8 with operands in COL32.
    LtCol32,
}

impl Rung {
    /// The rungs of the CPU.
    pub const CPU: [Rung; 3] = [Rung::CpuScalar, Rung::CpuFloat, Rung::CpuInt8];
    /// The rungs of a GPU.
    pub const GPU: [Rung; 13] = [
        Rung::Float(FloatRung::Naive),
        Rung::Float(FloatRung::Shared),
        Rung::Float(FloatRung::Tiled),
        Rung::Float(FloatRung::Grouped),
        Rung::OwnInt8,
        Rung::OwnCodes,
        Rung::OwnHalf,
        Rung::LtFloat(FloatKind::F32),
        Rung::LtFloat(FloatKind::Tf32),
        Rung::LtFloat(FloatKind::F16),
        Rung::LtInt8(Output::S32),
        Rung::LtInt8(Output::S8),
        Rung::LtCol32,
    ];

    /// Name in tables, JSON and plots.
    pub fn name(self) -> &'static str {
        match self {
            Rung::CpuScalar => "CPU f32, scalar loop",
            Rung::CpuFloat => "CPU f32, SIMD",
            Rung::CpuInt8 => "CPU INT8, SIMD",
            Rung::Float(FloatRung::Naive) => "CUDA f32, naive 1-D",
            Rung::Float(FloatRung::Shared) => "CUDA f32, 1-D, shared memory",
            Rung::Float(FloatRung::Tiled) => "CUDA f32, 2-D register tiles",
            Rung::Float(FloatRung::Grouped) => "CUDA f32, 2-D, grouped blocks",
            Rung::OwnInt8 => "ours INT8, f32 out",
            Rung::OwnCodes => "ours INT8, s8 out",
            Rung::OwnHalf => "ours FP16",
            Rung::LtFloat(FloatKind::F32) => "cuBLASLt FP32",
            Rung::LtFloat(FloatKind::Tf32) => "cuBLASLt TF32",
            Rung::LtFloat(FloatKind::F16) => "cuBLASLt FP16",
            Rung::LtFloat(FloatKind::F16ToF32) => "cuBLASLt FP16, f32 out",
            Rung::LtInt8(Output::S32) => "cuBLASLt INT8, s32 out",
            Rung::LtInt8(Output::S8) => "cuBLASLt INT8, s8 out",
            Rung::LtCol32 => "cuBLASLt INT8, COL32",
        }
    }

    /// The arithmetic of its operations.
    pub fn arithmetic(self) -> Arithmetic {
        match self {
            Rung::CpuScalar | Rung::CpuFloat | Rung::Float(_) => Arithmetic::Fp32,
            Rung::LtFloat(FloatKind::F32) => Arithmetic::Fp32,
            Rung::LtFloat(FloatKind::Tf32) => Arithmetic::Tf32,
            Rung::OwnHalf | Rung::LtFloat(_) => Arithmetic::Fp16,
            Rung::CpuInt8 | Rung::OwnInt8 | Rung::OwnCodes | Rung::LtInt8(_) | Rung::LtCol32 => {
                Arithmetic::Int8
            }
        }
    }

    /// Whether it multiplies INT8 codes.
    pub fn is_int8(self) -> bool {
        self.arithmetic() == Arithmetic::Int8
    }

    /// Whether its results are INT8 codes.
    pub fn has_codes(self) -> bool {
        matches!(self, Rung::OwnCodes | Rung::LtInt8(Output::S8))
    }

    /// Bytes of an element of the operands and of the output.
    fn element_bytes(self) -> (usize, usize) {
        match self {
            Rung::OwnHalf | Rung::LtFloat(FloatKind::F16) => (2, 2),
            Rung::LtFloat(FloatKind::F16ToF32) => (2, 4),
            _ if self.has_codes() => (1, 1),
            _ if self.is_int8() => (1, 4),
            _ => (4, 4),
        }
    }

    /// Its amount of work for `shape`.
    pub fn work(self, shape: Shape) -> Workload {
        let (operand, result) = self.element_bytes();
        let bytes = shape.bytes(operand, result);
        Workload { arithmetic: self.arithmetic(), operations: shape.operations(), bytes }
    }

    /// The largest allowed difference from the reference. Operands are in [-1, 1). TF32 and FP16 round them
    /// to 11 bits, and FP16 also rounds the result. `6 sqrt(k)` such errors are twice the largest error
    /// observed in 10^8 random sums.
    pub fn tolerance(self, k: usize) -> f64 {
        let rounding = 6.0 * (k as f64).sqrt() * 2.0_f64.powi(-11);
        match self.arithmetic() {
            Arithmetic::Int8 => 0.0,
            Arithmetic::Fp32 => float_tolerance(k),
            Arithmetic::Tf32 | Arithmetic::Fp16 => float_tolerance(k) + rounding,
        }
    }

    /// The reason why it is skipped for `shape`; `None` if it runs.
    pub fn skipped(self, shape: Shape) -> Option<String> {
        let most = match self {
            Rung::CpuScalar => SCALAR_MOST,
            Rung::CpuFloat | Rung::CpuInt8 => CPU_MOST,
            Rung::Float(FloatRung::Naive | FloatRung::Shared) => PLAIN_MOST,
            _ => return None,
        };
        let too_long = shape.macs() > most;
        too_long.then(|| format!("takes too long: more than {:.0} GMAC", most / 1e9))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rungs_have_names_of_their_own_and_integers_are_exact() {
        let all: Vec<Rung> = Rung::CPU.into_iter().chain(Rung::GPU).collect();
        for (i, rung) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|other| other.name() != rung.name()), "{}", rung.name());
            assert_eq!(rung.tolerance(1000) == 0.0, rung.name().contains("INT8"), "{}", rung.name());
        }
    }

    #[test]
    fn work_and_limits() {
        let shape = Shape { m: 2048, n: 1024, k: 512 };
        assert_eq!(Rung::OwnInt8.work(shape).bytes, 2048.0 * 512.0 + 1024.0 * 512.0 + 4.0 * 2048.0 * 1024.0);
        assert_eq!(Rung::OwnHalf.work(shape).operations, 2.0 * 2048.0 * 1024.0 * 512.0);
        assert!(Rung::CpuScalar.skipped(shape).is_none());
        let large = Shape { m: 4096, n: 4096, k: 4096 };
        assert!(Rung::CpuScalar.skipped(large).unwrap().contains("2 GMAC"));
        assert!(Rung::CpuInt8.skipped(large).is_none() && Rung::OwnInt8.skipped(large).is_none());
    }
}
