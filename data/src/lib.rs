//! Image data sets, image decoding, preprocessing and augmentation that equal Pillow's bit for bit, and
//! loaders that prefetch batches on background threads.
//!
//! ```no_run
//! use std::path::Path;
//! use swinq_data::{Dataset, Loader, LoaderOptions, Split};
//! use swinq_model::{BatchSource, Size, Transform};
//!
//! let dataset = Dataset::open(Path::new("imagenet"), Split::Val)?;
//! let ids = dataset.sample(Some(512), 0);
//! let mut loader = Loader::new(dataset, ids, Transform::microsoft(Size::square(224), 3, true), LoaderOptions::default())?;
//! let first = loader.batch(0, 0)?;
//! assert_eq!(first.pixels.len(), first.len() * 224 * 224 * 3);
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```

pub mod augment;
mod dataset;
mod decode;
mod decoded_cache;
mod error;
mod loader;
mod padding;
mod prefetch;
mod preprocess;
pub mod presets;
mod resize;
mod sized;
mod sizing;
mod train;
mod turn;

pub use augment::Augment;
pub use dataset::{Dataset, Ids, Layout, NumberingError, Split, image_files, is_image_name};
pub use decode::{
    MAX_PIXELS, RgbImage, decode_image, decode_oriented, image_size, oriented_size, set_decode_memory,
};
pub use error::{DataError, DecodeError};
pub use loader::{Loader, LoaderOptions};
pub use padding::{Padding, pad};
pub use preprocess::preprocess;
pub use sized::{OfOneSize, SizedLoader};
pub use sizing::{ParseSizingError, Sizing};
pub use swinq_jpeg::has_simd as jpeg_has_simd;
pub use train::{Stride, TrainLoader, TrainOptions};
pub use turn::Turn;
