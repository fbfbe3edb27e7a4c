//! Speed of the CPU engine on 1 to all cores: one image at a time, batches, and callers that share an engine,
//! beside an engine of one thread for each core.
//!
//! ```text
//! cargo run --release -p swinq-int8-runtime --example cores -- MODEL.safetensors [SECONDS]
//! ```
//! Every figure is measured for `SECONDS` (default 2). `job` is the time of a job of empty tasks, one for
//! each thread.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use swinq_int8_runtime::{Backend, CpuOptions, Engine, PackedModel};
use swinq_kernels::Pool;
use swinq_model::QuantizedModel;

/// The settings of all measurements.
struct Subject {
    packed: Arc<PackedModel>,
    /// Pixels of one image.
    image: Vec<u8>,
    time: Duration,
}

impl Subject {
    fn engine(&self, options: CpuOptions) -> Engine {
        Engine::from_packed(&self.packed, Backend::Cpu(options)).expect("an engine")
    }

    /// Seconds of each call of `engine` with `images` images, by one caller, until the time is over.
    fn calls(&self, engine: &Engine, images: usize) -> Vec<f64> {
        let (pixels, mut logits) = (self.image.repeat(images), vec![0.0; images * engine.classes()]);
        let mut call = || {
            let start = Instant::now();
            engine.infer_into(&pixels, &mut logits).expect("an inference");
            start.elapsed().as_secs_f64()
        };
        (0..3).for_each(|_| {
            call();
        });
        let start = Instant::now();
        let mut seconds = Vec::new();
        while start.elapsed() < self.time || seconds.is_empty() {
            seconds.push(call());
        }
        seconds.sort_unstable_by(f64::total_cmp);
        seconds
    }

    /// Images per second of batches of `images` images.
    fn rate(&self, engine: &Engine, images: usize) -> f64 {
        images as f64 / quantile(&self.calls(engine, images), 0.5)
    }

    /// Images per second of callers at the same time, each of its own engine of `engines` or of a common one.
    fn callers(&self, engines: &[Engine], callers: usize, images: usize) -> f64 {
        std::thread::scope(|scope| {
            let call = |caller: usize| {
                let engine = &engines[caller % engines.len()];
                move || self.calls(engine, images).len() * images
            };
            let start = Instant::now();
            let running: Vec<_> = (0..callers).map(|caller| scope.spawn(call(caller))).collect();
            let done: usize = running.into_iter().map(|caller| caller.join().expect("no panic")).sum();
            done as f64 / start.elapsed().as_secs_f64()
        })
    }
}

fn quantile(sorted: &[f64], part: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * part).round() as usize]
}

/// Microseconds of a job of one empty task for each of `threads` threads.
fn job(threads: usize) -> f64 {
    let mut pool = Pool::new(threads);
    let mut times: Vec<f64> = (0..2000)
        .map(|_| {
            let start = Instant::now();
            pool.run(threads, &|_, _| {});
            start.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_unstable_by(f64::total_cmp);
    1e6 * quantile(&times, 0.5)
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [model, seconds @ ..] = words.as_slice() else { panic!("MODEL.safetensors [SECONDS]") };
    let seconds = seconds.first().map_or(2.0, |seconds| seconds.parse().expect("seconds"));
    let model = QuantizedModel::load(Path::new(model)).expect("a quantized checkpoint");
    let default = CpuOptions::detect().expect("a processor");
    let subject = Subject {
        packed: Arc::new(PackedModel::new(&model, Backend::Cpu(default)).expect("a model")),
        image: (0..model.config.image_size.area() * model.config.in_chans).map(|i| (i * 151) as u8).collect(),
        time: Duration::from_secs_f64(seconds),
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("{cores} cores, kernels {}", default.cpu);
    one_image(&subject, default, cores);
    batches(&subject, default, cores);
}

/// One image at a time on 1 to all threads, then on as many as the engine chooses.
fn one_image(subject: &Subject, default: CpuOptions, cores: usize) {
    println!("\n| threads | job, us | one image: median, ms | p99, ms |\n| --- | --- | --- | --- |");
    let powers = (0..).map(|power| 1 << power).take_while(|&threads| threads < cores);
    for threads in powers.chain([cores]) {
        let engine = subject.engine(CpuOptions { threads, image_threads: threads, ..default });
        let calls = subject.calls(&engine, 1);
        let [median, p99] = [0.5, 0.99].map(|part| 1e3 * quantile(&calls, part));
        println!("| {threads} | {:.1} | {median:.2} | {p99:.2} |", job(threads));
    }
    let engine = subject.engine(default);
    let calls = subject.calls(&engine, 1);
    let [median, p99] = [0.5, 0.99].map(|part| 1e3 * quantile(&calls, part));
    println!("| chosen: {} | | {median:.2} | {p99:.2} |", engine.image_threads());
}

/// Images per second of batches, and of callers of one engine or of an engine each.
fn batches(subject: &Subject, default: CpuOptions, cores: usize) {
    println!("\n| images/s | at most 1 a thread | 2 | 4 | 8 |\n| --- | --- | --- | --- | --- |");
    let row = |name: &str, rate: &dyn Fn(CpuOptions) -> f64| {
        let rates = [1, 2, 4, 8].map(|max_batch| format!("{:.0}", rate(CpuOptions { max_batch, ..default })));
        println!("| {name} | {} |", rates.join(" | "));
    };
    for images in [1, 4, 16].map(|each| each * cores) {
        row(&format!("one engine, batch {images}"), &|options| {
            subject.rate(&subject.engine(options), images)
        });
    }
    row(&format!("one engine, {cores} callers with as many images"), &|options| {
        subject.callers(&[subject.engine(options)], cores, options.max_batch)
    });
    row(&format!("{cores} engines of one thread, as many images"), &|options| {
        let engine = |_| subject.engine(CpuOptions { threads: 1, ..options });
        let engines: Vec<Engine> = (0..cores).map(engine).collect();
        subject.callers(&engines, cores, options.max_batch)
    });
}
