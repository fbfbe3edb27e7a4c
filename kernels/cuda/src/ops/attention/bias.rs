//! The relative position bias in the layouts of the kernels.

use std::f32::consts::LOG2_E;

/// The bias `[heads, n, n]` as f32 `[heads, padded, padded]`, multiplied by `unit`: -inf for padding keys and
/// zeros for padding queries. As little-endian bytes.
pub fn bias_rows(bias: &[f32], n: usize, padded: usize, unit: f32) -> Vec<u8> {
    let heads = bias.len() / (n * n);
    let value = |i: usize| {
        let (head, query, key) = (i / padded / padded, i / padded % padded, i % padded);
        padding(n, query, key).unwrap_or_else(|| bias[(head * n + query) * n + key] * unit)
    };
    (0..heads * padded * padded).flat_map(|i| value(i).to_le_bytes()).collect()
}

/// The bias `[heads, n, n]` for each head, tile of 16 queries, tile of 8 keys (`tiles` of them) and lane: the
/// four elements that the lane has of a product of the tiles. -inf for padding keys and zeros for padding
/// queries. As little-endian bytes.
///
/// With `halves` f16 in units of ln(2), else f32. Of halves, the largest bias of a query becomes 0: the
/// softmax stays the same, and the keys with the largest weights have the smallest rounding errors.
pub fn bias_fragments(bias: &[f32], n: usize, tiles: (usize, usize), halves: bool) -> Vec<u8> {
    let largest = |row: &[f32]| row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let largest: Vec<f32> = bias.chunks_exact(n).map(largest).collect();
    let mut out = Vec::new();
    for (head, query_tile) in
        (0..bias.len() / (n * n)).flat_map(|head| (0..tiles.0).map(move |tile| (head, tile)))
    {
        for (key_tile, lane, i) in elements(tiles.1) {
            let (query, key) =
                (16 * query_tile + lane / 4 + i / 2 * 8, 8 * key_tile + 2 * (lane % 4) + i % 2);
            let row = head * n + query;
            let value = || bias[row * n + key];
            let padding = padding(n, query, key);
            if halves {
                let half = padding.unwrap_or_else(|| (value() - largest[row]) * LOG2_E);
                out.extend(half::f16::from_f32(half).to_le_bytes());
            } else {
                out.extend(padding.unwrap_or_else(value).to_le_bytes());
            }
        }
    }
    out
}

/// The bias of padding.
fn padding(n: usize, query: usize, key: usize) -> Option<f32> {
    match (query < n, key < n) {
        (_, false) => Some(f32::NEG_INFINITY),
        (false, true) => Some(0.0),
        (true, true) => None,
    }
}

/// Tile of 8 keys, lane and element of each value of a tile of queries.
fn elements(key_tiles: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..key_tiles * 32 * 4).map(|i| (i / 128, i / 4 % 32, i % 4))
}
