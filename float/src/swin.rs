//! The whole network, from normalised images to logits.

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};

use crate::Sites;
use crate::block::{BlockContext, attention_half, linear, mlp_half};
use crate::error::FloatError;
use crate::ops::{Gather, Norm, Ops, taped};
use crate::packed::Packing;
use crate::segment::Segment;
use crate::tape::Tape;
use crate::weights::{LinearWeights, Source, StageWeights, Windows};
use swinq_model::ModelError;
use swinq_model::arch::{Stage, SwinConfig};
use swinq_model::batch::{Batch, Transform};
use swinq_model::params::check_parameters;
use swinq_model::position::relative_coordinates;
use swinq_model::site::{BlockId, Half, Linear, Site};
use swinq_model::tensor::StateDict;

/// A Swin in float, which runs with any [`Sites`].
pub struct Swin {
    config: SwinConfig,
    device: Device,
    ops: Ops,
    patch_embed: LinearWeights,
    patch_norm: Option<Norm>,
    /// `[tokens, embed_dim]`.
    position: Option<Tensor>,
    stages: Vec<StageWeights>,
    maps: Vec<StageMaps>,
    norm: Norm,
    head: LinearWeights,
}

/// The index maps of a stage: the windows of even and of odd blocks, and patch merging.
struct StageMaps {
    windows: [Windows; 2],
    relative_index: Tensor,
    /// The inputs of the MLP that gives the relative position bias in Swin V2, `[(2 window - 1)^2, 2]`.
    coordinates: Tensor,
    merge: Gather,
}

impl StageMaps {
    fn new(config: &SwinConfig, stage: &Stage, device: &Device) -> Result<StageMaps, FloatError> {
        let windows = |shift| Windows::new(stage, shift, config.mask as f32, device);
        let coordinates = relative_coordinates(config, stage);
        let rows = coordinates.len();
        let coordinates = coordinates.into_iter().flatten().map(|c| c as f32).collect();
        let index: Vec<u32> = stage.relative_position_index().into_iter().map(|i| i as u32).collect();
        Ok(StageMaps {
            windows: [windows(0)?, windows(stage.shift)?],
            relative_index: Tensor::new(index, device)?,
            coordinates: Tensor::from_vec(coordinates, (rows, 2), device)?,
            merge: Gather::new(stage.tokens(), 4, stage.merge_sources().into_iter().flatten()),
        })
    }
}

impl Swin {
    /// The network of `config` for inference on `device`; `tensors` are its parameters in Microsoft's naming.
    ///
    /// # Errors
    /// The errors of [`SwinConfig::validate`] and [`check_parameters`].
    pub fn new(config: &SwinConfig, tensors: &StateDict, device: &Device) -> Result<Swin, FloatError> {
        config.validate()?;
        check_parameters(config, tensors)?;
        let mut moved = BTreeMap::new();
        for (name, tensor) in tensors {
            moved.insert(name.clone(), Tensor::from_slice(&tensor.data, tensor.shape.as_slice(), device)?);
        }
        Swin::assemble(config, &moved, Some(tensors), device, Ops::for_inference(device))
    }

    /// The network of `config`, differentiable by candle. `tensors` are on `device` and may be variables; the
    /// forward pass uses their current values.
    ///
    /// # Errors
    /// An invalid configuration, or a missing tensor. Shapes are not checked.
    pub fn differentiable(
        config: &SwinConfig,
        tensors: &BTreeMap<String, Tensor>,
        device: &Device,
    ) -> Result<Swin, FloatError> {
        config.validate()?;
        Swin::assemble(config, tensors, None, device, Ops::Composed)
    }

    /// The network of `config`, differentiable by `tape`, on which its operations are recorded. The tape must
    /// watch the tensors whose gradients are needed.
    ///
    /// # Errors
    /// The errors of [`Swin::differentiable`].
    pub fn taped(
        config: &SwinConfig,
        tensors: &BTreeMap<String, Tensor>,
        device: &Device,
        tape: &Tape,
    ) -> Result<Swin, FloatError> {
        config.validate()?;
        Swin::assemble(config, tensors, None, device, Ops::Taped(tape.clone()))
    }

