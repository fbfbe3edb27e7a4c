//! Latency of several models, interleaved in one run so that changes of the machine's load affect all of them
//! alike.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use swinq_eval::{
    Environment, Latency, LatencyOptions, Load, LoadMeter, ModelResult, SizeResult, Step, measure_interleaved,
};
use swinq_model::{Batch, Classifier, Size};

use super::{Candidate, CandidateRunner, EvaluateOptions, Observer};
use crate::{Engine, Error, features};

/// Number of images of the inference from which the time of larger batches is estimated.
const PROBE: usize = crate::DEFAULT_BATCH;

/// Number of inferences whose time on the GPU alone is measured.
const COMPUTE_RUNS: usize = 200;

/// Seconds for which the callers of a CPU engine are timed, at most.
const LANE_SECONDS: f64 = 3.0;

/// Number of images of a stream of batches for one GPU.
const STREAM_IMAGES: usize = 4096;

/// Minimum and maximum number of batches of such a stream.
const STREAM_BATCHES: (usize, usize) = (4, 256);

/// Number of times that a stream of batches is timed.
const STREAM_RUNS: usize = 7;

/// Measures the latency of every candidate at every batch size, and how many images per second it computes if
/// batches do not wait for each other: on a CPU, `lanes` callers share the engine; 0 stands for as many as
/// keep all threads busy. The candidates take turns within one run. A backbone computes all feature maps in
/// f32, with the channels first. Stores the figures in their results; the stream of batches of a GPU only for
/// classifiers and images of their own size. Returns the load of the machine during the measurement of
/// latency, by batch size.
///
/// # Errors
/// [`Error::Argument`] for a batch size of 0, or for one whose images do not fit in memory; [`Error::Eval`]
/// for options that are not finite, or if a model fails or `observer` stops the measurement.
pub fn measure_latency(
    candidates: &mut [Candidate],
    batch_sizes: &[usize],
    options: &LatencyOptions,
    lanes: usize,
    observer: &mut dyn Observer,
) -> Result<BTreeMap<usize, Load>, Error> {
    let mut loads = BTreeMap::new();
    check_memory(candidates, batch_sizes)?;
    for &batch_size in batch_sizes {
        if let Some(estimate) = estimate(candidates, batch_size, options)? {
            observer.timing(batch_size, estimate);
        }
        let (start, meter) = (Instant::now(), LoadMeter::start());
        let latencies = measure_one(candidates, batch_size, options, observer)?;
        let elapsed = start.elapsed();
        loads.insert(batch_size, meter.finish());
        for (candidate, latency) in candidates.iter_mut().zip(&latencies) {
            candidate.result.set_latency(batch_size, latency);
            if let Some(engine) = candidate.runner.cpu_engine() {
                let batch = candidate.noise(batch_size)?;
                let time = Duration::from_secs_f64((options.min_ms / 1000.0).clamp(0.0, LANE_SECONDS));
                let images_per_second = side_by_side(engine, &batch, lanes, time)?;
                candidate.result.stream_ips.insert(batch_size, images_per_second);
            }
            if let CandidateRunner::Engine(engine) = &candidate.runner
                && let Some(compute) = compute_times(engine, candidate.size(), batch_size)?
            {
                candidate.result.set_compute(batch_size, &compute);
            }
            if !candidate.has_own_size() || candidate.config().is_backbone() {
                continue;
            }
            if let Some(images_per_second) = stream(&candidate.runner, batch_size)? {
                candidate.result.stream_ips.insert(batch_size, images_per_second);
            }
        }
        let pairs: Vec<_> = candidates.iter().map(|candidate| &candidate.result).zip(&latencies).collect();
        observer.timed(batch_size, elapsed, &pairs);
    }
    Ok(loads)
}

/// [`measure_latency`] at each of `sizes`, which are backbones' sizes of images; without sizes, at the
/// candidates' own. The times of the first size are those of the results, and the times of all sizes are
/// listed.
pub(super) fn measure_sizes(
    candidates: &mut [Candidate],
    sizes: &[Size],
    options: &EvaluateOptions,
    observer: &mut dyn Observer,
) -> Result<BTreeMap<usize, Load>, Error> {
    let EvaluateOptions { latency, latency_options, .. } = options;
    let mut measure =
        |candidates: &mut [Candidate]| measure_latency(candidates, latency, latency_options, 0, observer);
    if sizes.is_empty() || latency.is_empty() {
        return measure(candidates);
    }
    let (mut listed, mut loads) = (vec![Vec::new(); candidates.len()], BTreeMap::new());
    // The first size comes last, so that its times stay.
    for size in sizes.iter().rev() {
        candidates.iter_mut().for_each(|candidate| candidate.begin_size(*size));
        loads = measure(candidates)?;
        for (candidate, listed) in candidates.iter().zip(&mut listed) {
            let ModelResult { latency_ms, compute_ms, .. } = &candidate.result;
            let (latency_ms, compute_ms) = (latency_ms.clone(), compute_ms.clone());
            listed.insert(0, SizeResult { size: [size.height, size.width], latency_ms, compute_ms });
        }
    }
    candidates.iter_mut().zip(listed).for_each(|(candidate, listed)| candidate.end_sizes(listed));
    Ok(loads)
}

