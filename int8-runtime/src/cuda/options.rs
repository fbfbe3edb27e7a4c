//! Options of an engine on a GPU.

use std::fmt;
use std::str::FromStr;

pub use swinq_cuda::ops::ResidualType;
use swinq_model::SwinConfig;
use swinq_model::quantized::F16Residual;

use crate::error::RuntimeError;

/// The library that computes the matrix products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gemm {
    /// Our kernels, with the epilogue in the same launch.
    Own,
    /// cuBLASLt, followed by one of our launches for the epilogue of each linear layer. Our kernels still
    /// compute the patch embedding, a head in f32, and layers whose sizes are not multiples of 16.
    CublasLt,
    /// The faster one for each layer. Our kernels compute layers that are not measured, and all INT8 layers.
    Auto,
}

/// How the kernel of a linear layer is chosen when a GPU runs its shape for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Autotune {
    /// From the program's tables of tiles that were measured on this GPU. If they have no entry, as `Off`.
    Table,
    /// By a cost model of the GPU.
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

/// Options of an engine on a GPU.
#[derive(Clone, Copy, Debug)]
pub struct CudaOptions {
    /// Index of the GPU.
    pub device: usize,
    /// Maximum number of images that run at a time, in `1..=`[`MAX_BATCH`](crate::MAX_BATCH). Larger batches
    /// are split. The engine's memory grows with it.
    pub max_batch: usize,
    /// The most pixels, height times width, of an image; 0 stands for as many as half of the free GPU memory
    /// holds. Images of the network's own size, and smaller ones, are always accepted.
    pub max_pixels: usize,
    /// The most streams of the caller that run at the same time, each with memory of its own; further streams
    /// wait for one another. A graph that the caller records counts as one as long as it lives, and so does
    /// inference from host memory.
    pub max_streams: usize,
    /// Element type of the residual stream; `None` is f16, or f32 for a model whose residual f16 cannot hold
    /// ([`residual_type`]).
    pub residual: Option<ResidualType>,
    /// The library that computes the matrix products.
    pub gemm: Gemm,
    /// How kernels are chosen.
    pub autotune: Autotune,
    /// Marks inferences and launches for a profiler, with NVTX ranges that have their names. A profiler
    /// cannot tell the launches of a graph apart, so launches are then put on the stream one by one. This
    /// takes longer but gives the same scores.
    pub nvtx: bool,
}

impl Default for CudaOptions {
    /// The first GPU, 32 images at a time, f16 residual stream where it fits, kernels from the tables, no
    /// profiler ranges.
    fn default() -> CudaOptions {
        CudaOptions {
            device: 0,
            max_batch: 32,
            max_pixels: 0,
            max_streams: 4,
            residual: None,
            gemm: Gemm::Auto,
            autotune: Autotune::Table,
            nvtx: false,
        }
    }
}

impl CudaOptions {
    /// The type of the residual stream that is asked for, f16 if none is. Engines and packed models have
    /// options that state it.
    pub(crate) fn residual(&self) -> ResidualType {
        self.residual.unwrap_or(ResidualType::F16)
    }
}

/// The element type of the residual stream of a model of the architecture `config` if `asked` is asked for
/// (option `residual`). `fit` says whether f16 holds its values. If nothing is asked for, it is f32 where f16
/// does not hold them, and where the rows of a stage are no whole groups of the columns that kernels for f16
/// read at once.
///
/// # Errors
/// [`RuntimeError::F16Residual`] if f16 is asked for and does not hold the values.
pub fn residual_type(
    asked: Option<ResidualType>,
    fit: F16Residual,
    config: &SwinConfig,
) -> Result<ResidualType, RuntimeError> {
    let group = ResidualType::F16.columns_at_once();
    let whole = config.stages().iter().all(|stage| stage.dim.is_multiple_of(group));
    match (asked, fit) {
        (Some(ResidualType::F16), F16Residual::TooLarge { .. }) => Err(RuntimeError::F16Residual { fit }),
        (None, F16Residual::TooLarge { .. }) => Ok(ResidualType::F32),
        (None, _) if !whole => Ok(ResidualType::F32),
        _ => Ok(asked.unwrap_or(ResidualType::F16)),
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
    fn an_f16_residual_that_does_not_fit_is_refused_and_is_f32_by_default() {
        let block = swinq_model::BlockId { stage: 1, block: 3 };
        let large = F16Residual::TooLarge { block, largest: 20_000.0 };
        let config = &SwinConfig::default();
        let error = residual_type(Some(ResidualType::F16), large, config).unwrap_err().to_string();
        for part in ["layers.1.blocks.3", "20000", "--residual f32"] {
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(residual_type(Some(ResidualType::F32), large, config).unwrap(), ResidualType::F32);
        assert_eq!(residual_type(None, large, config).unwrap(), ResidualType::F32);
        for fit in [F16Residual::Fits, F16Residual::Unknown] {
            assert_eq!(residual_type(None, fit, config).unwrap(), ResidualType::F16);
            for asked in [ResidualType::F16, ResidualType::F32] {
                assert_eq!(residual_type(Some(asked), fit, config).unwrap(), asked);
            }
        }
    }

    #[test]
    fn a_residual_of_odd_groups_is_f32_by_default() {
        let config =
            SwinConfig { embed_dim: 60, num_heads: vec![6], depths: vec![2], ..SwinConfig::default() };
        assert_eq!(residual_type(None, F16Residual::Fits, &config).unwrap(), ResidualType::F32);
        let asked = Some(ResidualType::F16);
        assert_eq!(residual_type(asked, F16Residual::Fits, &config).unwrap(), ResidualType::F16);
    }

    #[test]
    fn nothing_is_marked_unless_asked_for() {
        let options = CudaOptions::default();
        assert!(!options.nvtx && options.residual.is_none() && options.gemm == Gemm::Auto);
    }
}
