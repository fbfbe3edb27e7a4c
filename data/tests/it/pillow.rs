//! Parity with Pillow, torchvision and timm on the files of `make_fixtures.py`: pixels and every resize and
//! crop are equal bit for bit. `SWINQ_PARITY=FOLDER` adds a larger set of files.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::sha;
use swinq_data::{RgbImage, decode_image, preprocess, presets};
use swinq_model::{Filter, Resize, Size, Transform};

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

fn transform(size: &str, resize: &str, filter: &str) -> Transform {
    let size = Size::square(size.parse().unwrap());
    let resize = match resize {
        "direct" => Resize::Direct,
        side => Resize::ShorterSide(side.parse().unwrap()),
    };
    let filter = match filter {
        "bicubic" => Filter::Bicubic,
        "bilinear" => Filter::Bilinear,
        other => panic!("filter {other}"),
    };
    Transform { resize, filter, ..Transform::microsoft(size, 3, true) }
}

#[test]
fn pixels_equal_pillows() {
    for folder in folders() {
        for row in table(&folder, "pixels.tsv") {
            let image = decode(&folder.join(&row[0]));
            assert_eq!((image.width.to_string(), image.height.to_string()), (row[1].clone(), row[2].clone()));
            assert_eq!(sha(&image.pixels), row[3], "{}", row[0]);
        }
    }
}

/// Without a rule, the orientation that EXIF states is not applied, as torchvision's `ImageFolder` does not
/// apply it. The file states a quarter turn of an image that is wider than high; its pixels are among those
/// of [`pixels_equal_pillows`].
#[test]
fn exif_orientation_is_ignored() {
    let path = folders()[0].join("kind_turned.jpg");
    let bytes = fs::read(&path).unwrap();
    // Tag 0x0112, one value of 16 bits: 6.
    let entry = [1, 18, 0, 3, 0, 0, 0, 1, 0, 6];
    assert!(bytes.windows(6).any(|window| window == b"Exif\0\0"));
    assert!(bytes.windows(entry.len()).any(|window| window == entry), "no orientation");
    let image = decode(&path);
    assert_eq!((image.width, image.height), (53, 47));
    assert!(table(&folders()[0], "pixels.tsv").iter().any(|row| row[0] == "kind_turned.jpg"));
}

#[test]
fn network_inputs_equal_pillows() {
    for folder in folders() {
        let rows = table(&folder, "inputs.tsv");
        for row in &rows {
            let image = decode(&folder.join(&row[0]));
            let input = preprocess(&image, &transform(&row[1], &row[2], &row[3]));
            assert_eq!(sha(&input), row[4], "{row:?}");
        }
        println!("{}: {} inputs are bit-equal", folder.display(), rows.len());
    }
}

#[test]
fn the_tested_transforms_include_every_preset() {
    let folder = &folders()[0];
    let tested: Vec<Transform> =
        table(folder, "inputs.tsv").iter().map(|row| transform(&row[1], &row[2], &row[3])).collect();
    let torchvision = |name| presets::torchvision(name).unwrap();
    for family in [
        Transform::microsoft(Size::square(224), 3, true),
        Transform::microsoft(Size::square(224), 3, false),
        presets::timm(Size::square(224), presets::TIMM_CROP_PCT),
        torchvision("swin_t"),
        torchvision("swin_v2_b"),
        presets::hugging_face(Size::square(224)),
    ] {
        let same =
            |t: &&Transform| (t.size, t.resize, t.filter) == (family.size, family.resize, family.filter);
        assert!(tested.iter().find(same).is_some(), "{family:?}");
    }
}
