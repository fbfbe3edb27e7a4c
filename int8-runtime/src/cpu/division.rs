//! How the images of a batch are divided among threads.

/// Images that run at the same time: `lanes` groups of `threads` threads each take `each` images, and then
/// the next ones, until `images` have been taken. Groups do not wait for each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Division {
    pub(super) images: usize,
    pub(super) lanes: usize,
    pub(super) threads: usize,
    pub(super) each: usize,
}

/// The first division of a batch that has images; there must be one.
pub(super) fn first(divisions: &[Division]) -> Division {
    *divisions.iter().find(|division| division.images > 0).expect("a batch has images")
}

/// The bounds of a division.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Threads that may be used.
    pub(super) threads: usize,
    /// Groups that have memory.
    pub(super) lanes: usize,
    /// Threads that make one image faster.
    pub(super) helpful: usize,
    /// The most images that one thread runs at a time.
    pub(super) most: usize,
}

impl Bounds {
    /// Divides `images` images: first as many as keep every group equally busy, then the rest. A group of one
    /// thread runs several images at a time, because it then reads each weight less often; one of several
    /// threads runs single images.
    pub(super) fn divide(self, images: usize) -> [Division; 2] {
        let lanes = self.threads.min(self.lanes).max(1);
        let rest = images % lanes;
        [self.division(images - rest, lanes), self.division(rest, rest)]
    }

    fn division(self, images: usize, lanes: usize) -> Division {
        if images == 0 {
            return Division::default();
        }
        let threads = (self.threads / lanes).clamp(1, self.helpful.max(1));
        let of_lane = images / lanes;
        let each = if threads == 1 { of_lane.div_ceil(of_lane.div_ceil(self.most)) } else { 1 };
        Division { images, lanes, threads, each }
    }
}

/// Nanoseconds by which each further thread makes a job longer: waking it, its first look at the tasks, and
/// the wait for it. Measured with empty jobs on 4 to 64 cores (`examples/cores.rs`).
const JOB_NS_PER_THREAD: f64 = 360.0;

/// The number of threads, at most `threads`, on which one image is fastest: `work_ns` nanoseconds of one
/// thread in `jobs` jobs. On `n` threads they take `work_ns / n + jobs * JOB_NS_PER_THREAD * n`. The power of
/// two that is nearest to the minimum divides the rows of most ops evenly.
pub(super) fn threads_of_one_image(work_ns: f64, jobs: usize, threads: usize) -> usize {
    let best = (work_ns / (jobs.max(1) as f64 * JOB_NS_PER_THREAD)).sqrt();
    let power = best.log2().round().clamp(0.0, 16.0);
    threads.min(1 << power as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divide(threads: usize, lanes: usize, images: usize) -> [[usize; 4]; 2] {
        let bounds = Bounds { threads, lanes, helpful: 16, most: 8 };
        bounds.divide(images).map(|Division { images, lanes, threads, each }| [images, lanes, threads, each])
    }

    const NONE: [usize; 4] = [0; 4];

    #[test]
    fn images_run_side_by_side_before_threads_share_one() {
        assert_eq!(divide(1, 1, 1), [[1, 1, 1, 1], NONE]);
        assert_eq!(divide(1, 1, 20), [[20, 1, 1, 7], NONE]);
        assert_eq!(divide(2, 2, 8), [[8, 2, 1, 4], NONE]);
        assert_eq!(divide(2, 2, 3), [[2, 2, 1, 1], [1, 1, 2, 1]]);
        assert_eq!(divide(64, 64, 1), [NONE, [1, 1, 16, 1]]);
        assert_eq!(divide(64, 64, 8), [NONE, [8, 8, 8, 1]]);
        assert_eq!(divide(64, 64, 64), [[64, 64, 1, 1], NONE]);
        assert_eq!(divide(64, 64, 72), [[64, 64, 1, 1], [8, 8, 8, 1]]);
        assert_eq!(divide(64, 64, 1024), [[1024, 64, 1, 8], NONE]);
        assert_eq!(divide(64, 64, 0), [NONE, NONE]);
    }

    #[test]
    fn one_image_has_as_many_threads_as_its_work_is_worth() {
        // Swin-T with AMX, with AVX2, and a micro model.
        assert_eq!(threads_of_one_image(12e6, 124, 64), 16);
        assert_eq!(threads_of_one_image(75e6, 124, 64), 32);
        assert_eq!(threads_of_one_image(12e6, 124, 12), 12);
        assert_eq!(threads_of_one_image(6e4, 60, 64), 2);
        assert_eq!(threads_of_one_image(0.0, 0, 64), 1);
        assert_eq!(threads_of_one_image(1e18, 1, 1024), 1024);
    }

    #[test]
    fn little_memory_means_few_groups_of_more_threads() {
        assert_eq!(divide(64, 8, 32), [[32, 8, 8, 1], NONE]);
        assert_eq!(divide(64, 1, 3), [[3, 1, 16, 1], NONE]);
        assert_eq!(divide(64, 0, 3), [[3, 1, 16, 1], NONE]);
    }

    #[test]
    fn every_image_is_in_a_division_and_threads_are_not_exceeded() {
        for threads in 1..20 {
            for lanes in 0..20 {
                for images in 0..70 {
                    let bounds = Bounds { threads, lanes, helpful: 5, most: 3 };
                    let parts = bounds.divide(images);
                    assert_eq!(parts.iter().map(|part| part.images).sum::<usize>(), images);
                    for part in parts.iter().filter(|part| part.images > 0) {
                        assert!(part.lanes * part.threads <= threads && part.threads <= 5, "{part:?}");
                        assert!(
                            (1..=3).contains(&part.each) && (part.each == 1 || part.threads == 1),
                            "{part:?}"
                        );
                    }
                }
            }
        }
    }
}
