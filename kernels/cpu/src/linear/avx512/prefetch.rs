//! Prefetching while a tile is multiplied.

use std::arch::x86_64::*;
use std::ops::Range;

/// The memory to prefetch while one tile is multiplied: weights of later panels into the second-level cache,
/// and the destination of the next tile's results into the first. A part is prefetched with each group of
/// inputs, because prefetching everything at once between two tiles would stall the multiplication for longer
/// than it saves.
///
/// Pass by reference: the fields were just stored one by one, so copying them with wide loads would stall on
/// store forwarding.
pub(in crate::linear) struct Prefetch<'a, W> {
    weights: *const W,
    /// Weights from one group of inputs to the next.
    step: usize,
    /// Address of the results of a row that starts at 0.
    results: *const f32,
    /// Where the rows of the next tile start; empty if results are not prefetched.
    starts: &'a [usize],
}

impl<'a, W> Prefetch<'a, W> {
    /// The addresses are only prefetched, never read, so they may lie outside of any allocation (weights
    /// after the last panel, a dropped row).
    pub(in crate::linear) fn new(
        weights: *const W,
        step: usize,
        results: Option<*const f32>,
        starts: &'a [usize],
    ) -> Prefetch<'a, W> {
        let starts = if results.is_some() { starts } else { &[] };
        Prefetch { weights, step, results: results.unwrap_or(std::ptr::null()), starts }
    }

    /// Prefetches the weights that belong to group `group` of inputs.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(in crate::linear) fn weights(&self, group: usize) {
        _mm_prefetch::<_MM_HINT_T1>(self.weights.wrapping_add(group * self.step).cast());
    }

    /// Prefetches the destination that belongs to group `group` of inputs: 32 columns of one row.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(in crate::linear) fn results(&self, group: usize) {
        if let Some(start) = self.starts.get(group) {
            let place = self.results.wrapping_add(*start);
            _mm_prefetch::<_MM_HINT_ET0>(place.cast());
            _mm_prefetch::<_MM_HINT_ET0>(place.wrapping_add(16).cast());
        }
    }

    /// Prefetches what belongs to `groups`. A line of weights on the border of two calls is prefetched by
    /// both.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(in crate::linear) fn all(&self, groups: Range<usize>) {
        let lines = (groups.len() * self.step * size_of::<W>()).div_ceil(64);
        let first = self.weights.wrapping_add(groups.start * self.step).cast::<u8>();
        for line in 0..lines {
            _mm_prefetch::<_MM_HINT_T1>(first.wrapping_add(64 * line).cast());
        }
        if groups.start < self.starts.len() {
            groups.for_each(|group| self.results(group));
        }
    }
}
