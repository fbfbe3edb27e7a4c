//! Validation of backbones: the feature maps of a model on the engine against the teacher's.

use std::collections::HashSet;

use candle_core::Tensor;
use swinq_data::{Padding, Sizing};
use swinq_eval::{Distortion, EvalError};
use swinq_float::{Float, Swin};
use swinq_int8_runtime::{Engine, Images as Pixels, OutputLayout};
use swinq_model::quantized::{FloatModel, Score};
use swinq_model::{Batch, BatchSource, BoxError, Transform};
use swinq_qat::Validation;
use swinq_qat::job::Job;

use super::float_device;
use crate::features::run_all;
use crate::{Error, Images, ReadOptions};

/// The most pixels of the images that run at a time, unless one image has more.
const PIXELS: usize = 4 << 20;
/// The highest ratio that is told apart, in dB: a f32 has no more bits.
const MOST_DB: f64 = 200.0;

/// The float network whose outputs a backbone should have, in f32 on the job's device.
pub(super) struct TeacherMaps {
    swin: Swin,
    transform: Transform,
    sizing: Sizing,
    /// The weight of each output in the score; their sum is 1.
    weights: Vec<f64>,
}

/// The distortions of the outputs over all images, and over those by which models are compared.
struct Distortions {
    all: Vec<Distortion>,
    compared: Vec<Distortion>,
}

impl TeacherMaps {
    pub(super) fn new(job: &Job, teacher: &FloatModel, sizing: Sizing) -> Result<TeacherMaps, Error> {
        let device = float_device(job).open()?;
        let swin =
            Swin::new(&teacher.config, &teacher.tensors, &device).map_err(swinq_qat::QatError::from)?;
        let outputs = teacher.config.outputs.len() as f64;
        let weights = match job.loss.outputs > 0.0 {
            true => job.loss.weights_of(&teacher.config),
            false => vec![1.0 / outputs; teacher.config.outputs.len()],
        };
        Ok(TeacherMaps { swin, transform: teacher.transform.clone(), sizing, weights })
    }

    /// Runs `engine` and the teacher on `images`, some of which are those by which models are `compared`.
    ///
    /// # Errors
    /// An error of a network or of the images; an interruption, if `stop` says so.
    pub(super) fn compared_with(
        &self,
        engine: &Engine,
        (images, compared): (&Images, &Images),
        read: &ReadOptions,
        stop: &dyn Fn() -> bool,
    ) -> Result<Validation, BoxError> {
        let outputs = engine.outputs().len();
        let mut found = Distortions {
            all: vec![Distortion::default(); outputs],
            compared: vec![Distortion::default(); outputs],
        };
        let chosen: HashSet<usize> = compared.ids().iter().collect();
        let mut batches = images.batches_by_size(
            engine.config(),
            engine.transform(),
            read,
            self.sizing,
            Padding::default(),
        )?;
        let (mut seen, mut counted) = (0, 0);
        for index in 0..batches.batches() {
            for batch in pieces(&batches.batch(0, index)?) {
                if stop() {
                    return Err(EvalError::Interrupted { done: seen, total: images.len() }.into());
                }
                self.add(engine, &batch, &chosen, &mut found)?;
                seen += batch.len();
                counted += batch.ids.iter().filter(|id| chosen.contains(id)).count();
            }
        }
        let names = engine.outputs().iter().map(|output| output.name.clone());
        let of_all: Vec<f64> = found.all.iter().map(sqnr).collect();
        let score = |distortions: &[Distortion]| Score::Sqnr(self.mean(distortions));
        let of = |images: usize, distortions| (images as u64, score(distortions));
        let mut validation = Validation::new(of(seen, &found.all), of(counted, &found.compared));
        validation.outputs = names.zip(of_all).collect();
        Ok(validation)
    }

    /// Adds the images of `batch`.
    fn add(
        &self,
        engine: &Engine,
        batch: &Batch,
        chosen: &HashSet<usize>,
        found: &mut Distortions,
    ) -> Result<(), BoxError> {
        let taught = self.swin.outputs(&self.swin.images(batch, &self.transform)?, &mut Float)?;
        let host = |map: &Tensor| map.flatten_all()?.to_vec1::<f32>();
        let taught = taught.iter().map(host).collect::<candle_core::Result<Vec<Vec<f32>>>>()?;
        let mut maps: Vec<Vec<f32>> = taught.iter().map(|map| vec![0.0; map.len()]).collect();
        run_all(engine, Pixels::new(batch.size, &batch.pixels[..]), OutputLayout::Rows, &mut maps)?;
        for (output, (map, taught)) in maps.iter().zip(&taught).enumerate() {
            let of_image = map.len() / batch.len();
            for ((map, taught), id) in map.chunks(of_image).zip(taught.chunks(of_image)).zip(&batch.ids) {
                let mut piece = Distortion::default();
                piece.update(taught, map)?;
                found.all[output].merge(&piece);
                if chosen.contains(id) {
                    found.compared[output].merge(&piece);
                }
            }
        }
        Ok(())
    }

    /// The weighted mean of the outputs' SQNR, in dB.
    fn mean(&self, distortions: &[Distortion]) -> f64 {
        distortions.iter().zip(&self.weights).map(|(distortion, weight)| weight * sqnr(distortion)).sum()
    }
}

fn sqnr(distortion: &Distortion) -> f64 {
    distortion.sqnr_db().min(MOST_DB)
}

/// The images of `batch`, as many at a time as [`PIXELS`] allows.
fn pieces(batch: &Batch) -> Vec<Batch> {
    let most = (PIXELS / batch.size.area()).max(1);
    let pixels = batch.pixels.chunks(most * batch.image_bytes());
    let piece = |(pixels, ids): (&[u8], &[usize])| Batch {
        pixels: pixels.to_vec(),
        ids: ids.to_vec(),
        ..Batch::empty(batch.size, batch.channels)
    };
    pixels.zip(batch.ids.chunks(most)).map(piece).collect()
}
