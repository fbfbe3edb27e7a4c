//! Batches of images of different sizes: the images of a batch have one size, which is the batch's own, or
//! are padded to it.

use std::collections::HashMap;

use swinq_model::{Batch, BatchSource, BoxError, LoaderWork, PixelFormat, Resize, Size, Transform};

use crate::dataset::Dataset;
use crate::error::{DataError, DecodeError};
use crate::loader::{LoaderOptions, check_transform};
use crate::padding::{Padding, pad};
use crate::prefetch::{BatchId, Prefetcher, Source};
use crate::preprocess::preprocess;
use crate::sizing::Sizing;

/// Images that have one size before a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfOneSize {
    /// The size to which they are padded, in pixels.
    pub size: Size,
    /// Their positions in the data set.
    pub ids: Vec<usize>,
    /// The size to which each is resized, the part of the padded image that it covers.
    pub valid: Vec<Size>,
}

impl OfOneSize {
    /// Batches of the images `images`, positions with the sizes to which they are resized, padded by
    /// `padding`. A batch has at most as many images as `most` gives for its size.
    ///
    /// Without a common size, the images of a batch are resized to one size; sizes and the images of a size
    /// stay in the order in which they come first. With one, the images of a batch follow each other.
    pub fn batches(
        images: impl IntoIterator<Item = (usize, Size)>,
        padding: Padding,
        most: impl Fn(Size) -> usize,
    ) -> Vec<OfOneSize> {
        if padding.to_common {
            return OfOneSize::in_order(images, padding, most);
        }
        let (mut groups, mut places) = (Vec::<OfOneSize>::new(), HashMap::new());
        for (id, size) in images {
            let place = *places.entry((size.height, size.width)).or_insert(groups.len());
            if place == groups.len() {
                groups.push(OfOneSize::without_images());
            }
            groups[place].push(id, size, padding);
        }
        let of_group = |group: OfOneSize| -> Vec<OfOneSize> {
            let (size, valid, most) = (group.size, group.valid[0], most(group.size));
            let batch = |ids: &[usize]| OfOneSize { size, ids: ids.to_vec(), valid: vec![valid; ids.len()] };
            group.ids.chunks(most).map(batch).collect()
        };
        groups.into_iter().flat_map(of_group).collect()
    }

    /// [`OfOneSize::batches`] with a common size.
    fn in_order(
        images: impl IntoIterator<Item = (usize, Size)>,
        padding: Padding,
        most: impl Fn(Size) -> usize,
    ) -> Vec<OfOneSize> {
        let mut batches = Vec::<OfOneSize>::new();
        for (id, valid) in images {
            let has_room =
                |batch: &&mut OfOneSize| batch.ids.len() < most(padding.size_of([batch.size, valid]));
            match batches.last_mut().filter(has_room) {
                Some(batch) => batch.push(id, valid, padding),
                None => {
                    let mut batch = OfOneSize::without_images();
                    batch.push(id, valid, padding);
                    batches.push(batch);
                }
            }
        }
        batches
    }

    fn without_images() -> OfOneSize {
        OfOneSize { size: Size::square(1), ids: Vec::new(), valid: Vec::new() }
    }

    /// Adds image `id`, which is resized to `valid`.
    fn push(&mut self, id: usize, valid: Size, padding: Padding) {
        self.size = padding.size_of([self.size, valid]);
        self.ids.push(id);
        self.valid.push(valid);
    }

    /// Whether an image is smaller than the batch's size, so that it is padded.
    pub fn is_padded(&self) -> bool {
        self.valid.iter().any(|&valid| valid != self.size)
    }
}

/// Loads batches of images whose sizes differ from batch to batch, and prefetches them on background threads.
/// Images are resized with the transform's filter and have its channels; nothing is cropped. The images of a
/// batch that pads one of them are normalised ([`PixelFormat::Normalised`]), because the padding is. Dropping
/// the loader stops and joins its threads.
pub struct SizedLoader {
    prefetcher: Prefetcher<BySize>,
}

struct BySize {
    dataset: Dataset,
    sizing: Sizing,
    batches: Vec<OfOneSize>,
    transform: Transform,
}

