//! Description of a kernel to compile: a file, its entry point, and the constants for which it is
//! specialised.

use std::fmt;

/// A kernel and how to compile it. Programs that differ only in the entry are compiled together.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Program {
    /// File of [`sources`](super::sources), such as `gemm.cu`.
    pub file: &'static str,
    /// Name of the kernel, an `extern "C" __global__` function.
    pub entry: &'static str,
    /// Macros: names and values.
    pub defines: Vec<(&'static str, i64)>,
    /// Maximum registers per thread, if limited.
    pub max_registers: Option<u32>,
}

impl Program {
    /// The kernel `entry` of `file`, without defines and without a limit on registers.
    pub fn new(file: &'static str, entry: &'static str) -> Program {
        Program { file, entry, defines: Vec::new(), max_registers: None }
    }

    /// Defines the macro `name` as `value`.
    #[must_use]
    pub fn define(mut self, name: &'static str, value: i64) -> Program {
        self.defines.push((name, value));
        self
    }

    /// The compiler's flags, except the architecture. Arithmetic is IEEE: no contraction, no flush to zero,
    /// correctly rounded division and square root. `-v` adds the resources of each kernel to the log.
    pub(crate) fn flags(&self) -> Vec<String> {
        let fixed = [
            "--std=c++17",
            "--fmad=false",
            "--prec-div=true",
            "--prec-sqrt=true",
            "--ftz=false",
            "-default-device",
            "--ptxas-options=-v",
        ];
        let mut flags: Vec<String> = fixed.map(str::to_owned).into();
        flags.extend(self.defines.iter().map(|(name, value)| format!("-D{name}={value}")));
        flags.extend(self.max_registers.map(|n| format!("--maxrregcount={n}")));
        flags
    }

    /// The unit that is compiled and loaded together.
    pub(crate) fn unit(&self) -> Unit {
        Unit { file: self.file, defines: self.defines.clone(), max_registers: self.max_registers }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.entry)?;
        self.defines.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

/// A [`Program`] without its entry.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Unit {
    file: &'static str,
    defines: Vec<(&'static str, i64)>,
    max_registers: Option<u32>,
}
