//! Iterations on a GPU without the host: loss, gradient norm, clipping and AdamW run on the device, and the host reads the
//! result once, at the end. From the second iteration on, a pass over a batch is one CUDA graph, which is recorded once and
//! launched again for every batch.
//!
//! What changes from batch to batch lies in memory that the graph reads: pixels, labels, factors of dropped branches, learning
//! rates. What a graph allocates, it also frees.

mod sink;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use swinq_float::ops::taped::cuda::{Held, failed, patches, tensor, training, write, write_if_some};
use swinq_kernels::cuda::nccl::{Exchange, Meeting};
use swinq_kernels::cuda::training::{
    Controls, Flat as FlatMemory, Kind, LossWeights, MomentRule, Outcome, Staging, Targets, Training,
    UpdateRule,
};
use swinq_kernels::cuda::{CudaError, Graph};
use swinq_model::Batch;

use crate::drop_path::DropPath;
use crate::error::QatError;
use crate::flat::Flat;
use crate::job::{Job, OptimizerKeys};
use crate::mixing::Partners;
use crate::scales::LIMIT;
use crate::student::{Student, Teacher, decays, is_scale};
use sink::Sink;

/// The memory of a training's iterations on a GPU, and their graphs.
pub(crate) struct DeviceStep {
    device: Device,
    kernels: Arc<Training>,
    /// Images of a batch.
    images: usize,
    staging: Staging,
    /// u8 `[images, size, size, 3]`.
    pixels: Tensor,
    /// The value of each byte, `[3, 256]`.
    table: Tensor,
    /// `[images]`.
    labels: Tensor,
    /// The classes of the images that are mixed into each, `[images]`, if the job mixes images.
    partners: Option<Tensor>,
    /// `[2 * blocks, images]`.
    dropped: Option<Tensor>,
    controls: Tensor,
    outcome: Tensor,
    /// The gradients, in the order of the parameters' memory.
    gradients: Tensor,
    first_moments: Tensor,
    second_moments: Tensor,
    average: Option<Tensor>,
    /// The kind of each value, from the second iteration on.
    kinds: Option<Tensor>,
    /// The parameters that have gradients.
    seen: BTreeSet<String>,
    graphs: BTreeMap<Pass, Graph>,
    /// Whether passes are recorded, and why not.
    capture: Result<(), String>,
    /// Whether a pass over a whole batch has run, which compiles kernels and fills caches. That cannot be recorded.
    warm: bool,
    exchange: Option<Exchange>,
}

/// The passes that differ in what they do: an iteration's first one stores gradients and later ones add to them, and the last
/// one exchanges them with other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pass {
    pub first: bool,
    pub last: bool,
    /// Whether images have labels.
    pub labelled: bool,
}

/// What a pass works on.
pub(crate) struct Work<'a> {
    pub student: &'a mut Student,
    pub teacher: Option<&'a Teacher>,
    pub drop_path: Option<&'a DropPath>,
    pub job: &'a Job,
    /// Images of the loaded batch.
    pub count: usize,
    /// The batch's share of the iteration's loss.
    pub share: f64,
}

/// The memory of the optimizer, one piece for each of its parts.
pub(crate) struct Moments {
    pub first: Tensor,
    pub second: Tensor,
    pub average: Option<Tensor>,
}

impl DeviceStep {
    /// Memory for the iterations of `student`.
    ///
    /// # Errors
    /// Too little memory.
    ///
    /// # Panics
    /// If the student is not on a GPU.
    pub fn new(
        student: &Student,
        job: &Job,
        drop_path: Option<&DropPath>,
        moments: Moments,
    ) -> Result<DeviceStep, QatError> {
        let device = student.device().clone();
        let kernels = training(device.as_cuda_device()?)?;
        let (flat, _) = student.flat().expect("the student is on a GPU");
        let (images, size) = (job.batch_size, student.config().image_size);
        let pixels = Tensor::zeros((images, size, size, 3), DType::U8, &device)?;
        let table = student.transform().lookup();
        let table: Vec<f32> = table.iter().flat_map(|row| row.iter().copied()).collect();
        let drop = |path: &DropPath| Tensor::zeros((path.branches(), images), DType::F32, &device);
        let partners = (!job.mixing.is_off()).then(|| Tensor::zeros(images, DType::U32, &device));
        let capture = student.scales().needs_host().map_or(Ok(()), Err);
        Ok(DeviceStep {
            staging: Staging::new(&kernels, pixels.elem_count()).map_err(failed)?,
            table: Tensor::from_vec(table, (3, 256), &device)?,
            labels: Tensor::zeros(images, DType::U32, &device)?,
            partners: partners.transpose()?,
            dropped: drop_path.map(drop).transpose()?,
            controls: Tensor::zeros(Controls::LEN, DType::F64, &device)?,
            outcome: Tensor::zeros(Outcome::LEN, DType::F64, &device)?,
            gradients: flat.zeros(&device)?,
            first_moments: moments.first,
            second_moments: moments.second,
            average: moments.average,
            kinds: None,
            seen: BTreeSet::new(),
            graphs: BTreeMap::new(),
            capture,
            warm: false,
            exchange: None,
            pixels,
            images,
            kernels,
            device,
        })
    }

