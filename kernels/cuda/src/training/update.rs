//! The update of all parameters by AdamW, with all of them in one piece of memory.

use cudarc::driver::{CudaView, CudaViewMut};

use super::{Call, THREADS, Training, uint};
pub use crate::params::train::MomentRule;
use crate::params::train_controls;
use crate::params::train_update::Params;
pub use crate::params::train_update::UpdateRule;
use crate::{CudaError, LaunchConfig, Program};

/// Maximum number of blocks; beyond it, a thread processes several values.
const BLOCKS: u32 = 1024;

impl MomentRule {
    /// The rule of the decay rates `betas`.
    pub fn new(betas: [f64; 2], epsilon: f64) -> MomentRule {
        let [[keep_first, add_first], [keep_second, add_second]] =
            betas.map(|beta| [beta, 1.0 - beta].map(|factor| factor as f32));
        MomentRule { keep_first, add_first, keep_second, add_second, epsilon: epsilon as f32 }
    }
}

/// The values that an iteration takes from the host.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Controls {
    /// Factor of the loss in the backward pass.
    pub loss_scale: f64,
    /// The share of an image's own label, if images are mixed.
    pub partner_share: f64,
    /// The highest loss with which parameters are updated.
    pub most_loss: f64,
    /// Learning rates of weights and of scales, with the bias correction of the first moment.
    pub rates: [f64; 2],
    /// The factor of weights that decay.
    pub keep: f64,
    /// The bias correction of the second moment.
    pub unbias: f64,
}

impl Controls {
    /// Number of values.
    pub const LEN: usize = size_of::<train_controls::Controls>() / 8;

    /// The values in the order of the kernels.
    pub fn values(&self) -> [f64; Controls::LEN] {
        let Controls { loss_scale, partner_share, most_loss, keep, unbias, .. } = *self;
        let [rate_weights, rate_scales] = self.rates;
        let values = train_controls::Controls {
            loss_scale,
            partner_share,
            most_loss,
            rate_weights,
            rate_scales,
            keep,
            unbias,
        };
        // SAFETY: the struct of the kernels consists of f64s.
        unsafe { std::mem::transmute(values) }
    }
}

/// The results of an iteration for the host.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Cross-entropy with the labels.
    pub labels: f64,
    /// Divergence from the teacher.
    pub kl: f64,
    /// Relative error of a backbone's feature maps.
    pub outputs: f64,
    /// Their weighted sum.
    pub total: f64,
    /// Number of images that are classified correctly.
    pub correct: f64,
    /// Norm of the gradient, without the factor of the loss.
    pub norm: f64,
    /// Whether the parameters were updated.
    pub updated: bool,
    /// Whether a parameter was not finite.
    pub unusable: bool,
}

impl Outcome {
    /// Number of values.
    pub const LEN: usize = size_of::<train_controls::Outcome>() / 8;

    /// The result in `values`, in the order of the kernels.
    pub fn from_values(values: &[f64; Outcome::LEN]) -> Outcome {
        // SAFETY: the struct of the kernels consists of f64s.
        let values: train_controls::Outcome = unsafe { std::mem::transmute(*values) };
        let train_controls::Outcome { labels, kl, outputs, total, correct, norm, updated, unusable } = values;
        Outcome {
            labels,
            kl,
            outputs,
            total,
            correct,
            norm,
            updated: updated > 0.0,
            unusable: unusable > 0.0,
        }
    }
}

/// Bits of a parameter's kind.
#[derive(Clone, Copy, Debug)]
pub struct Kind;

impl Kind {
    /// Its weights decay.
    pub const DECAYS: u8 = 1;
    /// It is the ratio of a learned scale.
    pub const SCALE: u8 = 2;
    /// It has no gradient, and stays as it is.
    pub const NO_GRADIENT: u8 = 4;
}

