//! The network in training (the student) and its teacher.

mod losses;
mod teacher;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use candle_core::{Device, Tensor, TensorId};
use swinq_float::ops::{Compute, Ops};
use swinq_float::tape::{Gradients, Tape};
use swinq_float::{Maps, Swin};
use swinq_model::quantized::FloatModel;
use swinq_model::{Batch, HostTensor, QuantizedModel, Site, Size, StateDict, SwinConfig, Transform};

use crate::audit::Audit;
use crate::drop_path::DropPath;
use crate::error::QatError;
use crate::flat::Flat;
use crate::job::{LossKeys, Scales};
use crate::loss::LossParts;
use crate::mixing::Partners;
use crate::recompute::{self, Activations, Segments};
use crate::scales::{RATIO, ScaleTable};
use crate::sites::TrainSites;

pub use teacher::{Teacher, TeacherOutput};

/// Copies `tensors` to the device.
fn on_device(tensors: &StateDict, device: &Device) -> candle_core::Result<BTreeMap<String, Tensor>> {
    let tensor = |t: &HostTensor| Tensor::from_slice(&t.data, t.shape.as_slice(), device);
    tensors.iter().map(|(name, t)| Ok((name.clone(), tensor(t)?))).collect()
}

/// The network in training: its parameters, with the ratios of learned scales among them, and its tape.
pub struct Student {
    config: SwinConfig,
    transform: Transform,
    swin: Swin,
    tape: Tape,
    sites: TrainSites,
    /// Every parameter by name, in Microsoft's naming; ratios of learned scales are `scale.SITE`.
    parameters: BTreeMap<String, Tensor>,
    /// On a GPU, the memory in which all parameters lie.
    flat: Option<(Arc<Flat>, Tensor)>,
    compute: Compute,
    /// The names of the parameters.
    names: HashMap<TensorId, String>,
    /// Whether the backward pass recomputes activations.
    recompute: bool,
    /// The activations of the latest forward pass, if it does.
    activations: Option<Activations>,
}

/// Receives the gradient of a parameter as soon as the backward pass has completed it.
pub type Complete<'a> = dyn FnMut(&str, &Tensor) -> candle_core::Result<()> + 'a;

impl Student {
    /// The network of `start`. `quantized` gives the quantized model and, for each of its sites, the
    /// treatment of the scale; without it the training is in float. The operations are `ops`, on a tape.
    ///
    /// # Errors
    /// Weights or ranges that cannot be quantized, and candle's errors.
    pub fn new(
        start: &FloatModel,
        quantized: Option<(&QuantizedModel, &[(Site, Scales)])>,
        device: &Device,
        ops: &Ops,
    ) -> Result<Student, QatError> {
        swinq_model::params::check_parameters(&start.config, &start.tensors)?;
        let mut parameters = on_device(&start.tensors, device)?;
        let tape = Tape::default();
        let ops = Ops { tape: Some(tape.clone()), ..ops.clone() };
        let mut scales = match quantized {
            Some((model, policy)) => ScaleTable::new(model, policy, &parameters, device)?,
            None => ScaleTable::off(),
        };
        parameters.extend(scales.ratios().map(|(name, ratio)| (name, ratio.clone())));
        let mut flat = None;
        if device.is_cuda() {
            let places = Flat::new(&parameters);
            let values = places.gathered(&parameters, device)?;
            parameters = places.views(&values)?;
            scales.rebind(&parameters);
            flat = Some((Arc::new(places), values));
        }
        let swin = Swin::with_ops(&start.config, &parameters, device, ops.clone())?;
        parameters.values().for_each(|parameter| tape.watch(parameter));
        Ok(Student {
            config: start.config.clone(),
            transform: start.transform.clone(),
            swin,
            compute: ops.compute,
            sites: TrainSites::new(ops, quantized.map(|(model, _)| model), scales),
            tape,
            flat,
            recompute: false,
            activations: None,
            names: parameters.iter().map(|(name, parameter)| (parameter.id(), name.clone())).collect(),
            parameters,
        })
    }

