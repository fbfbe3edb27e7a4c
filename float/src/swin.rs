//! The whole network, from normalised images to logits or feature maps.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{Device, Tensor};

use crate::Sites;
use crate::block::{BlockContext, attention_branch, linear, mlp_branch};
use crate::error::FloatError;
use crate::maps::{Maps, StageMaps};
use crate::ops::{Compute, Norm, Ops};
use crate::segment::Segment;
use crate::weights::{LinearWeights, Source, StageWeights};
use swinq_model::ModelError;
use swinq_model::arch::{Input, Size, SwinConfig};
use swinq_model::batch::{Batch, Transform};
use swinq_model::params::check_parameters;
use swinq_model::site::{BlockId, Branch, Linear, Site};
use swinq_model::tensor::StateDict;
use swinq_numerics::reference::resize_bicubic;

/// Number of image sizes whose maps are kept, beside the network's own size.
const SIZES: usize = 16;

/// A Swin in float, which runs with any [`Sites`].
pub struct Swin {
    config: SwinConfig,
    device: Device,
    ops: Ops,
    /// `None` in a network of tokens.
    patch_embed: Option<LinearWeights>,
    patch_norm: Option<Norm>,
    /// `[1, tokens, embed_dim]`, for the network's own image size.
    position: Option<Tensor>,
    /// Whether the parameters never change: the network is for inference.
    is_fixed: bool,
    stages: Vec<StageWeights>,
    /// For the network's own image size.
    maps: Arc<Maps>,
    /// For other image sizes, those used last.
    other_maps: Mutex<Vec<Arc<Maps>>>,
    /// The norm of each output of a backbone, in their order.
    output_norms: Vec<Option<Norm>>,
    /// The last norm and the layer of a classifier.
    head: Option<(Norm, LinearWeights)>,
}

impl Swin {
    /// The network of `config` for inference on `device`; `tensors` are its parameters in Microsoft's naming.
    ///
    /// # Errors
    /// The errors of [`SwinConfig::validate`], [`check_parameters`] and [`Compute::host`].
    pub fn new(config: &SwinConfig, tensors: &StateDict, device: &Device) -> Result<Swin, FloatError> {
        config.validate()?;
        check_parameters(config, tensors)?;
        let mut moved = BTreeMap::new();
        for (name, tensor) in tensors {
            moved.insert(name.clone(), Tensor::from_slice(&tensor.data, tensor.shape.as_slice(), device)?);
        }
        Swin::assemble(config, &moved, Some(tensors), device, Compute::for_inference(device)?.into())
    }

    /// The network of `config` with the operations `ops`, for gradients. The forward pass uses the current
    /// values of `tensors`, which are on `device`. A tape must watch those whose gradients are needed;
    /// without one, in candle's operations, they may be candle's variables.
    ///
    /// # Errors
    /// An invalid configuration, or a missing tensor. Shapes are not checked.
    pub fn with_ops(
        config: &SwinConfig,
        tensors: &BTreeMap<String, Tensor>,
        device: &Device,
        ops: Ops,
    ) -> Result<Swin, FloatError> {
        config.validate()?;
        Swin::assemble(config, tensors, None, device, ops)
    }

    fn assemble(
        config: &SwinConfig,
        tensors: &BTreeMap<String, Tensor>,
        fixed: Option<&StateDict>,
        device: &Device,
        ops: Ops,
    ) -> Result<Swin, FloatError> {
        let source = Source { config, tensors, fixed, ops: ops.clone(), device: device.clone() };
        Ok(Swin {
            patch_embed: match config.input {
                Input::Images => Some(source.linear(Linear::PatchEmbed)?),
                Input::Tokens => None,
            },
            patch_norm: config.patch_norm.then(|| source.norm("patch_embed.norm")).transpose()?,
            position: config.ape.then(|| source.tensor("absolute_pos_embed")).transpose()?,
            is_fixed: fixed.is_some(),
            maps: Arc::new(Maps::new(config, config.image_size, device)?),
            other_maps: Mutex::default(),
            stages: config.stages().into_iter().map(|stage| source.stage(stage)).collect::<Result<_, _>>()?,
            output_norms: (config.outputs.iter())
                .map(|output| output.norm_name().map(|name| source.norm(&name)).transpose())
                .collect::<Result<_, _>>()?,
            head: match config.is_backbone() {
                true => None,
                false => Some((source.norm("norm")?, source.linear(Linear::Head)?)),
            },
            config: config.clone(),
            device: device.clone(),
            ops,
        })
    }