    /// Joins the other processes, with which it adds gradients.
    ///
    /// # Errors
    /// NCCL fails.
    pub fn join(&mut self, meeting: Meeting, rank: usize, size: usize) -> Result<(), QatError> {
        self.exchange = Some(Exchange::new(&self.kernels, meeting, rank, size).map_err(failed)?);
        Ok(())
    }

    /// Ends the exchange with other processes after an error.
    pub fn abort(&mut self) {
        if let Some(exchange) = self.exchange.take() {
            exchange.abort();
            self.release();
        }
    }

    /// Drops the graphs. Streams hold a graph that they run until they are synchronised, whose errors belong to earlier work.
    fn release(&mut self) {
        self.graphs.clear();
        let _ = self.kernels.stream().synchronize();
    }

    /// How passes are put on the GPU; `None` before that is decided.
    pub fn launches(&self) -> Option<String> {
        match &self.capture {
            Ok(()) if self.graphs.is_empty() => None,
            Ok(()) => Some("iterations are launched as CUDA graphs".to_owned()),
            Err(reason) => Some(format!("iterations are launched kernel by kernel: {reason}")),
        }
    }

    /// Stores the pixels of the next batch where the GPU copies them from.
    pub fn stage(&mut self, batch: &Batch) -> Result<(), QatError> {
        Ok(self.staging.fill(&batch.pixels).map_err(failed)?)
    }

    /// Puts `batch`, whose pixels are staged, where the next pass reads it. The host goes on while it is copied.
    pub fn load(
        &mut self,
        batch: &Batch,
        partners: Option<&Partners>,
        drop_path: Option<&DropPath>,
    ) -> Result<(), QatError> {
        let (kernels, staging) = (&self.kernels, &mut self.staging);
        write(&self.pixels.narrow(0, 0, batch.len())?, |to| staging.send(kernels, to).map_err(failed))?;
        let upload = |values: &[u32], to: &Tensor| {
            if values.is_empty() {
                return Ok(());
            }
            write(&to.narrow(0, 0, values.len())?, |to| self.kernels.upload(values, to).map_err(failed))
        };
        upload(&batch.labels, &self.labels)?;
        if let Some(memory) = &self.partners {
            // Images of a batch that is not mixed are their own partners.
            upload(partners.map_or(&batch.labels, |partners| &partners.labels), memory)?;
        }
        if let (Some(dropped), Some(drop_path)) = (&self.dropped, drop_path) {
            let factors = drop_path.all(self.images);
            write(dropped, |to| self.kernels.upload(&factors, to).map_err(failed))?;
        }
        Ok(())
    }

    /// Sets what the iteration takes from the host.
    pub fn control(&self, controls: &Controls) -> Result<(), QatError> {
        let values = controls.values();
        Ok(write(&self.controls, |to| self.kernels.upload(&values, to).map_err(failed))?)
    }

    /// Whether passes over `count` images may be recorded now.
    pub fn may_record(&self, count: usize) -> bool {
        count == self.images && self.warm && self.kinds.is_some() && self.capture.is_ok()
    }

    /// Whether kernels are still to be compiled, which takes a while.
    pub fn is_cold(&self) -> bool {
        !self.warm
    }

    /// Whether `pass` is recorded.
    pub fn is_recorded(&self, pass: Pass) -> bool {
        self.graphs.contains_key(&pass)
    }

    /// Records `pass` over the loaded batch. `false` if that fails; no pass is recorded from then on.
    pub fn record(&mut self, work: &mut Work<'_>, pass: Pass) -> Result<bool, QatError> {
        let (kernels, device) = (Arc::clone(&self.kernels), self.device.as_cuda_device()?.clone());
        let mut failure = None;
        let recorded = kernels.stream().capture(|| {
            self.run(work, pass).map_err(|error| {
                let text = error.to_string();
                failure = Some(error);
                CudaError::Unsupported(text)
            })
        });
        match recorded {
            Ok(graph) => {
                self.graphs.insert(pass, graph);
                // Graphs have memory of their own.
                kernels.trim().map_err(failed)?;
                Ok(true)
            }
            Err(error) => {
                self.stop_recording(failure.map_or_else(|| error.to_string(), |error| error.to_string()));
                // What was freed while it failed left an error behind, which the next use of the device would return.
                let _ = device.cuda_stream().context().check_err();
                Ok(false)
            }
        }
    }

