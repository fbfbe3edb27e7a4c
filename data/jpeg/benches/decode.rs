//! Time to decode JPEG files by this crate and by zune-jpeg, alternating in one run:
//!
//! ```text
//! SWINQ_JPEGS=FOLDER cargo bench -p swinq-jpeg
//! ```
//!
//! FOLDER holds JPEG photographs. The ratio is that of the medians of the rounds.

use std::hint::black_box;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;

/// Rounds over all files.
const ROUNDS: usize = 15;

fn files() -> Vec<Vec<u8>> {
    let folder = std::env::var_os("SWINQ_JPEGS").map(PathBuf::from);
    let folder =
        folder.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures"));
    let is_jpeg = |path: &PathBuf| {
        let extension = path.extension().unwrap_or_default().to_ascii_lowercase();
        extension == "jpg" || extension == "jpeg"
    };
    let paths = std::fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let files: Vec<Vec<u8>> =
        paths.filter(is_jpeg).map(|path| std::fs::read(path).expect("a readable file")).collect();
    // Only files that both decode.
    files.into_iter().filter(|file| ours(file).is_some() && zune(file).is_some()).collect()
}

fn ours(file: &[u8]) -> Option<Vec<u8>> {
    let header = swinq_jpeg::read_header(file).ok()?;
    swinq_jpeg::decode(file, &header).ok()
}

fn zune(file: &[u8]) -> Option<Vec<u8>> {
    JpegDecoder::new(ZCursor::new(file)).decode().ok()
}

/// Time of one round over `files`.
fn round(files: &[Vec<u8>], decode: impl Fn(&[u8]) -> Option<Vec<u8>>) -> Duration {
    let start = Instant::now();
    for file in files {
        black_box(decode(black_box(file)));
    }
    start.elapsed()
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e3
}

fn main() {
    let files = files();
    let (mut mine, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        mine.push(round(&files, ours));
        theirs.push(round(&files, zune));
    }
    let (mine, theirs) = (median(mine), median(theirs));
    let build = if swinq_jpeg::has_simd() { "vector code" } else { "C" };
    println!(
        "{} files: this crate ({build}) {mine:.2} ms, zune-jpeg {theirs:.2} ms, ratio {:.2}",
        files.len(),
        mine / theirs
    );
}
