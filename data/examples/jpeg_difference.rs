//! Compares this crate's JPEG decoding with Pillow's, per file and in total, before and after preprocessing, and
//! measures the time of both steps on one core.
//!
//! ```text
//! python data/tests/make_fixtures.py --pillow JPEGS PNGS
//! cargo run --release -p swinq-data --example jpeg_difference -- JPEGS PNGS
//! ```

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use swinq_data::{RgbImage, decode_image, preprocess};
use swinq_model::Transform;

type BoxError = Box<dyn std::error::Error>;

/// Statistics of the absolute differences of bytes.
#[derive(Default)]
struct Differences {
    bytes: u64,
    sum: u64,
    max: u8,
    /// Number of bytes that differ by 0, 1, 2, 3 and more.
    histogram: [u64; 5],
}

impl Differences {
    fn between(ours: &[u8], theirs: &[u8]) -> Differences {
        let mut all = Differences::default();
        for (a, b) in ours.iter().zip(theirs) {
            let difference = a.abs_diff(*b);
            all.bytes += 1;
            all.sum += u64::from(difference);
            all.max = all.max.max(difference);
            all.histogram[usize::from(difference.min(4))] += 1;
        }
        all
    }

    fn add(&mut self, other: &Differences) {
        self.bytes += other.bytes;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
        for (mine, theirs) in self.histogram.iter_mut().zip(other.histogram) {
            *mine += theirs;
        }
    }

    fn print(&self, name: &str) {
        let share = |count: u64| 100.0 * count as f64 / self.bytes as f64;
        let [same, one, two, three, more] = self.histogram.map(share);
        println!(
            "{name}: max {}, mean {:.4}; equal {same:.2} %, by 1 {one:.2} %, 2 {two:.3} %, 3 {three:.3} %, more \
             {more:.3} %",
            self.max,
            self.sum as f64 / self.bytes as f64
        );
    }
}

/// Runs `work` and adds its duration to `total`.
fn timed<T>(total: &mut Duration, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    *total += start.elapsed();
    result
}

fn jpegs(folder: &Path) -> Result<Vec<PathBuf>, BoxError> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        if ["jpg", "jpeg"].contains(&extension.to_ascii_lowercase().as_str()) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn main() -> Result<(), BoxError> {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [jpeg_folder, png_folder] = &arguments[..] else {
        return Err("usage: jpeg_difference JPEG_FOLDER PILLOW_PNG_FOLDER".into());
    };
    let transform = Transform::microsoft(224, true);
    let (mut decoded, mut inputs) = (Differences::default(), Differences::default());
    let (mut decoding, mut resizing) = (Duration::ZERO, Duration::ZERO);
    let (mut count, mut pixels) = (0, 0);
    for path in jpegs(jpeg_folder)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let bytes = std::fs::read(&path)?;
        let ours: RgbImage =
            timed(&mut decoding, || decode_image(&bytes)).map_err(|e| format!("{name}: {e}"))?;
        let theirs = decode_image(&std::fs::read(png_folder.join(format!("{name}.png")))?)?;
        let differences = Differences::between(&ours.pixels, &theirs.pixels);
        differences.print(&format!("{name} {}x{}", ours.width, ours.height));
        decoded.add(&differences);
        let input = timed(&mut resizing, || preprocess(&ours, &transform));
        inputs.add(&Differences::between(&input, &preprocess(&theirs, &transform)));
        (count, pixels) = (count + 1, pixels + ours.width * ours.height);
    }
    println!("\n{count} files, {:.1} megapixels", pixels as f64 / 1e6);
    decoded.print("decoded");
    inputs.print("after resize and crop to 224");
    println!(
        "decoding {:.2} ms, resize and crop {:.2} ms per image",
        decoding.as_secs_f64() * 1e3 / f64::from(count),
        resizing.as_secs_f64() * 1e3 / f64::from(count)
    );
    Ok(())
}