/// Refuses batch sizes whose images take more than half of the machine's memory, before any work.
///
/// # Errors
/// [`Error::Argument`].
pub(super) fn check_memory(candidates: &[Candidate], batch_sizes: &[usize]) -> Result<(), Error> {
    let Some(&images) = batch_sizes.iter().max() else { return Ok(()) };
    let Some(memory) = Environment::detect(None, 0, BTreeMap::new()).memory_bytes else { return Ok(()) };
    let bytes = |candidate: &Candidate| candidate.size().area() * candidate.runner.channels();
    check_images(images, candidates.iter().map(bytes), memory)
}

/// Refuses batches of `images` images, one for each of the sizes of an image in bytes, that take more than
/// half of `memory` bytes.
fn check_images(images: usize, sizes: impl Iterator<Item = usize>, memory: u64) -> Result<(), Error> {
    let bytes = images as f64 * sizes.map(|bytes| bytes as f64).sum::<f64>();
    if bytes <= memory as f64 / 2.0 {
        return Ok(());
    }
    let gib = |bytes: f64| bytes / f64::from(1 << 30);
    let problem = format!(
        "batches of {images} images take {:.1} GiB for all models, more than half of the machine's {:.1} GiB",
        gib(bytes),
        gib(memory as f64)
    );
    Err(Error::argument("batch_size", problem))
}

/// About how long the measurement at `batch_size` takes, from one inference of a few images per model. `None`
/// for batches of so few images that nobody waits.
fn estimate(
    candidates: &[Candidate],
    batch_size: usize,
    options: &LatencyOptions,
) -> Result<Option<Duration>, Error> {
    if batch_size <= PROBE {
        return Ok(None);
    }
    let mut seconds = 0.0;
    for candidate in candidates {
        let batch = candidate.noise(PROBE)?;
        let mut run = candidate.runner.on(&batch);
        let mut infer = || run().map_err(Error::batch);
        infer()?;
        let start = Instant::now();
        infer()?;
        let one = start.elapsed().as_secs_f64() * batch_size as f64 / PROBE as f64;
        let runs = (1e-3 * options.min_ms / one).ceil().max(options.min_runs as f64);
        seconds += one * (runs + (1e-3 * options.warmup_ms / one).ceil().max(1.0));
    }
    Ok(Some(Duration::from_secs_f64(seconds)))
}

fn measure_one(
    candidates: &[Candidate],
    batch_size: usize,
    options: &LatencyOptions,
    observer: &dyn Observer,
) -> Result<Vec<Latency>, Error> {
    let batches: Vec<Batch> =
        candidates.iter().map(|candidate| candidate.noise(batch_size)).collect::<Result<_, Error>>()?;
    for candidate in candidates {
        prepare(candidate, batch_size)?;
    }
    let mut steps: Vec<Step<'_>> = Vec::new();
    for (candidate, batch) in candidates.iter().zip(&batches) {
        let mut run = candidate.runner.on(batch);
        steps.push(Box::new(move || {
            if observer.stop() {
                return Err(Box::new(Error::Interrupted));
            }
            run()
        }));
    }
    Ok(measure_interleaved(&mut steps, options)?)
}

/// Prepares the engines for batches of exactly `batch_size` images, and several GPUs also for their shares of
/// such a batch. Without this, a GPU engine that has run larger batches would pad the batch to their size,
/// and the latency would be that of the larger batch.
fn prepare(candidate: &Candidate, batch_size: usize) -> Result<(), Error> {
    let engines = candidate.runner.engines();
    let shares = [batch_size, batch_size / engines.len().max(1), batch_size.div_ceil(engines.len().max(1))];
    for engine in engines {
        for images in shares.into_iter().filter(|images| (1..=engine.max_batch()).contains(images)) {
            engine.prepare(candidate.size(), images)?;
        }
    }
    Ok(())
}