    /// The architecture.
    pub fn config(&self) -> &SwinConfig {
        &self.config
    }

    /// The normalised images of `batch`: f32 `[n, channels, height, width]`.
    ///
    /// # Errors
    /// [`ModelError::Config`] for images with another number of channels, or pixels that are not the batch's
    /// images.
    pub fn images(&self, batch: &Batch, transform: &Transform) -> Result<Tensor, FloatError> {
        let (n, size, channels) = (batch.len(), batch.size, self.config.in_chans);
        if batch.channels != channels || batch.pixels.len() != n * batch.image_bytes() {
            let problem = format!(
                "the model takes {channels} channels, but the batch has {n} images of {size} pixels and {} channels in {} \
                 bytes",
                batch.channels,
                batch.pixels.len()
            );
            return Err(ModelError::config("DATA.IMG_SIZE", problem).into());
        }
        let values = batch.values().unwrap_or_else(|| {
            let images = batch.pixels.chunks_exact(batch.image_bytes());
            images.flat_map(|image| transform.normalised(image)).collect()
        });
        Ok(Tensor::from_vec(values, (n, channels, size.height, size.width), &self.device)?)
    }

    /// Logits `[n, classes]` of normalised images, f32 `[n, channels, height, width]`.
    ///
    /// # Errors
    /// [`ModelError::Config`] for images that the network cannot process, and errors of `sites`.
    ///
    /// # Panics
    /// If the network is a backbone.
    pub fn forward(&self, images: &Tensor, sites: &mut dyn Sites) -> Result<Tensor, FloatError> {
        assert!(!self.config.is_backbone(), "a backbone has no logits");
        let mut outputs = self.outputs(images, sites)?;
        Ok(outputs.pop().expect("a classifier has an output"))
    }

    /// Every output of the network for images as those of [`Swin::forward`]: the logits of a classifier, or
    /// the feature maps of a backbone, `[n * tokens, c]` of each stage that has one.
    ///
    /// # Errors
    /// [`ModelError::Config`] for images that the network cannot process, and errors of `sites`.
    pub fn outputs(&self, images: &Tensor, sites: &mut dyn Sites) -> Result<Vec<Tensor>, FloatError> {
        match *images.dims() {
            [_, channels, height, width] if channels == self.config.in_chans => {
                self.outputs_of(Size::new(height, width), images, sites)
            }
            ref other => {
                let channels = self.config.in_chans;
                let problem = format!("the model takes [n, {channels}, height, width], not {other:?}");
                Err(ModelError::config("DATA.IMG_SIZE", problem).into())
            }
        }
    }

    /// [`Swin::outputs`] for images of `image` pixels, or for their patches
    /// `[n * tokens, channels * patch^2]`.
    ///
    /// # Errors
    /// The errors of [`Swin::outputs`].
    pub fn outputs_of(
        &self,
        image: Size,
        images: &Tensor,
        sites: &mut dyn Sites,
    ) -> Result<Vec<Tensor>, FloatError> {
        let maps = self.maps(image)?;
        let (mut x, mut outputs) = (images.clone(), Vec::new());
        for segment in Segment::all(&self.config) {
            x = self.run_on(&maps, segment, x, sites)?;
            if let Some(index) = segment.output(&self.config) {
                outputs.push(self.output(index, &x)?);
            }
        }
        if !self.config.is_backbone() {
            outputs.push(x);
        }
        Ok(outputs)
    }

