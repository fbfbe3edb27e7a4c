//! The loss of a batch's logits, and its gradient.

use cudarc::driver::{CudaSlice, CudaView, CudaViewMut};

use super::{Call, Controls, Outcome, THREADS, Training, uint};
use crate::params::train_loss::Params;
use crate::{CudaError, LaunchConfig, Program};

/// The parts of a batch's loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossWeights {
    /// Weight of the cross-entropy.
    pub labels: f64,
    /// Weight of the divergence from the teacher.
    pub kl: f64,
    /// Share of each label that all classes get.
    pub smoothing: f64,
    /// Temperature of the divergence.
    pub temperature: f64,
    /// The batch's share of the iteration's loss.
    pub share: f64,
    /// Whether the batch is the iteration's first, whose loss is stored; those of others are added.
    pub first: bool,
}

/// The targets of the logits.
#[derive(Clone, Copy)]
pub struct Targets<'a> {
    /// The teacher's logits, `[images, classes]`.
    pub teacher: Option<&'a CudaView<'a, f32>>,
    /// The class of each image, `[images]`.
    pub labels: Option<&'a CudaView<'a, u32>>,
    /// The class of the image that is mixed into each, `[images]`.
    pub partners: Option<&'a CudaView<'a, u32>>,
}

/// The programs and launches of the loss.
pub struct LossProgram;

impl LossProgram {
    /// The program of `entry`: `loss_of_images` or `loss_of_batch`.
    pub fn program(entry: &'static str) -> Program {
        Program::new("train_loss.cu", entry).define("THREADS", THREADS.into())
    }

    /// Launch configuration of the loss of each image.
    pub fn images_launch(images: usize) -> LaunchConfig {
        LaunchConfig { shared: 8 * THREADS, ..LaunchConfig::linear(uint(images), THREADS) }
    }

    /// Launch configuration of their sum.
    pub fn batch_launch() -> LaunchConfig {
        LaunchConfig::linear(1, THREADS)
    }
}

impl Training {
    /// The gradient of the loss of `logits` `[images, classes]`, times the factor of the loss in `controls`.
    /// Stores the loss in `outcome`, or adds it.
    ///
    /// # Errors
    /// The kernel does not compile, or the driver fails.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn loss(
        &self,
        logits: &CudaView<'_, f32>,
        images: usize,
        targets: Targets<'_>,
        weights: LossWeights,
        controls: &CudaView<'_, f64>,
        outcome: &mut CudaViewMut<'_, f64>,
    ) -> Result<CudaSlice<f32>, CudaError> {
        assert!(images > 0 && logits.len().is_multiple_of(images), "loss: {} logits", logits.len());
        let classes = logits.len() / images;
        self.expect("loss: outcome", outcome, Outcome::LEN);
        let mut gradient = self.allocate(logits.len())?;
        let mut of_images = self.scratch(3 * images)?;
        let mut call = Call::new(self);
        let params = Params {
            logits: call.read("loss", logits, images * classes),
            teacher: call.read("loss: teacher", targets.teacher, images * classes),
            labels: call.read("loss: labels", targets.labels, images),
            partners: call.read("loss: partners", targets.partners, images),
            controls: call.read("loss: controls", controls, Controls::LEN),
            gradient: call.write(&mut gradient),
            of_images: call.write(&mut of_images),
            outcome: call.write(outcome),
            weight_labels: weights.labels,
            weight_kl: weights.kl,
            smoothing: weights.smoothing,
            temperature: weights.temperature,
            factor: weights.share / images as f64,
            images: uint(images),
            classes: uint(classes),
            first: weights.first.into(),
        };
        // SAFETY: `Params` is the kernels' parameter. The arrays have the lengths checked above. A label is
        // an index of the logits only if it is below `classes`, which the kernel checks.
        unsafe {
            self.launch(
                &LossProgram::program("loss_of_images"),
                LossProgram::images_launch(images),
                &params,
            )?;
            self.launch(&LossProgram::program("loss_of_batch"), LossProgram::batch_launch(), &params)?;
        }
        drop(call);
        Ok(gradient)
    }
}