    /// Records no pass from now on, for `reason`, and forgets those that are recorded.
    pub fn stop_recording(&mut self, reason: String) {
        self.release();
        self.capture = Err(reason);
    }

    /// Launches the recorded `pass` over the loaded batch.
    ///
    /// # Panics
    /// If it is not recorded.
    pub fn launch(&self, pass: Pass) -> Result<(), QatError> {
        let launched = self.graphs[&pass].launch(self.kernels.stream());
        launched.map_err(|error| QatError::Tensor(failed(error)))
    }

    /// The pass over the loaded batch: loss and gradients, which are exchanged in the last pass.
    pub fn run(&mut self, work: &mut Work<'_>, pass: Pass) -> Result<(), QatError> {
        // Graphs read constants from this cache. Without graphs it would only grow.
        let device = self.device.as_cuda_device()?.clone();
        let _cache = self.capture.is_ok().then(|| device.enable_cuda_graph_htod_cache());
        let result = self.passes_of(work, pass);
        work.student.forget();
        self.warm |= result.is_ok() && work.count == self.images;
        result
    }

    fn passes_of(&mut self, work: &mut Work<'_>, pass: Pass) -> Result<(), QatError> {
        let count = work.count;
        work.student.update_scales()?;
        let patch = work.student.config().patch_size;
        let rows = patches(&self.pixels.narrow(0, 0, count)?, &self.table, patch)?;
        let wanted = work.teacher.map(|teacher| teacher.forward_images(&rows)).transpose()?;
        let drop_path = match (work.drop_path, &self.dropped) {
            (Some(drop_path), Some(dropped)) => {
                Some(drop_path.resident(dropped.narrow(1, 0, count)?.contiguous()?))
            }
            _ => None,
        };
        let logits = work.student.forward_images(rows, count, drop_path, false)?;
        let teacher = wanted.as_ref().map(|wanted| &wanted.logits);
        let dlogits = self.loss(&logits, teacher, work, pass)?;
        drop(wanted);
        let mut sink =
            Sink::new(work.student, pass, self.exchange.take(), (&self.seen, self.kinds.is_some()));
        let (kernels, gradients) = (&self.kernels, &self.gradients);
        let done = work.student.backward_from(&logits, dlogits, Vec::new(), &mut |name, gradient| {
            sink.take(kernels, gradients, name, gradient)
        });
        let ended = done.and_then(|_| Ok(sink.finish(kernels, gradients)?));
        let Sink { exchange, seen, .. } = sink;
        self.exchange = exchange;
        self.seen.extend(seen);
        ended
    }

    /// The gradient of the logits. The loss is stored or added on the device.
    fn loss(
        &self,
        logits: &Tensor,
        teacher: Option<&Tensor>,
        work: &Work<'_>,
        pass: Pass,
    ) -> Result<Tensor, QatError> {
        let (count, keys) = (work.count, &work.job.loss);
        let weights = LossWeights {
            labels: keys.labels,
            kl: if teacher.is_some() { keys.kl } else { 0.0 },
            smoothing: keys.smoothing,
            temperature: keys.temperature,
            share: work.share,
            first: pass.first,
        };
        let labels = self.labels.narrow(0, 0, count)?;
        let partners = self.partners.as_ref().map(|partners| partners.narrow(0, 0, count)).transpose()?;
        let (x, labels, controls) = (Held::new(logits)?, Held::new(&labels)?, Held::new(&self.controls)?);
        let (x, labels, controls) = (x.view()?, labels.view()?, controls.view()?);
        let optional = (teacher.map(Held::new).transpose()?, partners.as_ref().map(Held::new).transpose()?);
        let teacher = optional.0.as_ref().map(Held::view).transpose()?;
        let partners = optional.1.as_ref().map(Held::view).transpose()?;
        let targets = Targets {
            teacher: teacher.as_ref(),
            labels: pass.labelled.then_some(&labels),
            partners: partners.as_ref(),
        };
        let mut gradient = None;
        write(&self.outcome, |mut outcome| {
            let found = self.kernels.loss(&x, count, targets, weights, &controls, &mut outcome);
            let device = self.device.as_cuda_device()?;
            gradient = Some(tensor(found.map_err(failed)?, device, logits.shape()));
            Ok(())
        })?;
        Ok(gradient.expect("set by the call"))
    }

