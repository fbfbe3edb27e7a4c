//! Opens a data set, decodes its first images on several threads, and prints time and peak memory.
//!
//! ```text
//! seq -f 'images/%.0f.jpg 0' 10000000 > list.txt
//! cargo run --release -p swinq-data --example open_dataset -- list.txt
//! cargo run --release -p swinq-data --example open_dataset -- FOLDER 4      # decodes with 4 threads
//! ```

use std::path::Path;
use std::time::Instant;

use swinq_data::{Dataset, Split};

type BoxError = Box<dyn std::error::Error>;

/// The largest memory that the process has used so far, as Linux states it.
fn peak() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.map_or_else(|| "unknown".to_owned(), |line| line.trim().to_owned())
}

fn main() -> Result<(), BoxError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let path = arguments.first().ok_or("usage: open_dataset PATH [THREADS]")?;
    let start = Instant::now();
    let dataset = match Dataset::open(Path::new(path), Split::Val) {
        Ok(dataset) => dataset,
        Err(error) => {
            println!("{error}\nrefused after {:.2?}, peak memory {}", start.elapsed(), peak());
            return Ok(());
        }
    };
    println!("{}\nopened in {:.2?}, peak memory {}", dataset.describe(), start.elapsed(), peak());
    let threads: usize = arguments.get(1).map_or(Ok(0), |threads| threads.parse())?;
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let dataset = &dataset;
            scope.spawn(move || {
                for i in (thread..dataset.len()).step_by(threads) {
                    if let Err(error) = dataset.decode(i) {
                        println!("{error}");
                    }
                }
            });
        }
    });
    if threads > 0 {
        println!("decoded in {:.2?} by {threads} threads, peak memory {}", start.elapsed(), peak());
    }
    Ok(())
}
