//! One model on several GPUs.

use swinq_int8_runtime::{Images, RuntimeError};
use swinq_model::{Batch, BoxError, Classifier, Logits, Size};

use crate::features::compute_images;
use crate::{Engine, EngineOptions, Error, Model};

/// A model on several GPUs: an engine on each, behind one [`Classifier`]. The images of a batch are divided
/// evenly among the GPUs, which work at the same time.
pub struct Replicas {
    /// At least one.
    engines: Vec<Engine>,
}

impl Replicas {
    /// Prepares `model` on the GPUs with these ordinals. Each holds its own copy of the weights. The option
    /// `cuda.device` is ignored.
    ///
    /// # Errors
    /// [`Error::Argument`] if no GPU or one GPU twice is given; the errors of [`Model::engine`].
    pub fn new(model: &Model, options: &EngineOptions, devices: &[usize]) -> Result<Replicas, Error> {
        if devices.is_empty() {
            return Err(Error::argument("devices", "there must be at least one GPU"));
        }
        if let Some(twice) = (1..devices.len()).find(|&i| devices[..i].contains(&devices[i])) {
            return Err(Error::argument("devices", format!("GPU {} is given twice", devices[twice])));
        }
        let on = |&device: &usize| {
            let mut options = options.clone();
            options.cuda.device = device;
            model.engine(&options)
        };
        Ok(Replicas { engines: devices.iter().map(on).collect::<Result<_, _>>()? })
    }

    /// The engines, in the order of the devices.
    pub fn engines(&self) -> &[Engine] {
        &self.engines
    }

    /// Scores of u8 `[images, height, width, channels]` of the model's own size into f32 `[images, classes]`.
    /// Every GPU runs its share in batches of `each` images.
    ///
    /// # Errors
    /// [`Error::Runtime`]: the errors of [`Engine::infer_in_batches`].
    pub fn infer_in_batches(&self, each: usize, pixels: &[u8], logits: &mut [f32]) -> Result<(), Error> {
        let (image_bytes, classes) = (self.engines[0].image_bytes(), self.engines[0].classes());
        let images = logits.len() / classes;
        if logits.len() != images * classes || images.checked_mul(image_bytes) != Some(pixels.len()) {
            // One engine says what is wrong.
            return Ok(self.engines[0].infer_in_batches(each, pixels, logits)?);
        }
        let results: Vec<Result<(), Error>> = std::thread::scope(|scope| {
            let (mut pixels, mut logits) = (pixels, logits);
            let mut workers = Vec::new();
            for (engine, share) in self.engines.iter().zip(shares(images, self.engines.len())) {
                let (own_pixels, other_pixels) = pixels.split_at(share * image_bytes);
                let (own_logits, other_logits) = logits.split_at_mut(share * classes);
                (pixels, logits) = (other_pixels, other_logits);
                workers.push(scope.spawn(move || -> Result<(), Error> {
                    Ok(engine.infer_in_batches(each, own_pixels, own_logits)?)
                }));
            }
            let joined = workers.into_iter().map(|worker| worker.join());
            joined.map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        });
        results.into_iter().collect()
    }

    /// Computes every output of `batch` into `values`, f32 with the channels first. The images are divided
    /// evenly among the GPUs.
    pub(crate) fn compute(&self, batch: &Batch, values: &mut Vec<Vec<f32>>) -> Result<(), RuntimeError> {
        let own_pixels = |first: usize, images: usize| {
            let bytes = batch.image_bytes();
            Images::new(batch.size, &batch.pixels[first * bytes..(first + images) * bytes])
        };
        let mut first = 0;
        let parts: Vec<(&Engine, usize, usize)> = self
            .engines
            .iter()
            .zip(shares(batch.len(), self.engines.len()))
            .map(|(engine, share)| {
                first += share;
                (engine, first - share, share)
            })
            .filter(|(_, _, share)| *share > 0)
            .collect();
        let found: Vec<Result<Vec<Vec<f32>>, RuntimeError>> = std::thread::scope(|scope| {
            let run = |(engine, first, share)| {
                let mut own = Vec::new();
                compute_images(engine, own_pixels(first, share), share, &mut own).map(|()| own)
            };
            let workers: Vec<_> = parts.into_iter().map(|part| scope.spawn(move || run(part))).collect();
            let joined = workers.into_iter().map(|worker| worker.join());
            joined.map(|result| result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        });
        values.clear();
        for own in found {
            let own = own?;
            values.resize_with(own.len(), Vec::new);
            values.iter_mut().zip(own).for_each(|(values, own)| values.extend(own));
        }
        Ok(())
    }
}

/// The number of images of each of `engines` engines.
fn shares(images: usize, engines: usize) -> impl Iterator<Item = usize> {
    (0..engines).map(move |i| images / engines + usize::from(i < images % engines))
}

impl Classifier for Replicas {
    fn classes(&self) -> usize {
        self.engines[0].classes()
    }

    fn input_size(&self) -> Size {
        self.engines[0].input_size()
    }

    fn channels(&self) -> usize {
        self.engines[0].channels()
    }

    fn infer(&self, batch: &Batch) -> Result<Logits, BoxError> {
        let engine = &self.engines[0];
        let own = (engine.input_size(), engine.channels());
        if self.engines.len() == 1 || (batch.size, batch.channels) != own {
            return Ok(engine.infer(batch)?);
        }
        let classes = engine.classes();
        let mut values = vec![0.0; batch.len() * classes];
        self.infer_in_batches(engine.max_batch(), &batch.pixels, &mut values)?;
        Ok(Logits { values, classes })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use swinq_int8_runtime::Backend;
    use swinq_model::site::all_sites;
    use swinq_model::{Ptq, Recipe, SwinConfig, WindowPolicy};
    use swinq_testing::XorShift;
    use swinq_testing::model::{random, shifted};

    use super::*;

    /// Images of 32 x 32 pixels and of 16 x 64 pixels have as many bytes.
    #[test]
    fn a_batch_of_another_shape_with_as_many_bytes_keeps_its_shape() {
        let float = random(SwinConfig { window_policy: WindowPolicy::Detection, ..shifted() }, 3);
        let ranges: BTreeMap<_, _> = all_sites(&float.config).into_iter().map(|site| (site, 2.0)).collect();
        let recipe = Recipe::shipped("default").unwrap().with_ptq(Ptq::Basic);
        let model = swinq_calib::quantize(&float, &recipe, &ranges).unwrap();
        let backend = EngineOptions { threads: 1, ..EngineOptions::default() }.cpu_options().unwrap();
        let first = Engine::new(&model, Backend::Cpu(backend)).unwrap();
        let replicas = Replicas { engines: vec![first.another().unwrap(), first.another().unwrap()] };
        let mut rng = XorShift::new(8);
        for size in [Size::square(32), Size::new(16, 64)] {
            let mut batch = Batch { ids: (0..3).collect(), ..Batch::empty(size, 3) };
            batch.pixels = (0..3 * batch.image_bytes()).map(|_| rng.next() as u8).collect();
            assert_eq!(Classifier::infer(&replicas, &batch).unwrap(), first.infer(&batch).unwrap(), "{size}");
        }
    }

    #[test]
    fn shares_are_even_and_complete() {
        for (images, engines) in [(0, 2), (1, 2), (7, 2), (64, 4), (5, 8)] {
            let all: Vec<usize> = shares(images, engines).collect();
            assert_eq!(all.iter().sum::<usize>(), images);
            assert!(all.iter().max().unwrap() - all.iter().min().unwrap() <= 1, "{all:?}");
        }
    }
}
