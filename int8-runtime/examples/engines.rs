//! Images per second of engines that share packed weights and run at the same time, each called by its own thread.
//!
//! ```text
//! cargo run --release -p swinq-int8-runtime --example engines -- MODEL.safetensors
//! ```
//! The rows divide the cores among the engines, and the last row gives every engine all of them.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use swinq_int8_runtime::{Backend, CpuOptions, Engine, PackedModel};
use swinq_model::QuantizedModel;

const TIME: Duration = Duration::from_secs(3);
const BATCHES: [usize; 2] = [1, 8];

/// Images per second of `engines` engines on batches of `images`, whose pixels are `pixels`.
fn rate(packed: &Arc<PackedModel>, options: CpuOptions, engines: usize, images: usize, pixels: &[u8]) -> f64 {
    let engines: Vec<Engine> = (0..engines)
        .map(|_| Engine::from_packed(packed, Backend::Cpu(options)).expect("an engine"))
        .collect();
    let start = Instant::now();
    let run = |engine: &Engine| {
        let mut logits = vec![0.0; images * engine.classes()];
        let mut done = 0;
        while start.elapsed() < TIME {
            engine.infer_into(pixels, &mut logits).expect("an inference");
            done += images;
        }
        done as f64 / start.elapsed().as_secs_f64()
    };
    std::thread::scope(|scope| {
        let runs: Vec<_> = engines.iter().map(|engine| scope.spawn(|| run(engine))).collect();
        runs.into_iter().map(|run| run.join().expect("no panic")).sum()
    })
}

fn main() {
    let model = std::env::args().nth(1).expect("MODEL.safetensors");
    let model = QuantizedModel::load(Path::new(&model)).expect("a quantized checkpoint");
    let image = model.config.image_size.area() * model.config.in_chans;
    let pixels = vec![128; BATCHES[1] * image];
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let options =
        |threads| CpuOptions { threads, max_batch: BATCHES[1], ..CpuOptions::detect().expect("a processor") };
    let packed = Arc::new(PackedModel::new(&model, Backend::Cpu(options(1))).expect("a model"));
    println!("| engines | threads of each | images/s at batch 1 | at batch 8 |\n| --- | --- | --- | --- |");
    let mut rows = vec![(1, cores), (2, cores.div_ceil(2)), (cores, 1), (cores, cores)];
    rows.dedup();
    for (engines, threads) in rows {
        let [one, eight] =
            BATCHES.map(|images| rate(&packed, options(threads), engines, images, &pixels[..images * image]));
        println!("| {engines} | {threads} | {one:.1} | {eight:.1} |");
    }
}
