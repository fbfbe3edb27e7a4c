//! Measures the training loader in images per second, with and without the cache of decoded images, and the
//! time that one thread takes to read, decode and augment an image.
//!
//! ```text
//! cargo run --release -p swinq-data --example train_speed -- samples/cifar10 32 padded 2
//! ```
//!
//! Arguments: data set, input size, crop (`random_resized`, `padded`, `none`), threads (0: one per core),
//! number of images (default: all).

use std::path::Path;
use std::time::Instant;

use swinq_data::augment::CropKind;
use swinq_data::{Augment, Dataset, LoaderOptions, Split, TrainLoader, TrainOptions, decode_image};
use swinq_model::{BatchSource, BoxError, Size, Transform};

fn crop(name: &str) -> Result<CropKind, BoxError> {
    match name {
        "random_resized" => Ok(CropKind::RandomResized),
        "padded" => Ok(CropKind::Padded),
        "none" => Ok(CropKind::None),
        other => Err(format!("crop `{other}` is unknown; write random_resized, padded or none").into()),
    }
}

/// Microseconds per image for reading, decoding and augmenting, on this thread.
fn steps(
    dataset: &Dataset,
    ids: &[usize],
    transform: &Transform,
    augment: &Augment,
) -> Result<[f64; 3], BoxError> {
    let mut seconds = [0.0; 3];
    let mut lap = |step: usize, start: Instant| seconds[step] += start.elapsed().as_secs_f64();
    for &id in ids {
        let start = Instant::now();
        let bytes = dataset.read(id)?;
        lap(0, start);
        let start = Instant::now();
        let image = decode_image(&bytes)?;
        lap(1, start);
        let start = Instant::now();
        augment.draw((image.width, image.height), transform.size, &[id as u64]).apply(&image, transform);
        lap(2, start);
    }
    Ok(seconds.map(|seconds| seconds / ids.len() as f64 * 1e6))
}

/// Images per second of each of three epochs.
fn epochs(loader: &mut TrainLoader) -> Result<Vec<f64>, BoxError> {
    let mut speeds = Vec::new();
    for epoch in 0..3 {
        let start = Instant::now();
        for index in 0..loader.batches() {
            loader.batch(epoch, index)?;
        }
        speeds.push(loader.images() as f64 / start.elapsed().as_secs_f64());
    }
    Ok(speeds)
}

fn main() -> Result<(), BoxError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (path, size, crop_name, threads, images) = match &arguments[..] {
        [path, size, crop, threads] => (path, size, crop, threads, None),
        [path, size, crop, threads, images] => (path, size, crop, threads, Some(images.parse()?)),
        _ => return Err("usage: train_speed DATA SIZE CROP THREADS [IMAGES]".into()),
    };
    let dataset = Dataset::open(Path::new(path), Split::Train)?;
    let transform = Transform::microsoft(Size::square(size.parse()?), 3, false);
    let plain = Augment { crop: crop(crop_name)?, ..Augment::default() };
    let jitter = Augment { brightness: 0.4, contrast: 0.4, saturation: 0.4, hue: 0.1, ..plain.clone() };
    let ids = dataset.sample(images, 0);
    println!("{}", dataset.describe());
    for (name, augment) in [("flip", &plain), ("flip, jitter", &jitter)] {
        let sample = &ids.slice(0..ids.len().min(5000));
        let [read, decode, augment_time] = steps(&dataset, sample, &transform, augment)?;
        println!(
            "{crop_name}, {name}: read {read:.1} us, decode {decode:.1} us, augment {augment_time:.1} us per image"
        );
        for cache_bytes in [0, 1 << 32] {
            let loader =
                LoaderOptions { batch_size: 64, threads: threads.parse()?, prefetch: 4, skip_corrupt: 0 };
            let options =
                TrainOptions { loader, augment: augment.clone(), cache_bytes, ..TrainOptions::default() };
            let mut loader = TrainLoader::new(dataset.clone(), ids.clone(), transform.clone(), options)?;
            let speeds: Vec<String> =
                epochs(&mut loader)?.iter().map(|speed| format!("{speed:.0}")).collect();
            let megabytes = loader.cached_bytes() as f64 / 1e6;
            println!("  images/s of three epochs: {}; {megabytes:.0} MB cached", speeds.join(", "));
        }
    }
    Ok(())
}
