//! The network in training and its teacher.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor};
use swinq_float::tape::{Gradients, Passes, Tape};
use swinq_float::{Float, FloatError, Sites, Swin, ops::taped::squared_difference};
use swinq_model::quantized::FloatModel;
use swinq_model::{Batch, BlockId, HostTensor, QuantizedModel, Site, StateDict, SwinConfig, Transform};

use crate::audit::Audit;
use crate::drop_path::DropPath;
use crate::error::QatError;
use crate::job::{LossKeys, Scales};
use crate::loss::{LossParts, Targets, loss};
use crate::scales::{RATIO, ScaleTable};
use crate::sites::TrainSites;

/// What a teacher says of a batch.
#[derive(Debug)]
pub struct Lesson {
    /// `[images, classes]`, on its device: the host need not wait for the teacher before it sets the student to work.
    pub logits: Tensor,
    /// Its blocks' outputs, where they are compared.
    pub features: BTreeMap<BlockId, Tensor>,
}

/// The float network that is imitated.
pub struct Teacher {
    swin: Swin,
    transform: Transform,
    features: bool,
    /// Watches nothing: it says who computes.
    tape: Tape,
}

/// The float forward that keeps the blocks' outputs.
struct Capture(BTreeMap<BlockId, Tensor>);

impl Sites for Capture {
    fn activation(&mut self, site: Site, x: Tensor) -> Result<Tensor, FloatError> {
        Float.activation(site, x)
    }

    fn weight(&mut self, site: Site, w: &Tensor) -> Result<Tensor, FloatError> {
        Float.weight(site, w)
    }

    fn attend(&mut self, site: Site, logits: Tensor, v: Tensor) -> Result<Tensor, FloatError> {
        Float.attend(site, logits, v)
    }

    fn watches(&self, _: Site) -> bool {
        false
    }

    fn block_output(&mut self, block: BlockId, x: &Tensor) -> Result<(), FloatError> {
        self.0.insert(block, x.clone());
        Ok(())
    }
}

impl Teacher {
    /// The network of `model`; `features` says whether its blocks are compared. `half` makes operands of products that
    /// type, except on the CPU.
    ///
    /// # Errors
    /// What [`Swin::new`] refuses.
    pub fn new(
        model: &FloatModel,
        features: bool,
        device: &Device,
        half: Option<DType>,
    ) -> Result<Teacher, QatError> {
        let tape = Tape::with_products(half);
        let swin = if device.is_cpu() {
            Swin::new(&model.config, &model.tensors, device)?
        } else {
            swinq_model::params::check_parameters(&model.config, &model.tensors)?;
            Swin::taped(&model.config, &on_device(&model.tensors, device)?, device, &tape)?
        };
        Ok(Teacher { swin, transform: model.transform.clone(), features, tape })
    }

    /// Chooses who computes the passes from now on, on a GPU.
    pub fn set_passes(&self, passes: Passes) {
        self.tape.set_passes(passes);
    }

    /// What it says of `batch`.
    ///
    /// # Errors
    /// Those of the forward.
    pub fn teach(&self, batch: &Batch) -> Result<Lesson, QatError> {
        let images = self.swin.images(batch, &self.transform)?;
        let mut capture = Capture(BTreeMap::new());
        let logits = match self.features {
            true => self.swin.forward(&images, &mut capture)?,
            false => self.swin.forward(&images, &mut Float)?,
        };
        Ok(Lesson { logits, features: capture.0 })
    }
}

/// Copies of `tensors`, by name.
fn on_device(tensors: &StateDict, device: &Device) -> candle_core::Result<BTreeMap<String, Tensor>> {
    let tensor = |t: &HostTensor| Tensor::from_slice(&t.data, t.shape.as_slice(), device);
    tensors.iter().map(|(name, t)| Ok((name.clone(), tensor(t)?))).collect()
}

/// The network in training: parameters, trained multiples of steps among them, and the tape.
pub struct Student {
    config: SwinConfig,
    transform: Transform,
    swin: Swin,
    tape: Tape,
    sites: TrainSites,
    /// Every parameter by name, in Microsoft's naming; multiples of steps as `scale.SITE`.
    parameters: BTreeMap<String, Tensor>,
}

