//! Runs the scalar loops of the CPU rungs on several threads.

/// Splits `out` into parts and calls `work` with the index of the first element and the part, on up to
/// `threads` threads. The length of a part is a multiple of `unit`, which must divide the length of `out`.
pub fn in_parts<T: Send>(threads: usize, out: &mut [T], unit: usize, work: impl Fn(usize, &mut [T]) + Sync) {
    let part = out.len().div_ceil(unit).div_ceil(threads.max(1)).max(1) * unit;
    if part >= out.len() {
        return work(0, out);
    }
    std::thread::scope(|scope| {
        for (index, part_of_out) in out.chunks_mut(part).enumerate() {
            let work = &work;
            scope.spawn(move || work(index * part, part_of_out));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_is_reached_once() {
        for (length, unit, threads) in [(0, 1, 3), (1, 1, 3), (7, 1, 3), (21, 7, 2), (21, 7, 5), (64, 2, 1)] {
            let mut out = vec![0; length];
            in_parts(threads, &mut out, unit, |first, part| {
                assert!(first % unit == 0 && part.len() % unit == 0);
                part.iter_mut().enumerate().for_each(|(i, x)| *x += first + i + 1);
            });
            assert_eq!(out, (1..=length).collect::<Vec<_>>());
        }
    }
}
