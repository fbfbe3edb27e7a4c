//! Latency of several models, interleaved in one run so that changes of the machine's load affect all of them
//! alike.

use std::collections::BTreeMap;
use std::time::Instant;

use swinq_eval::{Latency, LatencyOptions, Load, LoadMeter, Step, measure_interleaved};
use swinq_model::{Batch, Classifier};

use super::{Candidate, Observer, Runner};
use crate::{Engine, Error};

/// Number of inferences whose time on the GPU alone is measured.
const COMPUTE_RUNS: usize = 200;

/// Measures the latency of every candidate at every batch size. The candidates take turns within one run.
/// Stores the latencies in their results. Returns the load of the
/// machine during the measurement, by batch size.
///
/// # Errors
/// [`Error::Argument`] for a batch size of 0, or for one whose images do not fit in memory; [`Error::Eval`]
/// for options that are not finite, or if a model fails or `observer` stops the measurement.
pub fn measure_latency(
    candidates: &mut [Candidate],
    batch_sizes: &[usize],
    options: &LatencyOptions,
    observer: &mut dyn Observer,
) -> Result<BTreeMap<usize, Load>, Error> {
    let mut loads = BTreeMap::new();
    if batch_sizes.is_empty() {
        return Ok(loads);
    }
    for &batch_size in batch_sizes {
        let (start, meter) = (Instant::now(), LoadMeter::start());
        let latencies = measure_one(candidates, batch_size, options, observer)?;
        let elapsed = start.elapsed();
        loads.insert(batch_size, meter.finish());
        for (candidate, latency) in candidates.iter_mut().zip(&latencies) {
            candidate.result.set_latency(batch_size, latency);
            if let Runner::Engine(engine) = &candidate.runner
                && let Some(compute) = compute_times(engine, batch_size)?
            {
                candidate.result.set_compute(batch_size, &compute);
            }
        }
        let pairs: Vec<_> = candidates.iter().map(|candidate| &candidate.result).zip(&latencies).collect();
        observer.timed(batch_size, elapsed, &pairs);
    }
    Ok(loads)
}

fn measure_one(
    candidates: &mut [Candidate],
    batch_size: usize,
    options: &LatencyOptions,
    observer: &dyn Observer,
) -> Result<Vec<Latency>, Error> {
    let batches: Vec<Batch> = candidates
        .iter()
        .map(|candidate| noise(candidate.runner.input_size(), batch_size))
        .collect::<Result<_, Error>>()?;
    for candidate in &*candidates {
        prepare(&candidate.runner, batch_size)?;
    }
    let mut steps: Vec<Step<'_>> = Vec::new();
    for (candidate, batch) in candidates.iter_mut().zip(&batches) {
        let runner = &mut candidate.runner;
        steps.push(Box::new(move || {
            if observer.stop() {
                return Err(Box::new(Error::Interrupted));
            }
            runner.infer(batch).map(|_| ())
        }));
    }
    Ok(measure_interleaved(&mut steps, options)?)
}

/// Prepares an engine for batches of exactly `batch_size` images. Without this, a GPU engine that has run
/// larger batches would pad the batch to their size, and the latency would be that of the larger batch.
fn prepare(runner: &Runner, batch_size: usize) -> Result<(), Error> {
    match runner {
        Runner::Engine(engine) if batch_size <= engine.max_batch() => {
            engine.runtime().prepare(batch_size).map_err(Error::from)
        }
        _ => Ok(()),
    }
}

/// Times of inferences whose images are already on the GPU; `None` on the CPU, and for batches that the
/// engine splits.
fn compute_times(engine: &Engine, batch_size: usize) -> Result<Option<Latency>, Error> {
    if batch_size > engine.max_batch() {
        return Ok(None);
    }
    engine.compute_times(batch_size, COMPUTE_RUNS / 4)?;
    let Some(times) = engine.compute_times(batch_size, COMPUTE_RUNS)? else { return Ok(None) };
    let samples = times.iter().map(|time| 1e3 * time.as_secs_f64()).collect();
    Ok(Some(Latency::from_samples(samples)?))
}

/// Images of deterministic noise: the time of an inference does not depend on the pixels.
///
/// # Errors
/// [`Error::Argument`] for 0 images, or for more than fit in memory.
pub fn noise(size: usize, images: usize) -> Result<Batch, Error> {
    let bytes = images.checked_mul(size).and_then(|n| n.checked_mul(size)).and_then(|n| n.checked_mul(3));
    let mut pixels = Vec::new();
    match bytes {
        Some(bytes) if bytes > 0 && pixels.try_reserve_exact(bytes).is_ok() => {
            let mut state = 0x9e37_79b9_7f4a_7c15_u64;
            pixels.extend((0..bytes).map(|_| next_byte(&mut state)));
        }
        _ => {
            let problem = format!("{images} images of {size} x {size} pixels cannot be held in memory");
            return Err(Error::argument("batch_size", problem));
        }
    }
    Ok(Batch { pixels, size, labels: Vec::new(), ids: (0..images).collect() })
}

/// One step of a 64-bit xorshift generator.
fn next_byte(state: &mut u64) -> u8 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 32) as u8
}
