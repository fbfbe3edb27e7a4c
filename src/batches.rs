//! Batches of images from any source.

use swinq_data::{Loader, OfOneSize, SizedLoader};
use swinq_model::{Batch, BatchSource, BoxError, LoaderWork};

use crate::prepared::PreparedBatches;

/// Batches of [`Images`](crate::Images), in order.
pub struct ImageBatches {
    pub(crate) reader: Reader,
}

/// The source of the batches.
pub(crate) enum Reader {
    Loader(Loader),
    Sized(SizedLoader),
    Prepared(PreparedBatches),
}

impl ImageBatches {
    /// The error messages of the corrupt images that were left out so far.
    pub fn skipped(&self) -> &[String] {
        match &self.reader {
            Reader::Loader(loader) => loader.skipped(),
            Reader::Sized(loader) => loader.skipped(),
            Reader::Prepared(_) => &[],
        }
    }
}

impl ImageBatches {
    /// The images of each batch of files that have sizes of their own; empty for other images.
    pub(crate) fn sized(&self) -> &[OfOneSize] {
        match &self.reader {
            Reader::Sized(loader) => loader.batches(),
            Reader::Loader(_) | Reader::Prepared(_) => &[],
        }
    }
}

impl BatchSource for ImageBatches {
    fn batches(&self) -> usize {
        match &self.reader {
            Reader::Loader(loader) => loader.batches(),
            Reader::Sized(loader) => BatchSource::batches(loader),
            Reader::Prepared(prepared) => prepared.batches(),
        }
    }

    fn images(&self) -> usize {
        match &self.reader {
            Reader::Loader(loader) => loader.images(),
            Reader::Sized(loader) => loader.images(),
            Reader::Prepared(prepared) => prepared.images(),
        }
    }

    fn batch(&mut self, epoch: u64, index: usize) -> Result<Batch, BoxError> {
        match &mut self.reader {
            Reader::Loader(loader) => loader.batch(epoch, index),
            Reader::Sized(loader) => BatchSource::batch(loader, epoch, index),
            Reader::Prepared(prepared) => prepared.batch(epoch, index),
        }
    }

    fn work(&self) -> Option<LoaderWork> {
        match &self.reader {
            Reader::Loader(loader) => loader.work(),
            Reader::Sized(loader) => loader.work(),
            Reader::Prepared(prepared) => prepared.work(),
        }
    }
}
