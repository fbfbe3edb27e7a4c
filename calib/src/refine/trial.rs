//! The transforms of layers, and the result of a trial of one.

use swinq_model::Linear;

/// A transform of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refinement {
    /// Outlier channels move from the norm before the layer into its weight.
    MigrateNorm,
    /// Outlier channels move from the values of attention into the projection.
    MigrateValues,
    /// Hidden channels have their own scales and zero points.
    HiddenChannels,
    /// The ranges of queries, keys and values are chosen by the error of attention.
    AttentionRanges,
    /// The range of the input is chosen by the error of the output.
    Range,
    /// The mean error of the output is subtracted from the bias.
    BiasCorrection,
    /// The codes and the bias are chosen by the error of the output in the network that is quantized so far.
    Rounding,
}

impl std::fmt::Display for Refinement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Refinement::MigrateNorm => "migration from the norm",
            Refinement::MigrateValues => "migration from the values",
            Refinement::HiddenChannels => "codes per hidden channel",
            Refinement::AttentionRanges => "range search in attention",
            Refinement::Range => "range search",
            Refinement::BiasCorrection => "bias correction",
            Refinement::Rounding => "rounding by output error",
        })
    }
}

/// A transform that was tried at a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    /// The layer.
    pub layer: Linear,
    /// The transform.
    pub transform: Refinement,
    /// Mean squared error of the layer's output without the transform, on held-out rows.
    pub before: f64,
    /// The error with it.
    pub after: f64,
}

impl Trial {
    /// Whether the transform was kept: it lowers the error.
    pub fn kept(&self) -> bool {
        self.after < self.before
    }

    /// By how many dB the transform lowers the error.
    pub fn gain_db(&self) -> f64 {
        10.0 * libm::log10(self.before / self.after)
    }
}
