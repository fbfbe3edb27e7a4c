//! Instruction sets, and the token that proves one is there.

use std::fmt;
use std::str::FromStr;

/// An instruction set that kernels are written for, from the plainest to the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// The scalar reference: the definition of every op.
    Scalar,
    /// x86-64 AVX2 and FMA; INT8 products by widening to 16 bits, exact.
    Avx2,
    /// AVX2 with `vpdpbusd` on 256-bit registers.
    AvxVnni,
    /// AVX-512 (F, BW, DQ, VL) with `vpdpbusd` on 512-bit registers.
    Avx512Vnni,
    /// AArch64 NEON with `sdot`, for INT8 products; everything else as [`Isa::Scalar`].
    NeonDotprod,
}

impl Isa {
    /// Every instruction set, plainest first among those of one architecture.
    pub const ALL: [Isa; 5] = [Isa::Scalar, Isa::Avx2, Isa::AvxVnni, Isa::Avx512Vnni, Isa::NeonDotprod];

    /// Name, as `SWINQ_ISA` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::AvxVnni => "avx_vnni",
            Isa::Avx512Vnni => "avx512_vnni",
            Isa::NeonDotprod => "neon_dotprod",
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn detected(self) -> bool {
        use std::arch::is_x86_feature_detected as has;
        let avx2 = has!("avx2") && has!("fma");
        match self {
            Isa::Scalar => true,
            Isa::Avx2 => avx2,
            Isa::AvxVnni => avx2 && has!("avxvnni"),
            Isa::Avx512Vnni => {
                avx2 && has!("avx512f")
                    && has!("avx512bw")
                    && has!("avx512dq")
                    && has!("avx512vl")
                    && has!("avx512vnni")
            }
            Isa::NeonDotprod => false,
        }
    }

    #[cfg(target_arch = "aarch64")]
    fn detected(self) -> bool {
        use std::arch::is_aarch64_feature_detected as has;
        match self {
            Isa::Scalar => true,
            Isa::NeonDotprod => has!("neon") && has!("dotprod"),
            Isa::Avx2 | Isa::AvxVnni | Isa::Avx512Vnni => false,
        }
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn detected(self) -> bool {
        self == Isa::Scalar
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Isa {
    type Err = IsaError;

    fn from_str(text: &str) -> Result<Isa, IsaError> {
        Isa::ALL.into_iter().find(|isa| isa.name() == text).ok_or_else(|| IsaError::Unknown(text.to_owned()))
    }
}

/// An instruction set that cannot be had.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum IsaError {
    /// Not a name of one.
    #[error(
        "`{0}` is no instruction set of swinq; use scalar, avx2, avx_vnni, avx512_vnni or neon_dotprod (SWINQ_ISA)"
    )]
    Unknown(String),
    /// This processor does not have it.
    #[error("this processor has no {0}; unset SWINQ_ISA, or set it to one that `swinq doctor` lists")]
    Absent(Isa),
}

/// Proof that the processor has an instruction set. Only detection creates one, so that holding a `Cpu` is what
/// makes the kernels' use of its instructions sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    isa: Isa,
}

impl Cpu {
    /// The fastest instruction set there is, or the one that the environment variable `SWINQ_ISA` names.
    ///
    /// # Errors
    /// `SWINQ_ISA` names nothing known, or something that this processor does not have.
    pub fn detect() -> Result<Cpu, IsaError> {
        let name = std::env::var_os("SWINQ_ISA").unwrap_or_default();
        if name.is_empty() {
            return Ok(Cpu::available().pop().expect("the scalar reference is always there"));
        }
        Cpu::with(name.to_string_lossy().parse()?)
    }

    /// The token of `isa`.
    ///
    /// # Errors
    /// This processor does not have it.
    pub fn with(isa: Isa) -> Result<Cpu, IsaError> {
        if isa.detected() { Ok(Cpu { isa }) } else { Err(IsaError::Absent(isa)) }
    }

    /// Every instruction set that this processor has, plainest first.
    pub fn available() -> Vec<Cpu> {
        Isa::ALL.into_iter().filter_map(|isa| Cpu::with(isa).ok()).collect()
    }

    /// The instruction set.
    pub fn isa(self) -> Isa {
        self.isa
    }
}