    fn assemble(
        config: &SwinConfig,
        tensors: &BTreeMap<String, Tensor>,
        fixed: Option<&StateDict>,
        device: &Device,
        ops: Ops,
    ) -> Result<Swin, FloatError> {
        // The tape identifies tensors by id, and a squeezed view has another id.
        let taped = matches!(ops, Ops::Taped(_));
        let packing = Packing::new(ops.clone())?;
        let source = Source { config, tensors, fixed, packing, device: device.clone() };
        let position = config.ape.then(|| source.tensor("absolute_pos_embed")).transpose()?;
        let stages = config.stages();
        Ok(Swin {
            patch_embed: source.linear(Linear::PatchEmbed)?,
            patch_norm: config.patch_norm.then(|| source.norm("patch_embed.norm")).transpose()?,
            position: position.map(|p| if taped { Ok(p) } else { p.squeeze(0) }).transpose()?,
            maps: stages
                .iter()
                .map(|stage| StageMaps::new(config, stage, device))
                .collect::<Result<_, _>>()?,
            stages: stages.into_iter().map(|stage| source.stage(stage)).collect::<Result<_, _>>()?,
            norm: source.norm("norm")?,
            head: source.linear(Linear::Head)?,
            config: config.clone(),
            device: device.clone(),
            ops,
        })
    }

    /// The architecture.
    pub fn config(&self) -> &SwinConfig {
        &self.config
    }

    /// The normalised images of `batch`: f32 `[n, 3, size, size]`.
    ///
    /// # Errors
    /// [`ModelError::Config`] for a batch of another image size.
    pub fn images(&self, batch: &Batch, transform: &Transform) -> Result<Tensor, FloatError> {
        let (n, size) = (batch.len(), self.config.image_size);
        if batch.size != size || batch.pixels.len() != n * size * size * 3 {
            let problem = format!(
                "the model takes {size}x{size} pixels, but the batch has {} images of {}x{} in {} bytes",
                n,
                batch.size,
                batch.size,
                batch.pixels.len()
            );
            return Err(ModelError::config("DATA.IMG_SIZE", problem).into());
        }
        let table = transform.lookup();
        let mut values = Vec::with_capacity(batch.pixels.len());
        for image in batch.pixels.chunks_exact(size * size * 3) {
            for (channel, row) in table.iter().enumerate() {
                values.extend(image[channel..].iter().step_by(3).map(|&byte| row[usize::from(byte)]));
            }
        }
        Ok(Tensor::from_vec(values, (n, 3, size, size), &self.device)?)
    }

    /// Logits `[n, classes]` of normalised images, f32 `[n, 3, size, size]`, or of their patches
    /// `[n * grid^2, 3 * patch^2]`.
    ///
    /// # Errors
    /// [`ModelError::Config`] for images of another shape, and errors of `sites`.
    pub fn forward(&self, images: &Tensor, sites: &mut dyn Sites) -> Result<Tensor, FloatError> {
        let (n, size) = (images.dim(0)?, self.config.image_size);
        let (grid, patch) = (self.config.grid(), self.config.patch_size);
        let patches = images.dims() == [n, 3 * patch * patch] && n.is_multiple_of(grid * grid);
        if !patches && images.dims() != [n, 3, size, size] {
            let problem = format!("the model takes [n, 3, {size}, {size}], not {:?}", images.dims());
            return Err(ModelError::config("DATA.IMG_SIZE", problem).into());
        }
        let mut segments = Segment::all(&self.config).into_iter();
        segments.try_fold(images.clone(), |x, segment| self.run(segment, x, sites))
    }

