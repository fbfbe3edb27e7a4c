//! The float network that the student imitates.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use swinq_float::ops::Ops;
use swinq_float::{Float, FloatError, Maps, Sites, Swin};
use swinq_model::quantized::FloatModel;
use swinq_model::{Batch, BlockId, Linear, Site, Size, Transform};

use super::on_device;
use crate::error::QatError;

/// The teacher's outputs for a batch.
#[derive(Debug)]
pub struct TeacherOutput {
    /// The network's outputs ([`Swin::outputs`]). They stay on the device, so that the host does not wait for
    /// the teacher before it starts the student.
    pub outputs: Vec<Tensor>,
    /// The blocks' outputs, if the loss compares them.
    pub features: BTreeMap<BlockId, Tensor>,
}

/// The float network that the student imitates.
pub struct Teacher {
    swin: Swin,
    transform: Transform,
    features: bool,
}

/// Sites of the float forward that collect the blocks' outputs.
struct BlockOutputs(BTreeMap<BlockId, Tensor>);

impl Sites for BlockOutputs {
    fn watches(&self, _: Site) -> bool {
        false
    }

    fn residual(&mut self, after: Linear, x: &Tensor) -> Result<(), FloatError> {
        if let Linear::Fc2(block) = after {
            self.0.insert(block, x.clone());
        }
        Ok(())
    }
}

impl Teacher {
    /// The network of `model`; `features` says whether the loss compares the blocks' outputs. On a GPU the
    /// operations are `ops`.
    ///
    /// # Errors
    /// The errors of [`Swin::new`].
    pub fn new(model: &FloatModel, features: bool, device: &Device, ops: &Ops) -> Result<Teacher, QatError> {
        let swin = if device.is_cpu() {
            Swin::new(&model.config, &model.tensors, device)?
        } else {
            swinq_model::params::check_parameters(&model.config, &model.tensors)?;
            Swin::with_ops(&model.config, &on_device(&model.tensors, device)?, device, ops.clone())?
        };
        Ok(Teacher { swin, transform: model.transform.clone(), features })
    }

    /// The forward pass on `batch`.
    ///
    /// # Errors
    /// Errors of the forward pass.
    pub fn forward(&self, batch: &Batch) -> Result<TeacherOutput, QatError> {
        self.forward_images(batch.size, &self.swin.images(batch, &self.transform)?)
    }

    /// The index maps for images of `size` ([`Swin::maps`]).
    ///
    /// # Errors
    /// Images that the network cannot process.
    pub fn maps(&self, size: Size) -> Result<Arc<Maps>, QatError> {
        Ok(self.swin.maps(size)?)
    }

    /// [`Teacher::forward`], on normalised images of `size` or their patches ([`Swin::outputs_of`]).
    ///
    /// # Errors
    /// Errors of the forward pass.
    pub fn forward_images(&self, size: Size, images: &Tensor) -> Result<TeacherOutput, QatError> {
        let mut blocks = BlockOutputs(BTreeMap::new());
        let outputs = match self.features {
            true => self.swin.outputs_of(size, images, &mut blocks)?,
            false => self.swin.outputs_of(size, images, &mut Float)?,
        };
        Ok(TeacherOutput { outputs, features: blocks.0 })
    }
}
