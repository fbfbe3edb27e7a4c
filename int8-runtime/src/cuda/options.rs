//! How an engine runs on a GPU.

use std::fmt;
use std::str::FromStr;

pub use swinq_kernels::cuda::ops::StreamType;

/// Who computes the products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gemm {
    /// Our kernels, fused with what follows.
    Own,
    /// cuBLASLt, with a launch of ours after each linear layer. (Patch embedding, a head in f32, and products whose sizes are no
    /// multiples of 16 stay ours.)
    CublasLt,
    /// Whichever is faster, layer by layer; ours where nothing is measured, and for INT8 layers.
    Auto,
}

/// How the kernel of a linear layer is chosen, the first time that a GPU runs its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Autotune {
    /// By the program's tables of tiles that were measured on this GPU; by a model of the GPU where they have none.
    Table,
    /// By a model of the GPU.
    Off,
    /// By measuring the most promising candidates.
    Quick,
    /// By measuring every candidate.
    Full,
}

impl Autotune {
    /// Whether candidates are measured.
    pub fn measures(self) -> bool {
        matches!(self, Autotune::Quick | Autotune::Full)
    }
}

/// How an engine runs on a GPU.
#[derive(Clone, Copy, Debug)]
pub struct CudaOptions {
    /// Ordinal of the GPU.
    pub device: usize,
    /// Images run at a time, in `1..=`[`MAX_BATCH`](crate::MAX_BATCH). Larger batches are split. Memory grows with it.
    pub max_batch: usize,
    /// Elements of the residual stream.
    pub residual: StreamType,
    /// Who computes the products.
    pub gemm: Gemm,
    /// How kernels are chosen.
    pub autotune: Autotune,
    /// Marks inferences and launches for a profiler, with NVTX ranges of their names. An inference then puts its launches
    /// on the stream one by one instead of replaying a graph, in which a profiler could not tell them apart; it takes
    /// longer, and gives the same scores.
    pub nvtx: bool,
}

impl Default for CudaOptions {
    /// The first GPU, 32 images at a time, f16 residual stream, the kernels of the tables, no marks.
    fn default() -> CudaOptions {
        CudaOptions {
            device: 0,
            max_batch: 32,
            residual: StreamType::F16,
            gemm: Gemm::Auto,
            autotune: Autotune::Table,
            nvtx: false,
        }
    }
}

macro_rules! named {
    ($type:ident, $what:literal, $($name:literal => $variant:ident),*) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $($type::$variant => $name),* })
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<$type, String> {
                match text {
                    $($name => Ok($type::$variant),)*
                    _ => Err(format!("{} is one of {}", $what, [$($name),*].join(", "))),
                }
            }
        }
    };
}

named!(Gemm, "--gemm", "own" => Own, "cublaslt" => CublasLt, "auto" => Auto);
named!(Autotune, "--autotune", "table" => Table, "off" => Off, "quick" => Quick, "full" => Full);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written_and_others_are_refused_with_the_choices() {
        for gemm in [Gemm::Own, Gemm::CublasLt, Gemm::Auto] {
            assert_eq!(gemm.to_string().parse(), Ok(gemm));
        }
        for autotune in [Autotune::Table, Autotune::Off, Autotune::Quick, Autotune::Full] {
            assert_eq!(autotune.to_string().parse(), Ok(autotune));
        }
        assert_eq!("cublaslt".parse(), Ok(Gemm::CublasLt));
        for text in ["", "Own", "own ", "cublas"] {
            assert_eq!(text.parse::<Gemm>(), Err("--gemm is one of own, cublaslt, auto".to_owned()));
        }
        let error = "--autotune is one of table, off, quick, full";
        assert_eq!("on".parse::<Autotune>(), Err(error.to_owned()));
    }

    #[test]
    fn nothing_is_marked_unless_asked_for() {
        let options = CudaOptions::default();
        assert!(!options.nvtx && options.residual == StreamType::F16 && options.gemm == Gemm::Auto);
    }
}
