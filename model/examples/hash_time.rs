//! Times the hash (XXH3-128) of a quantized checkpoint's tensors, which is verified whenever the file is
//! read.
//!
//! ```text
//! cargo run --release -p swinq-model --example hash_time -- q.safetensors
//! ```

use std::time::Instant;

use safetensors::SafeTensors;
use twox_hash::XxHash3_128;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: hash_time FILE.safetensors")?;
    let bytes = std::fs::read(path)?;
    let file = SafeTensors::deserialize(&bytes)?;
    let mut milliseconds: Vec<f64> = Vec::new();
    for _ in 0..21 {
        let start = Instant::now();
        let mut hash = XxHash3_128::new();
        file.tensors().iter().for_each(|(_, tensor)| hash.write(tensor.data()));
        std::hint::black_box(hash.finish_128());
        milliseconds.push(1000.0 * start.elapsed().as_secs_f64());
    }
    milliseconds.sort_by(f64::total_cmp);
    let (least, median) = (milliseconds[0], milliseconds[10]);
    println!("{} bytes: {least:.2} ms, median {median:.2} ms of 21 runs", bytes.len());
    Ok(())
}
