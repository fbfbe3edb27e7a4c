//! The loss of a feature map: its relative squared error, and its gradient.

use cudarc::driver::{CudaSlice, CudaView, CudaViewMut};

use super::{Call, Controls, Outcome, THREADS, Training, loop_launch, uint};
use crate::params::train_maps::Params;
use crate::{CudaError, LaunchConfig, Program};

/// Values of an image that a block adds up.
const PART: usize = 16_384;

/// The place of a map in the loss of an iteration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MapLoss {
    /// Number of images.
    pub images: usize,
    /// Weight of the loss of all maps.
    pub weight: f64,
    /// The share of an image's error of this map in that loss.
    pub share: f64,
    /// Whether the map is the iteration's first, whose loss is stored; those of others are added.
    pub first: bool,
}

/// The programs and launches of the loss of a map.
pub struct MapsProgram;

impl MapsProgram {
    /// The program of `entry`: `squares`, `errors` or `gradient`.
    pub fn program(entry: &'static str) -> Program {
        Program::new("train_maps.cu", entry).define("THREADS", THREADS.into())
    }

    /// Number of parts of an image of `values` values, and the length of each but the last.
    pub fn parts(values: usize) -> (usize, usize) {
        (values.div_ceil(PART), PART)
    }

    /// Launch configuration of `squares`, for all parts of `images` images.
    pub fn squares_launch(images: usize, parts: usize) -> LaunchConfig {
        LaunchConfig { shared: 8 * THREADS, ..LaunchConfig::linear(uint(images * parts), THREADS) }
    }

    /// Launch configuration of `errors`.
    pub fn errors_launch() -> LaunchConfig {
        LaunchConfig::linear(1, THREADS)
    }

    /// Launch configuration of `gradient`, for `count` values.
    pub fn gradient_launch(count: usize) -> LaunchConfig {
        loop_launch(count)
    }
}

impl Training {
    /// The gradient of the loss of `map` `[images, values]`, times the factor of the loss in `controls`.
    /// Stores the loss in `outcome`, or adds it. An image whose `target` is zero everywhere makes it infinite
    /// or a NaN.
    ///
    /// # Errors
    /// The kernels do not compile, or the driver fails.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn loss_of_map(
        &self,
        map: &CudaView<'_, f32>,
        target: &CudaView<'_, f32>,
        of: MapLoss,
        controls: &CudaView<'_, f64>,
        outcome: &mut CudaViewMut<'_, f64>,
    ) -> Result<CudaSlice<f32>, CudaError> {
        let MapLoss { images, weight, share, first } = of;
        let count = map.len();
        assert!(images > 0 && count > 0 && count.is_multiple_of(images), "{count} values of {images} images");
        self.expect("loss of a map: outcome", outcome, Outcome::LEN);
        let values = count / images;
        let (parts, part) = MapsProgram::parts(values);
        let mut gradient = self.allocate(count)?;
        let (mut partial, mut of_images) = (self.scratch(2 * images * parts)?, self.scratch(2 * images)?);
        let mut call = Call::new(self);
        let params = Params {
            map: call.read("loss of a map", map, count),
            target: call.read("loss of a map: target", target, count),
            controls: call.read("loss of a map: controls", controls, Controls::LEN),
            gradient: call.write(&mut gradient),
            partial: call.write(&mut partial),
            of_images: call.write(&mut of_images),
            outcome: call.write(outcome),
            weight,
            share,
            images: uint(images),
            values: uint(values),
            part: uint(part),
            parts: uint(parts),
            first: first.into(),
        };
        let launches = [
            ("squares", MapsProgram::squares_launch(images, parts)),
            ("errors", MapsProgram::errors_launch()),
            ("gradient", MapsProgram::gradient_launch(count)),
        ];
        for (entry, config) in launches {
            // SAFETY: `Params` is the kernels' parameter. The arrays have the lengths checked above:
            // `squares` has a block for each part, and the others have loops over images and over values.
            unsafe { self.launch(&MapsProgram::program(entry), config, &params)? };
        }
        drop(call);
        Ok(gradient)
    }
}
