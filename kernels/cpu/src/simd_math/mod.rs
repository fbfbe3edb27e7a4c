//! [`swinq_numerics::reference::gelu`] and [`swinq_numerics::reference::exp`] on vector registers, bit for
//! bit, for epilogues and attention. Both are inlined into loops that keep their constants in registers.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;

#[cfg(test)]
mod tests;