    /// Whether the backward pass recomputes activations, of which only the inputs of segments are kept. The
    /// default is to keep all of them.
    pub fn set_recompute(&mut self, recompute: bool) {
        self.recompute = recompute;
    }

    /// The implementation of its operations.
    pub fn compute(&self) -> Compute {
        self.compute
    }

    /// On a GPU, where the parameters lie, and the memory in which they do.
    pub(crate) fn flat(&self) -> Option<&(Arc<Flat>, Tensor)> {
        self.flat.as_ref()
    }

    /// The index maps for images of `size` ([`Swin::maps`]).
    ///
    /// # Errors
    /// Images that the network cannot process.
    pub fn maps(&self, size: Size) -> Result<Arc<Maps>, QatError> {
        Ok(self.swin.maps(size)?)
    }

    /// The preprocessing of the images.
    pub fn transform(&self) -> &Transform {
        &self.transform
    }

    /// The parameters.
    pub fn parameters(&self) -> &BTreeMap<String, Tensor> {
        &self.parameters
    }

    /// The quantization scales.
    pub fn scales(&self) -> &ScaleTable {
        &self.sites.scales
    }

    /// The device that holds the parameters.
    pub fn device(&self) -> &Device {
        self.parameters.values().next().map_or(&Device::Cpu, Tensor::device)
    }

    /// The architecture.
    pub fn config(&self) -> &SwinConfig {
        &self.config
    }

    /// Recomputes the scales from the parameters; call it whenever they changed, and after
    /// [`Student::forget`].
    ///
    /// # Errors
    /// The errors of [`ScaleTable::update`].
    pub fn update_scales(&mut self) -> Result<(), QatError> {
        self.sites.scales.update(&self.parameters, self.compute)
    }

    /// Drops everything that a pass left behind: the recorded operations, the factors of dropped branches and
    /// the scales of weights that are on a GPU.
    pub fn forget(&mut self) {
        self.sites.drop_path = None;
        self.tape.clear();
        self.activations = None;
        self.sites.scales.forget();
    }

    /// The forward pass: every output of the network ([`Swin::outputs`]), recorded on the tape unless the
    /// backward pass recomputes activations.
    ///
    /// # Errors
    /// Errors of the forward pass.
    pub fn forward(
        &mut self,
        batch: &Batch,
        drop_path: Option<DropPath>,
        features: bool,
    ) -> Result<Vec<Tensor>, QatError> {
        let images = self.swin.images(batch, &self.transform)?;
        self.forward_images(batch.size, images, batch.len(), drop_path, features)
    }

    /// [`Student::forward`], on `count` normalised images of `size` or on their patches
    /// ([`Swin::outputs_of`]).
    ///
    /// # Errors
    /// Errors of the forward pass.
    pub fn forward_images(
        &mut self,
        size: Size,
        images: Tensor,
        count: usize,
        drop_path: Option<DropPath>,
        features: bool,
    ) -> Result<Vec<Tensor>, QatError> {
        self.tape.clear();
        self.sites.images = count;
        self.sites.drop_path = drop_path;
        self.sites.features = features.then(BTreeMap::new);
        if !self.recompute {
            return Ok(self.swin.outputs_of(size, &images, &mut self.sites)?);
        }
        self.activations = None;
        let (outputs, activations) = recompute::forward(&mut self.segments(), size, images)?;
        self.activations = Some(activations);
        Ok(outputs)
    }

    /// The loss of the batch whose forward pass gave `outputs`, and the gradients. Both are multiplied by
    /// `share`, the batch's fraction of the iteration; the gradients are also multiplied by `loss_scale`.
    ///
    /// # Errors
    /// Errors of the backward passes.
    pub fn backward(
        &mut self,
        keys: &LossKeys,
        outputs: &[Tensor],
        targets: (&Batch, Option<&Partners>),
        teacher_output: Option<&TeacherOutput>,
        factors: (f64, f64),
    ) -> Result<(LossParts, Gradients), QatError> {
        self.backward_with(keys, outputs, targets, teacher_output, factors, &mut |_, _| Ok(()))
    }

