//! Code that the tests of several crates share: generators of random numbers, comparisons, names of files
//! and, with the feature `model`, small models and images; with the feature `numerics`, quantizers and row
//! maps.
//!
//! Without these features this crate depends on no crate of the workspace, so every crate can use it in its
//! unit tests.

mod compare;
mod files;
#[cfg(feature = "model")]
pub mod model;
#[cfg(feature = "numerics")]
mod numerics;
mod rng;
#[cfg(feature = "schema")]
mod schema;

pub use compare::{assert_same, assert_varied, max_error, relative_distance, sqnr_db};
pub use files::files;
#[cfg(feature = "numerics")]
pub use numerics::{step, window_map};
pub use rng::{Rng, XorShift};
#[cfg(feature = "schema")]
pub use schema::violations;
