//! Parity with Pillow, torchvision and timm on the files of `make_fixtures.py`: PNG pixels and every resize and
//! crop are equal bit for bit, JPEG pixels are close. `SWINQ_PARITY=FOLDER` adds a larger set of files.

use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use swinq_data::{RgbImage, decode_image, preprocess, presets};
use swinq_model::{Filter, Resize, Transform};

/// Limit of the maximum difference between the samples of zune-jpeg and of Pillow's libjpeg-turbo for one
/// JPEG.
const JPEG_MAX: u8 = 12;
/// Limit of the mean difference.
const JPEG_MEAN: f64 = 1.0;

fn folders() -> Vec<PathBuf> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")];
    match std::env::var_os("SWINQ_PARITY") {
        Some(folder) => folders.push(folder.into()),
        None => eprintln!(
            "SKIPPED: the larger parity set; make it with make_fixtures.py --large and set SWINQ_PARITY"
        ),
    }
    folders
}

fn decode(path: &Path) -> RgbImage {
    decode_image(&fs::read(path).unwrap()).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Lines of a table, split at tabs.
fn table(folder: &Path, name: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(folder.join(name)).unwrap();
    let rows: Vec<Vec<String>> =
        text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect();
    assert!(rows.len() > 20, "{name} has only {} lines", rows.len());
    rows
}

fn sha(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The image with the pixels that Pillow decoded. For a PNG it is the file itself, for a JPEG the PNG file
/// beside it, which holds Pillow's pixels.
fn pillows_pixels(folder: &Path, name: &str) -> RgbImage {
    let name = if name.ends_with(".jpg") { format!("{name}.png") } else { name.to_owned() };
    decode(&folder.join(name))
}

fn transform(size: &str, resize: &str, filter: &str) -> Transform {
    let size = size.parse().unwrap();
    let resize = match resize {
        "direct" => Resize::Direct,
        side => Resize::ShorterSide(side.parse().unwrap()),
    };
    let filter = match filter {
        "bicubic" => Filter::Bicubic,
        "bilinear" => Filter::Bilinear,
        other => panic!("filter {other}"),
    };
    Transform { size, resize, filter, ..Transform::microsoft(size, true) }
}

#[test]
fn png_pixels_equal_pillows() {
    for folder in folders() {
        for row in table(&folder, "pixels.tsv") {
            let image = decode(&folder.join(&row[0]));
            assert_eq!((image.width.to_string(), image.height.to_string()), (row[1].clone(), row[2].clone()));
            assert_eq!(sha(&image.pixels), row[3], "{}", row[0]);
        }
    }
}

#[test]
fn network_inputs_equal_pillows() {
    for folder in folders() {
        let rows = table(&folder, "inputs.tsv");
        for row in &rows {
            let image = pillows_pixels(&folder, &row[0]);
            let input = preprocess(&image, &transform(&row[1], &row[2], &row[3]));
            assert_eq!(sha(&input), row[4], "{row:?}");
        }
        println!("{}: {} inputs are bit-equal", folder.display(), rows.len());
    }
}

#[test]
fn jpeg_pixels_are_close_to_pillows() {
    for folder in folders() {
        let mut names: Vec<String> =
            table(&folder, "inputs.tsv").into_iter().map(|mut row| row.remove(0)).collect();
        names.dedup();
        let (mut count, mut largest, mut worst_mean) = (0, 0, 0.0_f64);
        for name in names.iter().filter(|name| name.ends_with(".jpg")) {
            let (ours, theirs) = (decode(&folder.join(name)), pillows_pixels(&folder, name));
            assert_eq!((ours.width, ours.height), (theirs.width, theirs.height), "{name}");
            let differences = ours.pixels.iter().zip(&theirs.pixels).map(|(a, b)| a.abs_diff(*b));
            let max = differences.clone().max().unwrap();
            let mean = differences.map(f64::from).sum::<f64>() / ours.pixels.len() as f64;
            assert!(max <= JPEG_MAX && mean <= JPEG_MEAN, "{name}: max {max}, mean {mean:.3}");
            (count, largest, worst_mean) = (count + 1, largest.max(max), worst_mean.max(mean));
        }
        assert!(count >= 9, "{count} JPEG");
        println!(
            "{}: {count} JPEG, largest difference {largest}, worst mean {worst_mean:.3}",
            folder.display()
        );
    }
}

#[test]
fn the_tested_transforms_include_every_preset() {
    let folder = &folders()[0];
    let tested: Vec<Transform> =
        table(folder, "inputs.tsv").iter().map(|row| transform(&row[1], &row[2], &row[3])).collect();
    let torchvision = |name| presets::torchvision(name).unwrap();
    for family in [
        Transform::microsoft(224, true),
        Transform::microsoft(224, false),
        presets::timm(224, presets::TIMM_CROP_PCT),
        torchvision("swin_t"),
        torchvision("swin_v2_b"),
        presets::hugging_face(224),
    ] {
        let same =
            |t: &&Transform| (t.size, t.resize, t.filter) == (family.size, family.resize, family.filter);
        assert!(tested.iter().find(same).is_some(), "{family:?}");
    }
}
