//! What is brought nearer while a tile is multiplied.

use std::arch::x86_64::*;

/// Weights of panels to come, for the second-level cache, and the places of the next tile's results, for the first: a little with
/// each group of inputs. At once, between two tiles, prefetching would hold up the multiplication for longer than it saves.
///
/// It is lent, and its fields are read one by one: a copy, made by wide loads of what was just stored in parts, would have to
/// wait until all stores before are through.
pub(super) struct Ahead<'a, W> {
    weights: *const W,
    /// Weights from one group to the next.
    step: usize,
    /// Where a row that starts at 0 would be.
    results: *const f32,
    /// Where rows start; nothing is done for results if there are none.
    starts: &'a [usize],
}

impl<'a, W> Ahead<'a, W> {
    /// Nothing is read: what does not exist (weights beyond the last, a dropped row) is prefetched to no effect.
    pub(super) fn new(
        weights: *const W,
        step: usize,
        results: Option<*const f32>,
        starts: &'a [usize],
    ) -> Ahead<'a, W> {
        let starts = if results.is_some() { starts } else { &[] };
        Ahead { weights, step, results: results.unwrap_or(std::ptr::null()), starts }
    }

    /// The weights that are due with group `group` of inputs.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(super) fn bring_weights(&self, group: usize) {
        _mm_prefetch::<_MM_HINT_T1>(self.weights.wrapping_add(group * self.step).cast());
    }

    /// The results that are due with group `group` of inputs: 32 columns of a row.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(super) fn bring_results(&self, group: usize) {
        if let Some(start) = self.starts.get(group) {
            let place = self.results.wrapping_add(*start);
            _mm_prefetch::<_MM_HINT_ET0>(place.cast());
            _mm_prefetch::<_MM_HINT_ET0>(place.wrapping_add(16).cast());
        }
    }
}
