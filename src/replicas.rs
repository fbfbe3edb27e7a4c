//! One model on several GPUs.

use swinq_model::{Batch, BoxError, Classifier, Logits, Size};

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

    /// Scores of u8 `[images, height, width, channels]` of the model's own size into f32 `[images, classes]`. Every GPU runs its share in batches
    /// of `each` images.
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
        if self.engines.len() == 1 || batch.image_bytes() != engine.image_bytes() {
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
    use super::*;

    #[test]
    fn shares_are_even_and_complete() {
        for (images, engines) in [(0, 2), (1, 2), (7, 2), (64, 4), (5, 8)] {
            let all: Vec<usize> = shares(images, engines).collect();
            assert_eq!(all.iter().sum::<usize>(), images);
            assert!(all.iter().max().unwrap() - all.iter().min().unwrap() <= 1, "{all:?}");
        }
    }
}
