//! The vector registers that ops use.

/// The vector registers and instructions behind every op except INT8 products, from the simplest to the
/// fastest.
///
/// INT8 products have separate kernels, one of which [`Cpu`](crate::Cpu) selects. Each kernel names the `Isa`
/// that the other ops use with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// No vector registers: every op runs the scalar reference.
    Scalar,
    /// x86-64 AVX2 and FMA.
    Avx2,
    /// AVX2 and FMA, with `vpdpbusd` on 256-bit registers.
    Avx2Vnni,
    /// AVX-512 (F, BW, DQ, VL), with `vpdpbusd` on 512-bit registers.
    Avx512Vnni,
}

impl Isa {
    /// Whether the processor has these instructions.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn is_available(self) -> bool {
        use std::arch::is_x86_feature_detected as has;
        let avx2 = has!("avx2") && has!("fma");
        match self {
            Isa::Scalar => true,
            Isa::Avx2 => avx2,
            Isa::Avx2Vnni => avx2 && has!("avxvnni"),
            Isa::Avx512Vnni => {
                avx2 && has!("avx512f")
                    && has!("avx512bw")
                    && has!("avx512dq")
                    && has!("avx512vl")
                    && has!("avx512vnni")
            }
        }
    }

    /// Whether the processor has these instructions.
    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn is_available(self) -> bool {
        self == Isa::Scalar
    }
}
