//! Quantizers and row maps.

use swinq_numerics::{Quantizer, RowMap};

/// A quantizer with scale `scale`.
pub fn step(scale: f32) -> Quantizer {
    Quantizer::new(scale).unwrap()
}

/// A map in scrambled order in which every eighth row is padding, and the number of images that `rows` rows
/// form (2 if `rows` is even).
pub fn window_map(rows: usize) -> (RowMap, usize) {
    let images = if rows.is_multiple_of(2) { 2 } else { 1 };
    let period = rows / images;
    let kept: Vec<usize> = (0..period).filter(|i| i % 8 != 5).collect();
    let mut order: Vec<Option<usize>> = vec![None; period];
    let tokens = kept.len();
    for (token, place) in kept.into_iter().enumerate() {
        order[place] = Some((token + tokens / 3) % tokens);
    }
    (RowMap::new(&order, tokens).unwrap(), images)
}