impl SizedLoader {
    /// Makes a loader of `batches` of images of `dataset`, which are resized as `sizing` says. It reads
    /// nothing before the first batch is requested. The size and the resize of `transform` have no effect.
    ///
    /// # Errors
    /// [`DataError::Setting`], naming the setting: if a size is zero, the input has neither one nor three
    /// channels, an id is beyond the data set, or the system cannot start the threads.
    pub fn new(
        dataset: Dataset,
        sizing: Sizing,
        batches: Vec<OfOneSize>,
        transform: &Transform,
        options: &LoaderOptions,
    ) -> Result<SizedLoader, DataError> {
        for OfOneSize { ids, valid, .. } in &batches {
            valid.iter().try_for_each(|&size| check_transform(&of_size(transform, size)))?;
            if let Some(id) = ids.iter().find(|&&id| id >= dataset.len()) {
                let problem = format!("image {id} is beyond the data set's {}", dataset.len());
                return Err(DataError::setting("ids", problem));
            }
        }
        let source = BySize { dataset, sizing, batches, transform: transform.clone() };
        Ok(SizedLoader { prefetcher: Prefetcher::new(source, options)? })
    }

    /// The batches.
    pub fn batches(&self) -> &[OfOneSize] {
        &self.prefetcher.source().batches
    }

    /// The error messages of the corrupt images that a [`BatchSource`] has left out so far.
    pub fn skipped(&self) -> &[String] {
        self.prefetcher.skipped()
    }

    /// Batch `index` without the images that cannot be read, and these images with the reasons. The batches
    /// after it are then prefetched.
    ///
    /// # Errors
    /// [`DataError::Worker`] if a thread panicked.
    ///
    /// # Panics
    /// If `index` is beyond the batches.
    pub fn batch(&self, index: usize) -> Result<(Batch, Vec<(usize, DataError)>), DataError> {
        self.prefetcher.readable(BatchId { epoch: 0, index })
    }
}

impl BatchSource for SizedLoader {
    fn batches(&self) -> usize {
        SizedLoader::batches(self).len()
    }

    fn images(&self) -> usize {
        SizedLoader::batches(self).iter().map(|batch| batch.ids.len()).sum()
    }

    /// Batch `index`. Up to [`LoaderOptions::skip_corrupt`] corrupt images are left out.
    fn batch(&mut self, _epoch: u64, index: usize) -> Result<Batch, BoxError> {
        Ok(self.prefetcher.batch(BatchId { epoch: 0, index })?)
    }

    fn work(&self) -> Option<LoaderWork> {
        Some(self.prefetcher.work())
    }
}

/// `transform` with a direct resize to `size`.
pub(crate) fn of_size(transform: &Transform, size: Size) -> Transform {
    Transform { size, resize: Resize::Direct, ..transform.clone() }
}

impl BySize {
    /// An image of `valid` pixels as the network reads it: f32 in little-endian bytes, padded to `size`.
    fn padded(&self, pixels: &[u8], valid: Size, size: Size) -> Vec<u8> {
        let values = pad(&self.transform.normalised(pixels), valid, size);
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }
}

impl Source for BySize {
    fn without_images(&self, batch: BatchId) -> Batch {
        let images = &self.batches[batch.index];
        let format = if images.is_padded() { PixelFormat::Normalised } else { PixelFormat::Bytes };
        Batch { format, ..Batch::empty(images.size, self.transform.channels()) }
    }

    fn image_ids(&self, batch: BatchId) -> Vec<usize> {
        self.batches[batch.index].ids.clone()
    }

    fn following(&self, batch: BatchId) -> Option<BatchId> {
        let index = batch.index + 1;
        (index < self.batches.len()).then_some(BatchId { index, ..batch })
    }

    fn label(&self, id: usize) -> Option<u32> {
        self.dataset.label(id)
    }

    fn load(&self, batch: BatchId, slot: usize, id: usize) -> Result<Vec<u8>, DataError> {
        let held = self.dataset.decode_held(id, self.transform.orientation)?;
        let images = &self.batches[batch.index];
        let (own, valid) = (Size::new(held.image.height, held.image.width), images.valid[slot]);
        if self.sizing.apply(own, self.transform.size_divisor) != valid {
            let problem = format!("it has {own} pixels now, and had another size when its header was read");
            return Err(self.dataset.image_error(id, DecodeError::Corrupt(problem)));
        }
        let pixels = preprocess(&held.image, &of_size(&self.transform, valid));
        Ok(if images.is_padded() { self.padded(&pixels, valid, images.size) } else { pixels })
    }
}
