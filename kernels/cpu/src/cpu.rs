//! The token that proves which instructions the processor has.

use std::fmt;

use crate::isa::Isa;
use crate::linear::KERNELS;
use crate::linear::kernel::Int8Kernel;

/// A kernel name that cannot be used here.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum CpuError {
    /// No kernel for this type of processor has that name.
    #[error(
        "`{name}` is not a kernel of swinq for {}; use one of: {} (SWINQ_ISA)",
        std::env::consts::ARCH,
        known.join(", ")
    )]
    Unknown {
        /// The name.
        name: String,
        /// The names of all kernels for this type of processor.
        known: Vec<&'static str>,
    },
    /// The processor lacks the instructions, or the operating system does not permit their use.
    #[error("no {name} here: {reason}; unset SWINQ_ISA, or set it to another name that `swinq doctor` lists")]
    Absent {
        /// The name.
        name: &'static str,
        /// The missing feature of the processor.
        reason: String,
    },
}

/// The INT8 kernel to use, and proof that this processor has the instructions of the kernel and of its
/// [`Isa`].
///
/// Only detection creates a `Cpu`, so code that holds a `Cpu` may run these instructions soundly.
#[derive(Clone, Copy)]
pub struct Cpu {
    kernel: &'static Int8Kernel,
}

impl Cpu {
    /// The fastest kernel that this processor can run, or the one that the environment variable `SWINQ_ISA`
    /// names.
    ///
    /// # Errors
    /// `SWINQ_ISA` names no kernel, or one that this processor cannot run.
    pub fn detect() -> Result<Cpu, CpuError> {
        let name = std::env::var_os("SWINQ_ISA").unwrap_or_default();
        if name.is_empty() {
            return Ok(Cpu::fastest(KERNELS));
        }
        Cpu::named(&name.to_string_lossy())
    }

    /// The kernel named `name`.
    ///
    /// # Errors
    /// No kernel has that name, or this processor cannot run it.
    pub fn named(name: &str) -> Result<Cpu, CpuError> {
        let Some(&kernel) = KERNELS.iter().find(|kernel| kernel.name == name) else {
            let known = KERNELS.iter().map(|kernel| kernel.name).collect();
            return Err(CpuError::Unknown { name: name.to_owned(), known });
        };
        match kernel.absence() {
            None => Ok(Cpu { kernel }),
            Some(reason) => Err(CpuError::Absent { name: kernel.name, reason }),
        }
    }

    /// The last of `kernels` that this processor can run.
    pub(crate) fn fastest(kernels: &[&'static Int8Kernel]) -> Cpu {
        let found = kernels.iter().rev().find(|kernel| kernel.is_available());
        found.map_or(Cpu::scalar(), |&kernel| Cpu { kernel })
    }

    /// The scalar reference, which every processor can run.
    pub fn scalar() -> Cpu {
        Cpu { kernel: KERNELS[0] }
    }

    /// Every kernel that this processor can run, simplest first.
    pub fn available() -> Vec<Cpu> {
        KERNELS.iter().filter(|kernel| kernel.is_available()).map(|&kernel| Cpu { kernel }).collect()
    }

    /// The name of every kernel for this type of processor that cannot be used here, and the reason.
    pub fn absent() -> Vec<(&'static str, String)> {
        Cpu::absent_of(KERNELS)
    }

    /// [`Cpu::absent`] among `kernels`.
    pub(crate) fn absent_of(kernels: &[&'static Int8Kernel]) -> Vec<(&'static str, String)> {
        kernels.iter().filter_map(|kernel| Some((kernel.name, kernel.absence()?))).collect()
    }

    /// The kernel's name, as `SWINQ_ISA` takes it.
    pub fn name(self) -> &'static str {
        self.kernel.name
    }

    /// The vector registers that ops other than INT8 products use.
    pub fn isa(self) -> Isa {
        self.kernel.isa
    }

    /// About how many rows one task of a [`FusedBlock`](crate::FusedBlock) should have: enough to reuse each
    /// weight that the task reads, few enough for intermediate results to stay in the second-level cache.
    pub fn fused_block_rows(self) -> usize {
        self.kernel.fused_block_rows
    }

    /// Minimum rows per thread before the rows of a fused block are split over threads; every thread then
    /// reads all weights.
    pub fn min_rows_per_thread(self) -> usize {
        self.kernel.min_rows_per_thread
    }

    /// About how many multiply-accumulates of a whole network one thread does in a nanosecond.
    pub fn macs_per_ns(self) -> u64 {
        self.kernel.macs_per_ns
    }

    pub(crate) fn kernel(self) -> &'static Int8Kernel {
        self.kernel
    }
}

impl fmt::Display for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cpu({})", self.name())
    }
}

impl PartialEq for Cpu {
    fn eq(&self, other: &Cpu) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Cpu {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_the_scalar_reference_comes_first() {
        for (i, kernel) in KERNELS.iter().enumerate() {
            assert!(KERNELS[..i].iter().all(|other| other.name != kernel.name), "{}", kernel.name);
        }
        assert_eq!((Cpu::scalar().name(), Cpu::scalar().isa()), ("scalar", Isa::Scalar));
        assert!(Cpu::available().contains(&Cpu::scalar()));
    }

    #[test]
    fn a_kernel_is_found_by_its_name() {
        for cpu in Cpu::available() {
            assert_eq!(Cpu::named(cpu.name()), Ok(cpu));
        }
        for (name, reason) in Cpu::absent() {
            assert_eq!(Cpu::named(name), Err(CpuError::Absent { name, reason: reason.clone() }));
            assert!(Cpu::available().iter().all(|cpu| cpu.name() != name), "{name}: {reason}");
        }
        assert_eq!(Cpu::available().len() + Cpu::absent().len(), KERNELS.len());
        let error = Cpu::named("mmx").unwrap_err();
        assert!(error.to_string().starts_with("`mmx` is not a kernel of swinq"), "{error}");
        assert!(error.to_string().contains("scalar"), "{error}");
    }
}
