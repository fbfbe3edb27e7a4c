//! Tests of data sets, decoding, preprocessing and loaders. One program, because each would link everything
//! again.

mod augment;
mod common;
mod dataset;
mod decode;
mod loader;
mod orientation;
mod pillow;
mod train;