    /// The output of one segment for its input `x`. A forward pass runs every segment of [`Segment::all`] on the
    /// output of the one before.
    ///
    /// # Errors
    /// An input of another shape than [`Segment`] states, and errors of `sites`.
    ///
    /// # Panics
    /// If the network does not have the segment.
    pub fn run(&self, segment: Segment, x: Tensor, sites: &mut dyn Sites) -> Result<Tensor, FloatError> {
        match segment {
            Segment::Embed => self.embed(&x, sites),
            Segment::Half(id, half) => self.half(id, half, x, sites),
            Segment::Merge(stage) => {
                let (norm, reduction) =
                    self.stages[stage].merge.as_ref().expect("the stage ends with merging");
                let gather = &self.maps[stage].merge;
                if self.config.post_norm() {
                    let x = linear(self.ops.gather(&x, gather)?, reduction, sites)?;
                    return Ok(self.ops.norm(&x, norm)?);
                }
                linear(self.ops.gather_then_norm(&x, gather, norm)?, reduction, sites)
            }
            Segment::Head => {
                let tokens = self.stages.last().expect("there is a stage").stage.tokens();
                let x = self.ops.norm(&x, &self.norm)?;
                let features = self.ops.mean_rows(&x, x.dim(0)? / tokens)?;
                linear(features, &self.head, sites)
            }
        }
    }

    /// Replaces the bias `[out]` of `linear`, in a network for inference.
    ///
    /// # Errors
    /// Candle's errors.
    ///
    /// # Panics
    /// If the network does not have the layer, the layer has no bias, or `bias` has another length.
    pub fn set_bias(&mut self, linear: Linear, bias: &[f32]) -> Result<(), FloatError> {
        Ok(self.linear_mut(linear).set_bias(bias)?)
    }

    /// Patch embedding: images `[n, 3, size, size]`, or their patches, to tokens `[n * grid^2, embed_dim]`.
    fn embed(&self, images: &Tensor, sites: &mut dyn Sites) -> Result<Tensor, FloatError> {
        let images = sites.activation(Site::Input(Linear::PatchEmbed), images.clone())?;
        let patches = if images.dims().len() == 2 { images } else { self.patches(&images)? };
        let x = sites.linear(&self.patch_embed, &patches)?;
        let x = match &self.patch_norm {
            Some(norm) => self.ops.norm(&x, norm)?,
            None => x,
        };
        let Some(position) = &self.position else { return Ok(x) };
        if let Ops::Taped(tape) = &self.ops {
            return Ok(taped::add_rows(tape, &x, position)?);
        }
        let (rows, c) = x.dims2()?;
        let tokens = position.dim(0)?;
        Ok(x.reshape((rows / tokens, tokens, c))?.broadcast_add(position)?.reshape((rows, c))?)
    }

    /// Gathers the values of each patch into a row: `[n, 3, size, size]` to `[n * grid^2, 3 * patch^2]`.
    fn patches(&self, images: &Tensor) -> Result<Tensor, FloatError> {
        let (n, grid, patch) = (images.dim(0)?, self.config.grid(), self.config.patch_size);
        let cut = images.reshape(vec![n, 3, grid, patch, grid, patch])?.permute(vec![0, 2, 4, 1, 3, 5])?;
        Ok(cut.contiguous()?.reshape((n * grid * grid, 3 * patch * patch))?)
    }

    fn half(&self, id: BlockId, half: Half, x: Tensor, sites: &mut dyn Sites) -> Result<Tensor, FloatError> {
        let (weights, maps) = (&self.stages[id.stage], &self.maps[id.stage]);
        let context = BlockContext {
            stage: &weights.stage,
            post_norm: self.config.post_norm(),
            coordinates: &maps.coordinates,
            windows: &maps.windows[id.block % 2],
            relative_index: &maps.relative_index,
            ops: &self.ops,
        };
        match half {
            Half::Attn => attention_half(x, &weights.blocks[id.block], &context, sites),
            Half::Mlp => mlp_half(x, &weights.blocks[id.block], &context, sites),
        }
    }

    fn linear_mut(&mut self, linear: Linear) -> &mut LinearWeights {
        let stages = &mut self.stages;
        match linear {
            Linear::PatchEmbed => &mut self.patch_embed,
            Linear::Qkv(id) => &mut stages[id.stage].blocks[id.block].qkv,
            Linear::Proj(id) => &mut stages[id.stage].blocks[id.block].proj,
            Linear::Fc1(id) => &mut stages[id.stage].blocks[id.block].fc1,
            Linear::Fc2(id) => &mut stages[id.stage].blocks[id.block].fc2,
            Linear::Reduction(stage) => {
                &mut stages[stage].merge.as_mut().expect("the stage ends with merging").1
            }
            Linear::Head => &mut self.head,
        }
    }
}
