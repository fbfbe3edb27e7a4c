//! Measures the launches of variants.

use std::time::{Duration, Instant};

use swinq_eval::{Latency, Load, LoadMeter, LoadSum, median};
use swinq_int8_runtime::{Images, LaunchProfile, LaunchSteps, Launches, Plan, Start, Variant, VariantRunner};
use swinq_model::{QuantizedModel, Size};

use super::latencies::{Latencies, Measured};
use crate::evaluate::noise_of;
use crate::{BackendChoice, Engine, EngineOptions, Error};

/// Time of one measurement.
const MEASURE: Duration = Duration::from_millis(1500);
/// The least rounds of a measurement.
const ROUNDS: usize = 15;
/// The most rounds of a measurement on the CPU: a median of more gains little, and small models run thousands
/// in the time.
const MOST_ROUNDS: usize = 100;

/// Measures models whose launches are not in a table yet.
pub(super) struct Stopwatch {
    engine: EngineOptions,
    launches: Launches,
    /// The size of the images.
    size: Size,
    pixels: Vec<u8>,
    batch_size: usize,
    /// The load of the machine during all measurements.
    load: LoadSum,
}

impl Stopwatch {
    /// A stopwatch for images of `size` with `channels` channels on `engine`, which must be resolved.
    pub(super) fn new(
        engine: &EngineOptions,
        (size, channels): (Size, usize),
        batch_size: usize,
    ) -> Result<Stopwatch, Error> {
        let pixels = noise_of(size, channels, batch_size)?.pixels;
        let launches = Launches::new(&engine.backend()?)?;
        Ok(Stopwatch { engine: engine.clone(), launches, size, pixels, batch_size, load: LoadSum::default() })
    }

    /// The load of the machine during all measurements.
    pub(super) fn load(&self) -> Load {
        self.load.load()
    }

    /// The launches of a model with the plan `plan`.
    pub(super) fn launches(&self, plan: &Plan<'_>) -> Result<Vec<LaunchSteps>, Error> {
        let most = self.engine.backend()?.max_batch();
        Ok(self.launches.of(plan, self.batch_size.min(most))?)
    }

    /// Adds the `launches` of `model`, prepared as `variant`, to `table`. `reference` is the start recipe's
    /// model; the two take turns.
    pub(super) fn measure(
        &mut self,
        runner: &mut VariantRunner,
        (model, variant): (&QuantizedModel, &Variant),
        reference: (&QuantizedModel, &Variant),
        launches: &[LaunchSteps],
        table: &mut Latencies,
    ) -> Result<(), Error> {
        let (begin, meter) = (Instant::now(), LoadMeter::start());
        match self.engine.backend {
            BackendChoice::Cuda => self.measure_on_gpu(model, reference.0, launches, table)?,
            _ => {
                runner.set_size(self.size)?;
                self.measure_on_cpu(runner, (variant, reference.1), launches, table)?;
            }
        }
        self.load.add(&meter.finish(), begin.elapsed().as_secs_f64());
        Ok(())
    }

    fn measure_on_cpu(
        &self,
        runner: &mut VariantRunner,
        (variant, reference): (&Variant, &Variant),
        launches: &[LaunchSteps],
        table: &mut Latencies,
    ) -> Result<(), Error> {
        let (images, last) = (self.batch_size, runner.positions().len() - 1);
        let mut output = vec![0.0; images * runner.positions()[last].values];
        let mut infer = |runner: &mut VariantRunner, variant: &Variant| {
            let start = Instant::now();
            runner.run(
                variant,
                images,
                Start::Images(Images::new(self.size, &self.pixels[..])),
                last,
                &mut output,
            );
            milliseconds(start.elapsed())
        };
        let (mut references, mut wholes) = (Vec::new(), Vec::new());
        let mut times = vec![Vec::new(); launches.len()];
        let start = Instant::now();
        // The first round warms up.
        for round in 0.. {
            if round > MOST_ROUNDS || round > ROUNDS && start.elapsed() > MEASURE {
                break;
            }
            let (reference, whole) = (infer(runner, reference), infer(runner, variant));
            let profile = times_of(&runner.profile(variant, images, &self.pixels), launches);
            if round == 0 {
                continue;
            }
            references.push(reference);
            wholes.push(whole);
            times.iter_mut().zip(profile).for_each(|(all, time)| all.push(time));
        }
        let times: Vec<f64> = times.into_iter().map(median).collect();
        let (whole, reference) = (Latency::from_samples(wholes)?, Latency::from_samples(references)?);
        table.add(variant.plan(), &Measured { launches: (launches, &times), whole, reference });
        Ok(())
    }

    fn measure_on_gpu(
        &self,
        model: &QuantizedModel,
        reference: &QuantizedModel,
        launches: &[LaunchSteps],
        table: &mut Latencies,
    ) -> Result<(), Error> {
        let (images, backend) = (self.batch_size, self.engine.backend()?);
        let (engine, reference) = (Engine::new(model, backend)?, Engine::new(reference, backend)?);
        let profile = engine.profile(engine.input_size(), &self.pixels, 1)?;
        let (mut wholes, mut references) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            for (engine, times) in [(&engine, &mut wholes), (&reference, &mut references)] {
                let compute = engine.compute_times(engine.input_size(), images, 10)?.unwrap_or_default();
                times.extend(compute.into_iter().map(milliseconds));
            }
        }
        let times = times_of(&profile, launches);
        let (whole, reference) = (Latency::from_samples(wholes)?, Latency::from_samples(references)?);
        table.add(engine.plan(), &Measured { launches: (launches, &times), whole, reference });
        Ok(())
    }
}

/// The milliseconds of each of `launches`, whose `profile` this is.
fn times_of(profile: &[LaunchProfile], launches: &[LaunchSteps]) -> Vec<f64> {
    assert!(
        profile.iter().map(|launch| &launch.name).eq(launches.iter().map(|launch| &launch.name)),
        "a profile has the launches that the backend said"
    );
    profile.iter().map(|launch| milliseconds(launch.time)).collect()
}

fn milliseconds(time: Duration) -> f64 {
    1e3 * time.as_secs_f64()
}