    /// A pass of a process whose batch is empty: it adds nothing.
    pub fn nothing(&mut self, student: &Student, pass: Pass) -> Result<(), QatError> {
        if pass.first {
            let (zeros, kernels) = (self.gradients.zeros_like()?, &self.kernels);
            let held = Held::new(&zeros)?;
            let zeros = held.view::<f32>()?;
            write(&self.gradients, |to| kernels.copy(&zeros, to).map_err(failed))?;
            let zeros = [0.0; Outcome::LEN];
            write(&self.outcome, |to| kernels.upload(&zeros, to).map_err(failed))?;
        }
        let mut sink = Sink::new(student, pass, self.exchange.take(), (&self.seen, self.kinds.is_some()));
        let ended = sink.finish(&self.kernels, &self.gradients);
        self.exchange = sink.exchange.take();
        Ok(ended?)
    }

    /// Settles which parameters have gradients, after the first iteration with images: those that have one in any process.
    /// `sum` adds values over all processes.
    pub fn settle(
        &mut self,
        student: &Student,
        sum: &mut dyn FnMut(&mut [f64]) -> Result<(), QatError>,
    ) -> Result<(), QatError> {
        if self.kinds.is_some() {
            return Ok(());
        }
        let (flat, _) = student.flat().expect("the student is on a GPU");
        let names = student.parameters().keys();
        let mut found: Vec<f64> =
            names.clone().map(|name| f64::from(u8::from(self.seen.contains(name)))).collect();
        sum(&mut found)?;
        self.seen =
            names.zip(found).filter(|(_, found)| *found > 0.0).map(|(name, _)| name.clone()).collect();
        self.kinds = Some(Tensor::from_vec(kinds(flat, student, &self.seen), flat.len(), &self.device)?);
        Ok(())
    }

    /// The update of the parameters, unless something is not finite or the loss is too high. Call [`DeviceStep::settle`]
    /// before.
    pub fn update(&mut self, student: &Student, job: &Job) -> Result<(), QatError> {
        let (_, values) = student.flat().expect("the student is on a GPU");
        let kinds = self.kinds.as_ref().expect("settled before");
        let rule = rule(&job.optimizer);
        let held = (Held::new(&self.gradients)?, Held::new(kinds)?, Held::new(&self.controls)?);
        let (grad, kinds, controls) = (held.0.view()?, held.1.view()?, held.2.view()?);
        let (grad, kinds) = (&grad, &kinds);
        write(values, |values| {
            write(&self.first_moments, |first| {
                write(&self.second_moments, |second| {
                    write_if_some(self.average.as_ref(), |average| {
                        let flat = FlatMemory { values, first, second, average, grad, kinds };
                        write(&self.outcome, |mut outcome| {
                            self.kernels.update(flat, rule, &controls, &mut outcome).map_err(failed)
                        })
                    })
                })
            })
        })?;
        Ok(())
    }

    /// Waits for the iteration, and reads its result. `waiting` is called now and then meanwhile; its error ends the wait.
    pub fn outcome(
        &mut self,
        waiting: &mut dyn FnMut() -> Result<(), QatError>,
    ) -> Result<Outcome, QatError> {
        if let Some(exchange) = &self.exchange {
            let idle = || self.kernels.stream().is_idle().map_err(|error| QatError::Tensor(failed(error)));
            let mut polls = 0u32;
            while !idle()? {
                std::thread::sleep(std::time::Duration::from_micros(50));
                polls += 1;
                if polls.is_multiple_of(1000) {
                    let healthy = exchange.health().map_err(|error| QatError::Tensor(failed(error)));
                    healthy.and_then(|()| waiting())?;
                }
            }
        }
        let values: Vec<f64> = self.outcome.to_vec1()?;
        Ok(Outcome::from_values(&values.try_into().expect("it has this many values")))
    }

    /// The gradients by parameter, for messages.
    pub fn gradients(&self, student: &Student) -> Result<BTreeMap<String, Tensor>, QatError> {
        let (flat, _) = student.flat().expect("the student is on a GPU");
        let views = flat.views(&self.gradients)?;
        Ok(views.into_iter().filter(|(name, _)| self.seen.contains(name)).collect())
    }
}

impl Drop for DeviceStep {
    fn drop(&mut self) {
        // Before the exchange, which waits for graphs that have recorded its sums.
        self.release();
    }
}

fn kinds(flat: &Flat, student: &Student, seen: &BTreeSet<String>) -> Vec<u8> {
    flat.each(Kind::NO_GRADIENT, |name| {
        let parameter = &student.parameters()[name];
        let bits = [
            (decays(name, parameter), Kind::DECAYS),
            (is_scale(name), Kind::SCALE),
            (!seen.contains(name), Kind::NO_GRADIENT),
        ];
        bits.into_iter().filter(|(is, _)| *is).map(|(_, bit)| bit).sum()
    })
}

fn rule(keys: &OptimizerKeys) -> UpdateRule {
    UpdateRule {
        moments: MomentRule::new(keys.betas, keys.eps),
        clip: keys.clip_norm as f32,
        decay_average: keys.ema as f32,
        limit: LIMIT,
    }
}