/// The parameters of a training, one after the other.
pub struct Flat<'a> {
    /// Parameters.
    pub values: CudaViewMut<'a, f32>,
    /// First moments.
    pub first: CudaViewMut<'a, f32>,
    /// Second moments.
    pub second: CudaViewMut<'a, f32>,
    /// Moving average of the parameters.
    pub average: Option<CudaViewMut<'a, f32>>,
    /// Gradients.
    pub grad: &'a CudaView<'a, f32>,
    /// The [`Kind`] of each value.
    pub kinds: &'a CudaView<'a, u8>,
}

/// The programs and launches of the update.
pub struct UpdateProgram;

impl UpdateProgram {
    /// The program of `entry`: `measure`, `decide`, `update` or `add`.
    pub fn program(entry: &'static str) -> Program {
        Program::new("train_update.cu", entry).define("THREADS", THREADS.into())
    }

    /// Launch configuration of all entries but `decide` for `count` values.
    pub fn launch(count: usize) -> LaunchConfig {
        let blocks = uint(count).div_ceil(THREADS).min(BLOCKS);
        LaunchConfig { shared: 8 * THREADS, ..LaunchConfig::linear(blocks, THREADS) }
    }

    /// Launch configuration of `decide`.
    pub fn decide_launch() -> LaunchConfig {
        LaunchConfig { shared: 8 * THREADS, ..LaunchConfig::linear(1, THREADS) }
    }
}

impl Training {
    /// Updates all parameters by their gradients, unless the loss, the gradient or a parameter is not finite
    /// or the loss is above the highest in `controls`. `outcome` has the loss, and gets the rest.
    ///
    /// # Errors
    /// The kernels do not compile, or the driver fails.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn update(
        &self,
        mut flat: Flat<'_>,
        rule: UpdateRule,
        controls: &CudaView<'_, f64>,
        outcome: &mut CudaViewMut<'_, f64>,
    ) -> Result<(), CudaError> {
        let count = flat.values.len();
        self.expect("update: moments", &flat.first, count);
        self.expect("update: moments", &flat.second, count);
        flat.average.iter().for_each(|average| self.expect("update: average", average, count));
        self.expect("update: outcome", outcome, Outcome::LEN);
        let config = UpdateProgram::launch(count);
        let blocks = config.grid[0];
        let mut partial = self.scratch(2 * blocks as usize)?;
        let mut call = Call::new(self);
        let params = Params {
            grad: call.read("update: gradients", flat.grad, count),
            values: call.write(&mut flat.values),
            first: call.write(&mut flat.first),
            second: call.write(&mut flat.second),
            average: flat.average.as_mut().map_or(0, |average| call.write(average)),
            kinds: call.read("update: kinds", flat.kinds, count),
            partial: call.write(&mut partial),
            controls: call.read("update: controls", controls, Controls::LEN),
            outcome: call.write(outcome),
            count: uint(count),
            blocks,
            rule,
        };
        // SAFETY: `Params` is the kernels' parameter. All arrays of parameters have `count` values, and those
        // that are written are borrowed mutably; `partial` has two values for each block of `measure`.
        unsafe {
            self.launch(&UpdateProgram::program("measure"), config, &params)?;
            self.launch(&UpdateProgram::program("decide"), UpdateProgram::decide_launch(), &params)?;
            self.launch(&UpdateProgram::program("update"), config, &params)?;
        }
        Ok(())
    }

    /// Adds `terms` to `sums`.
    ///
    /// # Errors
    /// The kernel does not compile, or the driver fails.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn add_to(
        &self,
        sums: &mut CudaViewMut<'_, f32>,
        terms: &CudaView<'_, f32>,
    ) -> Result<(), CudaError> {
        let count = sums.len();
        let mut call = Call::new(self);
        let params = Params {
            grad: call.read("add", terms, count),
            values: call.write(sums),
            count: uint(count),
            ..Params::default()
        };
        // SAFETY: `Params` is the kernel's parameter; `add` uses two arrays of `count` values, one of them
        // borrowed mutably.
        unsafe { self.launch(&UpdateProgram::program("add"), UpdateProgram::launch(count), &params) }
    }
}
