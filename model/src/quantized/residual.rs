//! The magnitude of the residual stream in a calibration, and the rule that says whether f16 holds it.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::QuantizedModel;
use crate::arch::SwinConfig;
use crate::error::ModelError;
use crate::site::BlockId;

/// The largest finite f16.
pub const F16_MAX: f32 = 65504.0;

/// How many times the magnitude of a calibration has to fit f16, because other images have larger values. Of
/// trained Swins, 50 to 250 images reach up to 1.7 times as much as 8 of them, and images of noise, of flat
/// colours and of stripes no more than photographs.
pub const F16_MARGIN: f32 = 4.0;

/// The largest magnitude of the residual stream in each block, one list for each stage: of the stream that
/// the block reads, of the stream after each of its two additions, and of the results of the linear layers
/// that write to it, before a norm.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ResidualRange(Vec<Vec<f32>>);

impl ResidualRange {
    /// The range of these blocks; `None` if there are none.
    pub fn of(blocks: &BTreeMap<BlockId, f32>) -> Option<ResidualRange> {
        let mut stages: Vec<Vec<f32>> = Vec::new();
        for (id, &largest) in blocks {
            stages.resize(stages.len().max(id.stage + 1), Vec::new());
            stages[id.stage].push(largest);
        }
        (!stages.is_empty()).then_some(ResidualRange(stages))
    }

    /// The magnitudes `found` at the layers of `config`, by its blocks. A stack of blocks has stages that
    /// merge only: a magnitude there counts for the nearest block before it, or else behind it.
    pub fn by_block(config: &SwinConfig, found: &BTreeMap<BlockId, f32>) -> BTreeMap<BlockId, f32> {
        let depths = &config.depths;
        let last = |stage: usize| Some(BlockId { stage, block: depths[stage].checked_sub(1)? });
        let mut blocks: BTreeMap<BlockId, f32> = BTreeMap::new();
        for (&id, &largest) in found {
            let here = (id.block < depths[id.stage]).then_some(id);
            let before = || (0..=id.stage).rev().find_map(last);
            let behind = || (id.stage..depths.len()).find(|&stage| depths[stage] > 0);
            let id = here.or_else(before).or_else(|| behind().map(|stage| BlockId { stage, block: 0 }));
            let most = blocks.entry(id.expect("a network has a block")).or_default();
            *most = most.max(largest);
        }
        blocks
    }

    /// The largest magnitude, and the first block that has it.
    pub fn largest(&self) -> (BlockId, f32) {
        let blocks = self.0.iter().enumerate().flat_map(|(stage, blocks)| {
            blocks.iter().enumerate().map(move |(block, &largest)| (BlockId { stage, block }, largest))
        });
        let first = (BlockId { stage: 0, block: 0 }, 0.0);
        blocks.fold(first, |most, one| if one.1 > most.1 { one } else { most })
    }

    /// Checks that there is a usable number for each block of `config`.
    ///
    /// # Errors
    /// [`ModelError::Config`].
    pub fn check(&self, config: &SwinConfig) -> Result<(), ModelError> {
        let refuse = |problem: String| Err(ModelError::config("provenance.calibration.residual", problem));
        let depths: Vec<usize> = self.0.iter().map(Vec::len).collect();
        // A stack of blocks may end with a stage that has none.
        let blocks = config.depths.iter().rposition(|&depth| depth > 0).map_or(0, |last| last + 1);
        if depths != config.depths[..blocks] {
            return refuse(format!(
                "has numbers of {depths:?} blocks, but the model has {:?}; calibrate again",
                config.depths
            ));
        }
        match self.0.iter().flatten().find(|largest| !(largest.is_finite() && **largest >= 0.0)) {
            Some(largest) => refuse(format!("has {largest}, which is no magnitude; calibrate again")),
            None => Ok(()),
        }
    }
}

/// Whether f16 holds the residual stream of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum F16Residual {
    /// It does, with [`F16_MARGIN`].
    Fits,
    /// It does not.
    TooLarge {
        /// The block with the largest magnitude.
        block: BlockId,
        /// The magnitude in the calibration.
        largest: f32,
    },
    /// The model does not state the magnitude: its calibration read no image or is of an older version, or it
    /// is in float.
    Unknown,
}

/// The reason, as part of a sentence.
impl fmt::Display for F16Residual {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            F16Residual::Fits => f.write_str("the residual stream fits f16"),
            F16Residual::TooLarge { block, largest } => write!(
                f,
                "the residual stream reaches {largest} in {block} on the calibration's images, and f16 is safe up to {} (it ends at \
                 {F16_MAX}, and other images reach more)",
                F16_MAX / F16_MARGIN
            ),
            F16Residual::Unknown => {
                f.write_str("the model does not state the largest magnitude of its residual stream")
            }
        }
    }
}

impl QuantizedModel {
    /// Whether f16 holds the residual stream: [`F16_MARGIN`] times the magnitude of the calibration is at
    /// most [`F16_MAX`].
    pub fn f16_residual(&self) -> F16Residual {
        let range = self.provenance.calibration.as_ref().and_then(|record| record.residual.as_ref());
        match range.map(ResidualRange::largest) {
            None => F16Residual::Unknown,
            Some((_, largest)) if largest * F16_MARGIN <= F16_MAX => F16Residual::Fits,
            Some((block, largest)) => F16Residual::TooLarge { block, largest },
        }
    }
}
