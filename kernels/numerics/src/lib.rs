//! The number contract of swinq, without knowledge of Swin: what every op computes, and the values that
//! describe an op.
//!
//! [`mod@reference`] is the scalar definition of each op. Whoever computes an op on a CPU or on a GPU equals
//! it. The other modules hold quantizers, the order and the layout of rows, and the parameters of ops that
//! every backend has.
//!
//! This crate has no loop over vector registers, no thread and no `unsafe`.

mod images;
mod quantizer;
pub mod reference;
mod rows;
pub mod sizes;
mod spec;
mod windows;

pub use images::{ImageEdge, ImageLayout, Images, Pixels};
pub use quantizer::{ColumnQuantizers, Int8, Quantizer};
pub use reference::{AttentionQuant, Gelu, HeadScores, Probs};
pub use rows::{LINE, PAD, RowMap, RowMapError, RowStore, code_stride, odd_lines};
pub use spec::{AttentionSpec, QkNormSpec};
pub use windows::{MASKS, Size, Windows};