/// Images per second of `lanes` callers of a CPU engine at the same time, each of which calls it with `batch`
/// for the duration `time`.
fn side_by_side(engine: &Engine, batch: &Batch, lanes: usize, time: Duration) -> Result<f64, Error> {
    let lanes = match lanes {
        // While one batch ends, the next ones use the threads that it leaves.
        0 => (4 * engine.threads()).div_ceil(batch.len()).clamp(4.min(engine.threads()), engine.threads()),
        lanes => lanes,
    };
    let run = |time| -> Result<f64, Error> {
        let start = Instant::now();
        let call = || -> Result<usize, Error> {
            let (mut images, mut values) = (0, Vec::new());
            while images == 0 || start.elapsed() < time {
                features::compute(engine, batch, &mut values)?;
                images += batch.len();
            }
            Ok(images)
        };
        let images: usize = std::thread::scope(|scope| {
            let callers: Vec<_> = (0..lanes).map(|_| scope.spawn(call)).collect();
            let joined = callers.into_iter().map(|caller| caller.join());
            let images = joined.map(|images| images.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            images.sum::<Result<_, _>>()
        })?;
        Ok(images as f64 / start.elapsed().as_secs_f64())
    };
    // The first run touches the memory for the first time.
    run(Duration::ZERO)?;
    run(time)
}

/// Images per second of a stream of batches that comes from the memory of the host: copies and computation
/// overlap, and all GPUs work. `None` without a GPU, and for batches that the engine splits.
fn stream(runner: &CandidateRunner, batch_size: usize) -> Result<Option<f64>, Error> {
    let engines = runner.engines();
    if !engines.iter().all(|engine| engine.device().is_some() && batch_size <= engine.max_batch())
        || engines.is_empty()
    {
        return Ok(None);
    }
    let batches = (STREAM_IMAGES / batch_size).clamp(STREAM_BATCHES.0, STREAM_BATCHES.1) * engines.len();
    let batch = noise(runner, batches * batch_size)?;
    let mut logits = vec![0.0; batch.len() * runner.classes()];
    let mut seconds = Vec::new();
    for _ in 0..=STREAM_RUNS {
        let start = Instant::now();
        match runner {
            CandidateRunner::Engine(engine) => {
                engine.infer_in_batches(batch_size, &batch.pixels, &mut logits)?;
            }
            CandidateRunner::Replicas(replicas) => {
                replicas.infer_in_batches(batch_size, &batch.pixels, &mut logits)?
            }
            #[cfg(feature = "float")]
            CandidateRunner::Simulated(_) => return Ok(None),
        }
        seconds.push(start.elapsed().as_secs_f64());
    }
    // The first run touches the memory for the first time.
    let times = Latency::from_samples(seconds[1..].iter().map(|s| 1e3 * s).collect())?;
    Ok(Some(times.images_per_second(batch.len())))
}

/// Times of inferences whose images are already on the GPU; `None` on the CPU, and for batches that the
/// engine splits.
fn compute_times(engine: &Engine, size: Size, batch_size: usize) -> Result<Option<Latency>, Error> {
    if batch_size > engine.max_batch() {
        return Ok(None);
    }
    engine.compute_times(size, batch_size, COMPUTE_RUNS / 4)?;
    let Some(times) = engine.compute_times(size, batch_size, COMPUTE_RUNS)? else {
        return Ok(None);
    };
    let samples = times.iter().map(|time| 1e3 * time.as_secs_f64()).collect();
    Ok(Some(Latency::from_samples(samples)?))
}

/// Images of deterministic noise for `classifier`: the time of an inference does not depend on the pixels.
///
/// # Errors
/// [`Error::Argument`] for 0 images, or for more than fit in memory.
pub fn noise(classifier: &dyn Classifier, images: usize) -> Result<Batch, Error> {
    noise_of(classifier.input_size(), classifier.channels(), images)
}

/// [`noise`] of this size, with so many channels.
pub(crate) fn noise_of(size: Size, channels: usize, images: usize) -> Result<Batch, Error> {
    let mut pixels = Vec::new();
    match size.image_bytes(channels, images) {
        Some(bytes) if bytes > 0 && pixels.try_reserve_exact(bytes).is_ok() => {
            let mut state = 0x9e37_79b9_7f4a_7c15_u64;
            pixels.extend((0..bytes).map(|_| next_byte(&mut state)));
        }
        _ => {
            let Size { height, width } = size;
            let problem = format!("{images} images of {height} x {width} pixels cannot be held in memory");
            return Err(Error::argument("batch_size", problem));
        }
    }
    Ok(Batch { pixels, ids: (0..images).collect(), ..Batch::empty(size, channels) })
}

/// One step of a 64-bit xorshift generator.
fn next_byte(state: &mut u64) -> u8 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 32) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_of_half_of_the_memory_are_refused() {
        let sizes = [3 * 16 * 16, 32 * 32];
        let memory = 2 * 10 * (3 * 16 * 16 + 32 * 32);
        assert!(check_images(10, sizes.into_iter(), memory).is_ok());
        let error = check_images(11, sizes.into_iter(), memory).unwrap_err().to_string();
        assert!(error.contains("batches of 11 images"), "{error}");
        assert!(check_images(usize::MAX, [usize::MAX].into_iter(), u64::MAX).is_err());
    }
}
