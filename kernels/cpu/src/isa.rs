//! The vector registers that ops use.

/// The vector registers and instructions behind every op except INT8 products, from the simplest to the
/// fastest. Each processor architecture has its own.
///
/// INT8 products have separate kernels, one of which [`Cpu`](crate::Cpu) selects. Each kernel names the `Isa`
/// that the other ops use with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// No vector registers: every op runs the scalar reference.
    Scalar,
    /// x86-64 AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX2 and FMA, with `vpdpbusd` on 256-bit registers.
    #[cfg(target_arch = "x86_64")]
    Avx2Vnni,
    /// AVX-512 (F, BW, DQ, VL), with `vpdpbusd` on 512-bit registers.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    /// AArch64 NEON, with `sdot` (the extension DotProd, of all processors from Armv8.4 on).
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// NEON, with `sdot` and `usdot` (the extension I8MM, of all processors from Armv8.6 on).
    #[cfg(target_arch = "aarch64")]
    NeonI8mm,
}

impl Isa {
    /// Whether the processor has these instructions.
    pub(crate) fn is_available(self) -> bool {
        #[cfg(target_arch = "aarch64")]
        use std::arch::is_aarch64_feature_detected as has;
        #[cfg(target_arch = "x86_64")]
        use std::arch::is_x86_feature_detected as has;
        #[cfg(target_arch = "x86_64")]
        let avx2 = has!("avx2") && has!("fma");
        #[cfg(target_arch = "aarch64")]
        let neon = has!("neon") && has!("dotprod");
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2Vnni => avx2 && has!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => {
                avx2 && has!("avx512f")
                    && has!("avx512bw")
                    && has!("avx512dq")
                    && has!("avx512vl")
                    && has!("avx512vnni")
            }
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => neon,
            #[cfg(target_arch = "aarch64")]
            Isa::NeonI8mm => neon && has!("i8mm"),
        }
    }
}
