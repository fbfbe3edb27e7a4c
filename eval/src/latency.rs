//! Latency measurement: percentiles of wall-clock times, and interleaved runs of several models.

use std::time::Instant;

use swinq_model::BoxError;

use crate::error::EvalError;
use crate::results::Stats;

/// Duration of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyOptions {
    /// Minimum duration of the warm-up of each step in milliseconds. At least one run is a warm-up.
    pub warmup_ms: f64,
    /// Minimum total duration of the recorded runs of each step in milliseconds.
    pub min_ms: f64,
    /// Minimum number of recorded runs of each step (0 counts as 1).
    pub min_runs: usize,
}

impl Default for LatencyOptions {
    /// 200 ms of warm-up, then at least 3 s and 10 runs.
    fn default() -> LatencyOptions {
        LatencyOptions { warmup_ms: 200.0, min_ms: 3000.0, min_runs: 10 }
    }
}

/// A step to measure: one forward of one batch, which is complete when the function returns.
pub type Step<'a> = Box<dyn FnMut() -> Result<(), BoxError> + 'a>;

/// The middle of `values`, and the greater one of two; 0 for none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// Wall-clock times of the runs of one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Latency {
    samples_ms: Vec<f64>,
    sorted_ms: Vec<f64>,
}

impl Latency {
    /// Makes a `Latency` of the times of runs in milliseconds, in the order measured.
    ///
    /// # Errors
    /// [`EvalError::Samples`] if there are no times, one is negative or not finite, or all are 0.
    pub fn from_samples(samples_ms: Vec<f64>) -> Result<Latency, EvalError> {
        if samples_ms.is_empty() {
            return Err(EvalError::Samples { problem: "there are none".to_owned() });
        }
        if let Some(bad) = samples_ms.iter().find(|ms| !(ms.is_finite() && **ms >= 0.0)) {
            return Err(EvalError::Samples { problem: format!("{bad} ms is not a duration") });
        }
        if samples_ms.iter().all(|&ms| ms == 0.0) {
            return Err(EvalError::Samples {
                problem: "all are 0; measure a step that takes time".to_owned(),
            });
        }
        let mut sorted_ms = samples_ms.clone();
        sorted_ms.sort_by(f64::total_cmp);
        Ok(Latency { samples_ms, sorted_ms })
    }

    /// The times in milliseconds, in the order measured.
    pub fn samples_ms(&self) -> &[f64] {
        &self.samples_ms
    }

    /// Number of runs.
    pub fn runs(&self) -> usize {
        self.samples_ms.len()
    }

    /// The `p`-th percentile in milliseconds, with `p` clamped to 0..=100. As numpy does by default, it
    /// interpolates linearly between the order statistics around rank `p / 100 (n - 1)`.
    pub fn percentile(&self, p: f64) -> f64 {
        let rank = p.clamp(0.0, 100.0) / 100.0 * (self.runs() - 1) as f64;
        let (below, above) = (rank.floor() as usize, rank.ceil() as usize);
        let (low, high) = (self.sorted_ms[below], self.sorted_ms[above]);
        low + (high - low) * (rank - below as f64)
    }

    /// The median in milliseconds.
    pub fn median(&self) -> f64 {
        self.percentile(50.0)
    }

    /// Limits of the 95 % confidence interval of the median in milliseconds: the order statistics of ranks
    /// `n / 2 -+ 0.98 sqrt(n)`, which need no assumption about the distribution (H. A. David and H. N.
    /// Nagaraja, "Order Statistics", 3rd edition, section 7.1, with the normal approximation of the binomial
    /// distribution). `None` for fewer than 6 runs, which no such interval covers with 95 %.
    pub fn median_interval(&self) -> Option<[f64; 2]> {
        let n = self.runs() as f64;
        if self.runs() < 6 {
            return None;
        }
        let half = 0.98 * n.sqrt();
        let low = (n / 2.0 - half).floor().max(1.0) as usize;
        let high = (n / 2.0 + half + 1.0).ceil().min(n) as usize;
        Some([self.sorted_ms[low - 1], self.sorted_ms[high - 1]])
    }

    /// The 90th percentile in milliseconds.
    pub fn p90(&self) -> f64 {
        self.percentile(90.0)
    }

    /// The 95th percentile in milliseconds.
    pub fn p95(&self) -> f64 {
        self.percentile(95.0)
    }

    /// The 99th percentile in milliseconds.
    pub fn p99(&self) -> f64 {
        self.percentile(99.0)
    }

    /// The shortest run in milliseconds.
    pub fn min(&self) -> f64 {
        self.sorted_ms[0]
    }

    /// The longest run in milliseconds.
    pub fn max(&self) -> f64 {
        self.sorted_ms[self.runs() - 1]
    }

    /// The total of all runs in milliseconds.
    pub fn total(&self) -> f64 {
        self.sorted_ms.iter().sum()
    }

    /// The mean in milliseconds.
    pub fn mean(&self) -> f64 {
        self.total() / self.runs() as f64
    }

    /// Images per second if a run processes `batch` images: the images of all runs divided by their total
    /// time.
    pub fn images_per_second(&self, batch: usize) -> f64 {
        1000.0 * batch as f64 / self.mean()
    }

    /// The summary for the results.
    pub fn stats(&self) -> Stats {
        Stats {
            median: self.median(),
            p90: self.p90(),
            p95: self.p95(),
            p99: self.p99(),
            min: self.min(),
            max: self.max(),
            mean: self.mean(),
            runs: self.runs(),
            median_interval: self.median_interval(),
        }
    }
}