impl Student {
    /// The network of `start`, quantized as `quantized` says with the steps of `policy`; in float without it. `half` makes
    /// operands of products that type.
    ///
    /// # Errors
    /// Weights or ranges that cannot be quantized; those of candle.
    pub fn new(
        start: &FloatModel,
        quantized: Option<(&QuantizedModel, &[(Site, Scales)])>,
        device: &Device,
        half: Option<DType>,
    ) -> Result<Student, QatError> {
        swinq_model::params::check_parameters(&start.config, &start.tensors)?;
        let mut parameters = on_device(&start.tensors, device)?;
        let tape = Tape::with_products(half);
        let swin = Swin::taped(&start.config, &parameters, device, &tape)?;
        let scales = match quantized {
            Some((model, policy)) => ScaleTable::new(model, policy, &parameters, device)?,
            None => ScaleTable::off(),
        };
        parameters.extend(scales.ratios().map(|(name, ratio)| (name, ratio.clone())));
        parameters.values().for_each(|parameter| tape.watch(parameter));
        Ok(Student {
            config: start.config.clone(),
            transform: start.transform.clone(),
            swin,
            sites: TrainSites::new(&tape, quantized.map(|(model, _)| model), scales),
            tape,
            parameters,
        })
    }

    /// Chooses who computes the passes from now on.
    pub fn set_passes(&self, passes: Passes) {
        self.tape.set_passes(passes);
    }

    /// The parameters.
    pub fn parameters(&self) -> &BTreeMap<String, Tensor> {
        &self.parameters
    }

    /// The steps.
    pub fn scales(&self) -> &ScaleTable {
        &self.sites.scales
    }

    /// The architecture.
    pub fn config(&self) -> &SwinConfig {
        &self.config
    }

    /// Brings the steps up to date with the parameters; once a step of the optimizer.
    ///
    /// # Errors
    /// Those of [`ScaleTable::update`].
    pub fn update_scales(&mut self) -> Result<(), QatError> {
        self.sites.scales.update(&self.parameters)
    }

    /// Forward: logits `[images, classes]`, noted on the tape.
    ///
    /// # Errors
    /// Those of the forward.
    pub fn forward(
        &mut self,
        batch: &Batch,
        drop_path: Option<DropPath>,
        features: bool,
    ) -> Result<Tensor, QatError> {
        self.tape.clear();
        self.sites.images = batch.len();
        self.sites.drop_path = drop_path;
        self.sites.features = features.then(BTreeMap::new);
        let images = self.swin.images(batch, &self.transform)?;
        Ok(self.swin.forward(&images, &mut self.sites)?)
    }

    /// The loss of the batch whose forward gave `logits`, and the gradients of its `share` of the step times
    /// `loss_scale`.
    ///
    /// # Errors
    /// Those of the backward passes.
    pub fn backward(
        &mut self,
        keys: &LossKeys,
        logits: &Tensor,
        batch: &Batch,
        lesson: Option<&Lesson>,
        (share, loss_scale): (f64, f64),
    ) -> Result<(LossParts, Gradients), QatError> {
        let host = |logits: &Tensor| logits.flatten_all()?.to_vec1::<f32>();
        let teacher = lesson.map(|lesson| host(&lesson.logits)).transpose()?;
        let targets = Targets { labels: &batch.labels, teacher: teacher.as_deref() };
        let (mut parts, mut gradient) = loss(keys, &host(logits)?, self.config.num_classes, &targets, share);
        gradient.iter_mut().for_each(|g| *g = (f64::from(*g) * loss_scale) as f32);
        let mut seeds = vec![(logits.id(), Tensor::from_vec(gradient, logits.shape(), logits.device())?)];
        if let (Some(lesson), Some(features)) = (lesson, self.sites.features.take()) {
            let part = share / features.len() as f64;
            for (block, x) in features {
                let (difference, gradient) = squared_difference(&x, &lesson.features[&block])?;
                parts.features += part * f64::from(difference);
                seeds.push((x.id(), (gradient * (keys.features * part * loss_scale))?));
            }
            parts.total += keys.features * parts.features;
        }
        Ok((parts, self.tape.backward(seeds)?))
    }

    /// The first parameter that is not finite. Fake quantization has a code for everything, so it could hide one from
    /// the loss.
    ///
    /// # Errors
    /// Those of candle.
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

    /// Runs `batch` once more and tells which tensor was the first that is not finite.
    ///
    /// # Errors
    /// Those of the forward.
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
        let found = self.sites.audit.take().and_then(|audit| audit.first);
        forward.map(|_| found)
    }
}

/// Whether AdamW decays a parameter: matrices only; not biases, norms, position embeddings, bias tables or steps.
pub fn decays(name: &str, parameter: &Tensor) -> bool {
    let table = name.ends_with("relative_position_bias_table") || name == "absolute_pos_embed";
    !is_scale(name) && !table && parameter.dims().len() > 1
}

/// Whether a parameter is the multiple of a step.
pub fn is_scale(name: &str) -> bool {
    name.starts_with(RATIO)
}