    /// Output `index` of a backbone, `[n * tokens, c]`: the residual stream `x` behind the last block of its
    /// stage, with the output's norm if it has one ([`Segment::output`]).
    ///
    /// # Errors
    /// Candle's errors.
    ///
    /// # Panics
    /// If there is no such output.
    pub fn output(&self, index: usize, x: &Tensor) -> Result<Tensor, FloatError> {
        Ok(match &self.output_norms[index] {
            Some(norm) => self.ops.norm(x, norm)?,
            None => x.clone(),
        })
    }

    /// The index maps for images of `image` pixels. The network keeps those of the sizes that were used last;
    /// a CUDA graph that reads them must hold them.
    ///
    /// # Errors
    /// [`ModelError::Config`] for images that the network cannot process.
    pub fn maps(&self, image: Size) -> Result<Arc<Maps>, FloatError> {
        if image == self.maps.image {
            return Ok(Arc::clone(&self.maps));
        }
        let mut others = self.other_maps.lock().unwrap_or_else(PoisonError::into_inner);
        let maps = match others.iter().position(|maps| maps.image == image) {
            Some(at) => others.remove(at),
            None => Arc::new(self.new_maps(image)?),
        };
        others.insert(0, Arc::clone(&maps));
        others.truncate(SIZES);
        Ok(maps)
    }

    fn new_maps(&self, image: Size) -> Result<Maps, FloatError> {
        let maps = Maps::new(&self.config, image, &self.device)?;
        let grid = maps.stages[0].grid.size;
        let Some(position) = self.position.as_ref().filter(|_| self.config.resizes_position(grid)) else {
            return Ok(maps);
        };
        if !self.is_fixed {
            let problem = format!(
                "training interpolates no absolute position embedding (absolute_pos_embed); train with images of {}, or in PyTorch with \
                 swinq.torch.prepare",
                self.config.image_size
            );
            return Err(ModelError::Image { size: image, problem }.into());
        }
        let table = position.flatten_all()?.to_vec1::<f32>()?;
        let resized = resize_bicubic(&table, self.config.own_patches(), grid);
        let shape = (1, grid.area(), self.config.embed_dim);
        Ok(Maps { position: Some(Tensor::from_vec(resized, shape, &self.device)?), ..maps })
    }

    /// The output of one segment for its input `x`, of images of `image` pixels. A forward pass runs every
    /// segment of [`Segment::all`] on the output of the one before.
    ///
    /// # Errors
    /// Images that the network cannot process, an input of another shape than [`Segment`] states, and errors
    /// of `sites`.
    ///
    /// # Panics
    /// If the network does not have the segment.
    pub fn run(
        &self,
        segment: Segment,
        image: Size,
        x: Tensor,
        sites: &mut dyn Sites,
    ) -> Result<Tensor, FloatError> {
        self.run_on(&*self.maps(image)?, segment, x, sites)
    }

