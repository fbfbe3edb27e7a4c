//! Iterations on a GPU without the host: loss, gradient norm, clipping and AdamW run on the device, and the
//! host reads the result once, at the end. From the second iteration on, a pass over a batch is one CUDA
//! graph, which is recorded once and launched again for every batch.
//!
//! What changes from batch to batch lies in memory that the graph reads: pixels, labels, factors of dropped
//! branches, learning rates. A graph frees all that it allocates. A backbone's batches have images of several
//! sizes: each size has graphs of its own.

mod graphs;
mod maps;
mod pass;
mod sink;
mod update;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use swinq_cuda::nccl::{Communicator, UniqueId};
use swinq_cuda::training::{Controls, Outcome, Staging, Training};
use swinq_float::ops::taped::cuda::{failed, training, write};
use swinq_model::{Batch, Size};

use crate::drop_path::DropPath;
use crate::error::QatError;
use crate::job::Job;
use crate::mixing::Partners;
use crate::student::{Student, Teacher};
use graphs::Recorded;

/// The memory of a training's iterations on a GPU, and their graphs.
pub(crate) struct DeviceStep {
    device: Device,
    kernels: Arc<Training>,
    /// Images of a batch.
    images: usize,
    staging: Staging,
    /// The bytes of the largest batch that was loaded. A batch `[images, height, width, channels]` lies at
    /// their start.
    pixels: Tensor,
    /// Height and width of the images of the loaded batch.
    size: Size,
    /// The value of each byte, `[channels, 256]`.
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
    graphs: HashMap<(Pass, Size), Recorded>,
    /// Whether passes are recorded, and why not.
    capture: Result<(), String>,
    /// The sizes of whole batches over which a pass has run, which compiles kernels and fills caches. That
    /// cannot be recorded.
    warm: HashSet<Size>,
    communicator: Option<Communicator>,
}

/// Kinds of passes: an iteration's first one stores gradients and later ones add to them, and the last
/// one exchanges them with other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pass {
    pub first: bool,
    pub last: bool,
    /// Whether images have labels.
    pub labelled: bool,
}

/// The student, the teacher and the batch of a pass.
pub(crate) struct PassInputs<'a> {
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
        let (images, channels) = (job.batch_size, student.config().in_chans);
        let size = student.config().image_size;
        let pixels = Tensor::zeros(images * size.area() * channels, DType::U8, &device)?;
        let table = student.transform().lookup();
        let table: Vec<f32> = table.iter().flat_map(|row| row.iter().copied()).collect();
        let drop = |path: &DropPath| Tensor::zeros((path.branches(), images), DType::F32, &device);
        let partners = (!job.mixing.is_off()).then(|| Tensor::zeros(images, DType::U32, &device));
        let capture = student.scales().needs_host().map_or(Ok(()), Err);
        Ok(DeviceStep {
            staging: Staging::new(&kernels, pixels.elem_count()).map_err(failed)?,
            table: Tensor::from_vec(table, (channels, 256), &device)?,
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
            graphs: HashMap::new(),
            capture,
            warm: HashSet::new(),
            communicator: None,
            pixels,
            size,
            images,
            kernels,
            device,
        })
    }

    /// Joins the other processes, to add gradients with them.
    ///
    /// # Errors
    /// NCCL fails.
    pub fn join(&mut self, id: UniqueId, rank: usize, size: usize) -> Result<(), QatError> {
        self.communicator = Some(Communicator::new(&self.kernels, id, rank, size).map_err(failed)?);
        Ok(())
    }

    /// Ends the exchange with other processes after an error.
    pub fn abort(&mut self) {
        if let Some(communicator) = self.communicator.take() {
            communicator.abort();
            self.release();
        }
    }

    /// Drops the graphs. Streams hold a graph that they run until they are synchronised, whose errors belong
    /// to earlier work.
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

    /// Stores the pixels of the next batch where the GPU copies them from. A larger batch than any before
    /// takes new memory, for which passes are recorded anew.
    pub fn stage(&mut self, batch: &Batch) -> Result<(), QatError> {
        let bytes = batch.pixels.len();
        if bytes > self.pixels.elem_count() {
            self.release();
            self.pixels = Tensor::zeros(bytes, DType::U8, &self.device)?;
            self.staging = Staging::new(&self.kernels, bytes).map_err(failed)?;
        }
        Ok(self.staging.fill(&batch.pixels).map_err(failed)?)
    }

    /// Puts `batch`, whose pixels are staged, where the next pass reads it. The host goes on while it is
    /// copied.
    pub fn load(
        &mut self,
        batch: &Batch,
        partners: Option<&Partners>,
        drop_path: Option<&DropPath>,
    ) -> Result<(), QatError> {
        let (kernels, staging) = (&self.kernels, &mut self.staging);
        write(&self.pixels.narrow(0, 0, batch.pixels.len())?, |to| {
            staging.send(kernels, to).map_err(failed)
        })?;
        self.size = batch.size;
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

    /// Sets the values that the iteration takes from the host.
    pub fn control(&self, controls: &Controls) -> Result<(), QatError> {
        let values = controls.values();
        Ok(write(&self.controls, |to| self.kernels.upload(&values, to).map_err(failed))?)
    }
}

impl Drop for DeviceStep {
    fn drop(&mut self) {
        // Before the communicator, which waits for graphs that have recorded its sums.
        self.release();
    }
}
