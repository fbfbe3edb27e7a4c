//! The index maps of a network for one image size.

use candle_core::{Device, Tensor};
use swinq_model::arch::{Grid, Size, Stage, SwinConfig};
use swinq_model::position::relative_coordinates;

use crate::error::FloatError;
use crate::ops::Gather;

/// The index maps of every stage for one image size.
pub struct Maps {
    /// Height and width of the images.
    pub(crate) image: Size,
    /// Every stage.
    pub(crate) stages: Vec<StageMaps>,
    /// The absolute position embedding, where it is interpolated for this size.
    pub(crate) position: Option<Tensor>,
}

impl Maps {
    /// The maps of `config` for images of `image` pixels, on `device`.
    ///
    /// # Errors
    /// An image that the network cannot process ([`SwinConfig::grids`]).
    pub(crate) fn new(config: &SwinConfig, image: Size, device: &Device) -> Result<Maps, FloatError> {
        let grids = config.grids(image)?.into_iter().zip(config.stages());
        let stages = grids.map(|(grid, stage)| StageMaps::new(config, &stage, grid, device));
        Ok(Maps { image, stages: stages.collect::<Result<_, _>>()?, position: None })
    }
}

/// The index maps of a stage: the windows of even and of odd blocks, and patch merging.
pub(crate) struct StageMaps {
    pub grid: Grid,
    pub windows: [Windows; 2],
    /// Rows of the bias table, `[n * n]`.
    pub relative_index: Tensor,
    /// The inputs of the MLP that gives the relative position bias in Swin V2, `[bias_rows, 2]`.
    pub coordinates: Tensor,
    pub merge: Gather,
}

impl StageMaps {
    fn new(config: &SwinConfig, stage: &Stage, grid: Grid, device: &Device) -> Result<StageMaps, FloatError> {
        let windows = |shifted| Windows::new(stage, &grid, shifted, config.mask as f32, device);
        let coordinates = relative_coordinates(config, stage);
        let rows = coordinates.len();
        let coordinates = coordinates.into_iter().flatten().map(|c| c as f32).collect();
        let index: Vec<u32> = stage.relative_position_index().into_iter().map(|i| i as u32).collect();
        Ok(StageMaps {
            windows: [windows(false)?, windows(true)?],
            relative_index: Tensor::new(index, device)?,
            coordinates: Tensor::from_vec(coordinates, (rows, 2), device)?,
            merge: Gather::new(grid.tokens(), 4, grid.merge_sources()),
            grid,
        })
    }
}

/// The windows of the even blocks of a stage, or of its odd blocks.
pub(super) struct Windows {
    pub partition: Gather,
    pub reverse: Gather,
    /// The number of the mask of each window.
    pub masks: Vec<u8>,
    /// The masks of the windows, `[windows, n, n]`; `None` if nothing is masked.
    pub mask: Option<Tensor>,
}

impl Windows {
    /// `masked` is added to the logits of tokens that must not attend to each other.
    fn new(
        stage: &Stage,
        grid: &Grid,
        shifted: bool,
        masked: f32,
        device: &Device,
    ) -> Result<Windows, FloatError> {
        let partition = Gather::new(grid.tokens(), 1, grid.partition(shifted));
        let (reverse, masks) = (partition.inverse(), grid.masks(shifted));
        let is_masked = masks.iter().any(|&mask| mask != 0);
        let mask = is_masked.then(|| mask(stage, &masks, masked, device)).transpose()?;
        Ok(Windows { partition, reverse, masks, mask })
    }
}

fn mask(stage: &Stage, masks: &[u8], masked: f32, device: &Device) -> Result<Tensor, FloatError> {
    let (n, regions) = (stage.window_tokens(), stage.mask_regions());
    let mut mask = Vec::with_capacity(masks.len() * n * n);
    for &number in masks {
        let regions = &regions[usize::from(number) * n..][..n];
        for a in regions {
            mask.extend(regions.iter().map(|b| if a == b { 0.0 } else { masked }));
        }
    }
    Ok(Tensor::from_vec(mask, (masks.len(), n, n), device)?)
}