    /// [`Student::backward`], which calls `complete` with each gradient as soon as it is complete.
    ///
    /// # Errors
    /// Errors of the backward passes and of `complete`.
    pub fn backward_with(
        &mut self,
        keys: &LossKeys,
        outputs: &[Tensor],
        targets: (&Batch, Option<&Partners>),
        teacher_output: Option<&TeacherOutput>,
        factors: (f64, f64),
        complete: &mut Complete<'_>,
    ) -> Result<(LossParts, Gradients), QatError> {
        let (parts, seeds) = self.losses(keys, outputs, targets, teacher_output, factors)?;
        Ok((parts, self.backward_from(outputs, seeds, complete)?))
    }

    /// The gradients of the parameters, from those of results of the last forward pass, `seeds`: of some of
    /// its `outputs` and of blocks. Calls `complete` with each gradient as soon as it is complete.
    ///
    /// # Errors
    /// Errors of the backward passes and of `complete`.
    pub fn backward_from(
        &mut self,
        outputs: &[Tensor],
        seeds: Vec<(TensorId, Tensor)>,
        complete: &mut Complete<'_>,
    ) -> Result<Gradients, QatError> {
        let names = std::mem::take(&mut self.names);
        let mut named = |id, gradient: &Tensor| complete(&names[&id], gradient);
        let gradients = if self.recompute {
            let activations = self.activations.take().expect("a forward pass comes first");
            recompute::backward(&mut self.segments(), &activations, outputs, seeds, &mut named)
        } else {
            self.tape.backward_with(seeds, named).map_err(QatError::from)
        };
        self.names = names;
        gradients
    }

    fn segments(&mut self) -> Segments<'_> {
        Segments { swin: &self.swin, tape: &self.tape, sites: &mut self.sites }
    }

    /// A description of the first parameter that is not finite. The loss may not show it, because fake
    /// quantization maps every value to a code.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn parameter_not_finite(&self) -> Result<Option<String>, QatError> {
        if !crate::audit::any_not_finite(self.parameters.values())? {
            return Ok(None);
        }
        for (name, parameter) in &self.parameters {
            if let Some((index, value)) = crate::audit::not_finite(parameter)? {
                return Ok(Some(format!("the parameter {name} has {value} at flat index {index}")));
            }
        }
        Ok(None)
    }

    /// Runs `batch` again and describes the first tensor that is not finite.
    ///
    /// # Errors
    /// Errors of the forward pass.
    pub fn first_not_finite(
        &mut self,
        batch: &Batch,
        drop_path: Option<DropPath>,
    ) -> Result<Option<String>, QatError> {
        if let Some(found) = self.parameter_not_finite()? {
            return Ok(Some(found));
        }
        self.sites.audit = Some(Audit::default());
        let forward = self.forward(batch, drop_path, false);
        self.tape.clear();
        self.activations = None;
        let found = self.sites.audit.take().and_then(|audit| audit.first);
        forward.map(|_| found)
    }
}

/// Whether weight decay applies to a parameter: to weight matrices only, not to biases, norms, position
/// embeddings, what gives relative position bias, factors of `q k^T` or scales.
pub fn decays(name: &str, parameter: &Tensor) -> bool {
    let ends = ["relative_position_bias_table", "logit_scale", "absolute_pos_embed"];
    let table = ends.iter().any(|end| name.ends_with(end)) || name.contains(".cpb_mlp.");
    !is_scale(name) && !table && parameter.dims().len() > 1
}

/// Whether a parameter is the ratio of a learned scale.
pub fn is_scale(name: &str) -> bool {
    name.starts_with(RATIO)
}
