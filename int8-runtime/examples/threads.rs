//! How the work of an inference would divide over many threads: the time of the tasks on one thread, and the time in which
//! that many threads would do them.
//!
//! ```text
//! cargo run --release -p swinq-int8-runtime --example threads -- MODEL.safetensors 2 32 96
//! ```
//! `idle` is the share of the threads' time without a task. What threads cost each other (waking, barriers, memory and
//! caches) is left out.

use std::path::Path;

use swinq_int8_runtime::{Backend, CpuOptions, Engine};

const BATCHES: [usize; 6] = [1, 3, 8, 13, 32, 96];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [model, threads @ ..] = words.as_slice() else { panic!("MODEL.safetensors THREADS...") };
    let options = CpuOptions { threads: 1, max_batch: 1, ..CpuOptions::detect().expect("a processor") };
    let engine = Engine::load(Path::new(model), Backend::Cpu(options)).expect("an engine");
    println!("| threads | batch | one thread, ms | all threads, ms | speedup | idle | jobs |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for threads in threads {
        let threads = threads.parse().expect("a number of threads");
        for images in BATCHES {
            let found =
                engine.simulate(threads, images).expect("a simulation").expect("an engine on the CPU");
            let [one, all] = [found.busy, found.elapsed].map(|time| 1e3 * time.as_secs_f64());
            println!(
                "| {threads} | {images} | {one:.2} | {all:.2} | {:.1} | {:.0} % | {} |",
                one / all,
                100.0 * found.idle(),
                found.jobs
            );
        }
    }
}
