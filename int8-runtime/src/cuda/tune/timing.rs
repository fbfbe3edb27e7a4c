//! Timing of launches on a GPU, and the choice of the fastest candidate.

use swinq_cuda::{CudaError, Device, Event, Stream};

/// Number of launches that are timed together, and number of repetitions.
const TOGETHER: usize = 10;
const REPEATS: usize = 5;
/// Number of the fastest candidates that are measured again in turns, and number of turns.
const FINALISTS: usize = 4;
const ROUNDS: usize = 3;

/// Returns the index of the fastest of `candidates`. All are timed once. Then the best are timed in turns, so
/// that a change of the GPU's clock affects all of them. Candidates that fail are passed to `skip`; if all
/// fail, the result is `None`.
pub(super) fn fastest<C>(
    candidates: &[C],
    time: impl Fn(&C) -> Result<f32, CudaError>,
    mut skip: impl FnMut(&C, CudaError),
) -> Option<usize> {
    let mut measure = |index: usize| {
        let skipped = |error| skip(&candidates[index], error);
        time(&candidates[index]).map_err(skipped).ok()
    };
    let mut times: Vec<(f32, usize)> = (0..candidates.len()).filter_map(|i| Some((measure(i)?, i))).collect();
    times.sort_by(|a, b| a.0.total_cmp(&b.0));
    times.truncate(FINALISTS);
    let mut least = vec![f32::INFINITY; times.len()];
    for _ in 0..ROUNDS {
        for (least, (_, index)) in least.iter_mut().zip(&times) {
            *least = measure(*index).map_or(f32::INFINITY, |ms| least.min(ms));
        }
    }
    let best = least.iter().zip(&times).filter(|(ms, _)| ms.is_finite()).min_by(|a, b| a.0.total_cmp(b.0));
    best.map(|(_, (_, index))| *index)
}

/// Returns `count` random bytes. They are valid as INT8 codes, and as f16 values they have magnitudes below
/// 2.
pub(super) fn random_codes(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(count);
    while bytes.len() < count {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Clear bit 6 of the second byte, the highest bit of the f16 exponent.
        bytes.extend([(state >> 56) as u8, (state >> 48) as u8 & 0xbf]);
    }
    bytes
}

/// Milliseconds per launch, measured over several launches recorded in one graph.
pub(crate) fn time_together(
    device: &Device,
    stream: &Stream,
    launch: impl Fn() -> Result<(), CudaError>,
) -> Result<f32, CudaError> {
    let graph = stream.capture(|| (0..TOGETHER).try_for_each(|_| launch()))?;
    graph.launch(stream)?;
    let marks: Vec<Event> = (0..=REPEATS).map(|_| Event::new(device)).collect::<Result<_, _>>()?;
    marks[0].record(stream)?;
    for mark in &marks[1..] {
        graph.launch(stream)?;
        mark.record(stream)?;
    }
    stream.synchronize()?;
    let mut times =
        marks.windows(2).map(|pair| Event::elapsed_ms(&pair[0], &pair[1])).collect::<Result<Vec<_>, _>>()?;
    times.sort_by(f32::total_cmp);
    Ok(times[REPEATS / 2] / TOGETHER as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure() -> CudaError {
        CudaError::Unsupported("no algorithm".to_owned())
    }

    #[test]
    fn candidates_that_fail_are_skipped_and_the_fastest_of_the_others_is_chosen() {
        let candidates = [Err(()), Ok(3.0), Ok(1.0), Err(()), Ok(2.0)];
        let mut skipped = 0;
        let time = |c: &Result<f32, ()>| c.map_err(|()| failure());
        assert_eq!(fastest(&candidates, time, |_, _| skipped += 1), Some(2));
        assert_eq!(skipped, 2);
        assert_eq!(fastest(&[Err(()), Err(())], time, |_, _| {}), None);
        assert_eq!(fastest(&[], time, |_, _| {}), None);
    }

    /// A clock that rises during the first round favours the candidates measured last.
    #[test]
    fn the_best_are_measured_again_in_turns() {
        let calls = std::cell::Cell::new(0_usize);
        let candidates: Vec<usize> = (0..6).collect();
        let time = |_: &usize| {
            calls.set(calls.get() + 1);
            Ok(if calls.get() <= 6 {
                10.0 - calls.get() as f32
            } else {
                [9.0, 8.0, 5.0, 7.0][(calls.get() - 7) % 4]
            })
        };
        // After the first round the order is 5, 4, 3, 2.
        assert_eq!(fastest(&candidates, time, |_, _| {}), Some(3));
        assert_eq!(calls.get(), 6 + FINALISTS * ROUNDS);
    }

    #[test]
    fn random_codes_differ_and_are_numbers_as_halves() {
        let bytes = random_codes(1 << 12);
        let zeros = bytes.iter().filter(|&&byte| byte == 0).count();
        assert!(zeros < 100, "{zeros} zeros");
        let halves = bytes.chunks_exact(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]));
        assert!(halves.into_iter().all(|half| half.to_f32().abs() < 2.0));
    }
}