    /// [`Swin::run`] for images of the size of `maps`.
    fn run_on(
        &self,
        maps: &Maps,
        segment: Segment,
        x: Tensor,
        sites: &mut dyn Sites,
    ) -> Result<Tensor, FloatError> {
        match segment {
            Segment::Embed => self.embed(maps, &x, sites),
            Segment::Branch(id, branch) => self.branch(&maps.stages[id.stage], (id, branch), x, sites),
            Segment::Merge(stage) => {
                let (norm, reduction) =
                    self.stages[stage].merge.as_ref().expect("the stage ends with merging");
                let x = self.ops.gather(&x, &maps.stages[stage].merge)?;
                let x = match self.config.post_norm() {
                    true => self.ops.norm(&linear(x, reduction, sites)?, norm)?,
                    false => linear(self.ops.norm(&x, norm)?, reduction, sites)?,
                };
                sites.residual(Linear::Reduction(stage), &x)?;
                Ok(x)
            }
            Segment::Head => {
                let tokens = maps.stages.last().expect("there is a stage").grid.tokens();
                let (norm, head) = self.head.as_ref().expect("a classifier has a head");
                let x = self.ops.norm(&x, norm)?;
                let features = self.ops.mean_rows(&x, x.dim(0)? / tokens)?;
                linear(features, head, sites)
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

    /// Patch embedding: images `[n, channels, height, width]`, or their patches, to tokens
    /// `[n * tokens, embed_dim]`.
    fn embed(&self, maps: &Maps, images: &Tensor, sites: &mut dyn Sites) -> Result<Tensor, FloatError> {
        let patches = |images: Tensor| match images.dims() {
            [_, _] => Ok(images),
            _ => self.patches(&images),
        };
        let Some(patch_embed) = &self.patch_embed else {
            let tokens = patches(images.clone())?;
            sites.residual(Linear::PatchEmbed, &tokens)?;
            return Ok(tokens);
        };
        let images = sites.activation(Site::Input(Linear::PatchEmbed), images.clone())?;
        let x = sites.linear(patch_embed, &patches(images)?)?;
        let x = match &self.patch_norm {
            Some(norm) => self.ops.norm(&x, norm)?,
            None => x,
        };
        let x = match maps.position.as_ref().or(self.position.as_ref()) {
            Some(position) => self.ops.add_rows(&x, position)?,
            None => x,
        };
        sites.residual(Linear::PatchEmbed, &x)?;
        Ok(x)
    }

    /// Gathers the values of each patch into a row: `[n, channels, height, width]` to
    /// `[n * tokens, channels * patch^2]`. Images are padded with zeros to a multiple of the patch, or cut to
    /// one.
    fn patches(&self, images: &Tensor) -> Result<Tensor, FloatError> {
        let ((n, channels, height, width), patch) = (images.dims4()?, self.config.patch_size);
        let grid = self.config.grid_size(0, Size::new(height, width));
        let (rows, columns) = (grid.height, grid.width);
        let fit = |x: &Tensor, dim, side: usize| match x.dim(dim)? {
            own if own > side => x.narrow(dim, 0, side),
            own if own < side => x.pad_with_zeros(dim, 0, side - own),
            _ => Ok(x.clone()),
        };
        let images = fit(&fit(images, 2, rows * patch)?, 3, columns * patch)?;
        let cut = images.reshape(vec![n, channels, rows, patch, columns, patch])?;
        let cut = cut.permute(vec![0, 2, 4, 1, 3, 5])?.contiguous()?;
        Ok(cut.reshape((n * rows * columns, channels * patch * patch))?)
    }

    fn branch(
        &self,
        maps: &StageMaps,
        (id, branch): (BlockId, Branch),
        x: Tensor,
        sites: &mut dyn Sites,
    ) -> Result<Tensor, FloatError> {
        let weights = &self.stages[id.stage];
        let context = BlockContext {
            stage: &weights.stage,
            post_norm: self.config.post_norm(),
            coordinates: &maps.coordinates,
            windows: &maps.windows[id.block % 2],
            relative_index: &maps.relative_index,
            ops: &self.ops,
        };
        match branch {
            Branch::Attn => attention_branch(x, &weights.blocks[id.block], &context, sites),
            Branch::Mlp => mlp_branch(x, &weights.blocks[id.block], &context, sites),
        }
    }

    fn linear_mut(&mut self, linear: Linear) -> &mut LinearWeights {
        let stages = &mut self.stages;
        match linear {
            Linear::PatchEmbed => {
                self.patch_embed.as_mut().expect("a network of images has a patch embedding")
            }
            Linear::Qkv(id) => &mut stages[id.stage].blocks[id.block].qkv,
            Linear::Proj(id) => &mut stages[id.stage].blocks[id.block].proj,
            Linear::Fc1(id) => &mut stages[id.stage].blocks[id.block].fc1,
            Linear::Fc2(id) => &mut stages[id.stage].blocks[id.block].fc2,
            Linear::Reduction(stage) => {
                &mut stages[stage].merge.as_mut().expect("the stage ends with merging").1
            }
            Linear::Head => &mut self.head.as_mut().expect("a classifier has a head").1,
        }
    }
}