/// Measures one step: a warm-up, then recorded runs until both minimums of `options` are met.
///
/// # Errors
/// [`EvalError::Step`] if the step fails, [`EvalError::Samples`] if a minimum is not finite.
pub fn measure(
    step: &mut dyn FnMut() -> Result<(), BoxError>,
    options: &LatencyOptions,
) -> Result<Latency, EvalError> {
    let mut all = measure_interleaved(&mut [Box::new(step)], options)?;
    Ok(all.remove(0))
}

/// Measures several steps interleaved, so that changes of the machine's clock rate or load affect all of them
/// alike.
///
/// Every round runs each step once and starts with the step after the one that the last round started with.
/// Rounds are repeated until every step has met both minimums of `options`, so that all have the same number
/// of runs. The warm-up runs in the same way.
///
/// # Errors
/// [`EvalError::Step`] with the index of a step that fails, [`EvalError::Samples`] if a minimum is not
/// finite.
pub fn measure_interleaved(
    steps: &mut [Step<'_>],
    options: &LatencyOptions,
) -> Result<Vec<Latency>, EvalError> {
    let start = Instant::now();
    measure_with_clock(steps, options, &mut || start.elapsed().as_secs_f64() * 1000.0)
}

/// [`measure_interleaved`] with a clock that returns milliseconds.
fn measure_with_clock(
    steps: &mut [Step<'_>],
    options: &LatencyOptions,
    clock: &mut dyn FnMut() -> f64,
) -> Result<Vec<Latency>, EvalError> {
    for minimum in [options.warmup_ms, options.min_ms] {
        if !minimum.is_finite() {
            return Err(EvalError::Samples {
                problem: format!("a minimum of {minimum} ms is not a duration; give a finite number"),
            });
        }
    }
    run_rounds(steps, options.warmup_ms, 1, clock)?;
    let samples = run_rounds(steps, options.min_ms, options.min_runs.max(1), clock)?;
    samples.into_iter().map(Latency::from_samples).collect()
}

/// Runs rounds until every step has `min_runs` runs and `min_ms` milliseconds; returns the times of each
/// step.
fn run_rounds(
    steps: &mut [Step<'_>],
    min_ms: f64,
    min_runs: usize,
    clock: &mut dyn FnMut() -> f64,
) -> Result<Vec<Vec<f64>>, EvalError> {
    let count = steps.len();
    let mut samples = vec![Vec::new(); count];
    let mut totals = vec![0.0; count];
    let mut round = 0;
    while round < min_runs || totals.iter().any(|&total| total < min_ms) {
        for turn in 0..count {
            let index = (round + turn) % count;
            let start = clock();
            steps[index]().map_err(|source| EvalError::Step { step: index, source })?;
            let elapsed = clock() - start;
            samples[index].push(elapsed);
            totals[index] += elapsed;
        }
        round += 1;
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// Steps that advance a shared clock by `costs` and record their turn.
    fn steps<'a>(costs: &'a [f64], now: &'a Cell<f64>, turns: &'a RefCell<Vec<usize>>) -> Vec<Step<'a>> {
        let step = |(index, cost): (usize, &'a f64)| -> Step<'a> {
            Box::new(move || {
                now.set(now.get() + cost);
                turns.borrow_mut().push(index);
                Ok(())
            })
        };
        costs.iter().enumerate().map(step).collect()
    }

    #[test]
    fn rounds_interleave_and_meet_both_minimums() {
        let (now, turns) = (Cell::new(0.0), RefCell::new(Vec::new()));
        let options = LatencyOptions { warmup_ms: 3.0, min_ms: 10.0, min_runs: 2 };
        let mut steps = steps(&[2.0, 5.0], &now, &turns);
        let all = measure_with_clock(&mut steps, &options, &mut || now.get()).unwrap();
        // The warm-up takes 2 rounds, until the quicker step has 3 ms. The measurement takes 5, until it has
        // 10 ms.
        assert_eq!(*turns.borrow(), [0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1]);
        assert_eq!(all[0].samples_ms(), [2.0; 5]);
        assert_eq!(all[1].samples_ms(), [5.0; 5]);
        assert_eq!((all[1].mean(), all[1].total()), (5.0, 25.0));
    }

    #[test]
    fn the_interval_of_the_median_has_its_coverage() {
        let few = Latency::from_samples(vec![1.0; 5]).unwrap();
        assert_eq!(few.median_interval(), None);
        // Uniform samples on 0..1, median 0.5: at least 95 % of the intervals contain it, and not nearly all.
        let mut rng = swinq_testing::Rng(3);
        for runs in [6, 20, 101] {
            let mut covered = 0;
            for _ in 0..2000 {
                let samples = (0..runs).map(|_| rng.unit()).collect();
                let [low, high] = Latency::from_samples(samples).unwrap().median_interval().unwrap();
                covered += usize::from(low <= 0.5 && 0.5 <= high);
            }
            assert!((1890..=1985).contains(&covered), "{runs}: {covered}");
        }
    }

    #[test]
    fn min_runs_decides_if_no_time_is_required() {
        let (now, turns) = (Cell::new(0.0), RefCell::new(Vec::new()));
        for (min_runs, expected) in [(0, 1), (1, 1), (7, 7)] {
            let options = LatencyOptions { warmup_ms: 0.0, min_ms: 0.0, min_runs };
            let mut steps = steps(&[4.0], &now, &turns);
            let all = measure_with_clock(&mut steps, &options, &mut || now.get()).unwrap();
            assert_eq!(all[0].runs(), expected);
        }
    }
}
