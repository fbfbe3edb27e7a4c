//! Parity of crops, flips and colour adjustments with torchvision, on the tables of
//! `make_augment_fixtures.py`, and the statistics of the draws.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::sha;
use swinq_data::augment::{Adjustment, CropBox, CropKind, Variation};
use swinq_data::{Augment, decode_image, preprocess};
use swinq_model::{Filter, Size, Transform};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn table(name: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(fixtures().join(name)).unwrap();
    text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

fn adjustment(text: &str) -> Adjustment {
    let (kind, factor) = text.split_once('=').unwrap();
    let factor = factor.parse().unwrap();
    match kind {
        "brightness" => Adjustment::Brightness(factor),
        "contrast" => Adjustment::Contrast(factor),
        "saturation" => Adjustment::Saturation(factor),
        "hue" => Adjustment::Hue(factor),
        other => panic!("adjustment {other}"),
    }
}

fn transform(size: usize, filter: Filter) -> Transform {
    Transform { filter, ..Transform::microsoft(Size::square(size), 3, true) }
}

#[test]
fn variations_equal_torchvisions() {
    let rows = table("augmented.tsv");
    for row in &rows {
        let image = decode_image(&fs::read(fixtures().join(&row[0])).unwrap()).unwrap();
        let filter = if row[2] == "bicubic" { Filter::Bicubic } else { Filter::Bilinear };
        let crop = CropBox {
            left: row[3].parse().unwrap(),
            top: row[4].parse().unwrap(),
            width: row[5].parse().unwrap(),
            height: row[6].parse().unwrap(),
        };
        let adjustments = row[8].split(',').filter(|step| *step != "-").map(adjustment).collect();
        let variation = Variation { crop: Some(crop), flip: row[7] == "1", adjustments, erased: None };
        let pixels = variation.apply(&image, &transform(row[1].parse().unwrap(), filter));
        assert_eq!(sha(&pixels), row[9], "{row:?}");
    }
    assert!(rows.len() > 90);
}

#[test]
fn every_colour_is_adjusted_as_in_pillow() {
    let cube: Vec<u8> =
        (0_u32..1 << 24).flat_map(|code| [code >> 16, code >> 8, code].map(|c| c as u8)).collect();
    for row in table("colours.tsv") {
        let mut pixels = cube.clone();
        adjustment(&row[0]).apply(&mut pixels);
        assert_eq!(sha(&pixels), row[1], "{}", row[0]);
    }
}

#[test]
fn no_augmentation_is_the_evaluation_preprocessing() {
    for name in ["rgb.png", "rgb420.jpg", "thin.png"] {
        let image = decode_image(&fs::read(fixtures().join(name)).unwrap()).unwrap();
        let variation = Augment::none().draw((image.width, image.height), Size::square(32), &[3]);
        assert_eq!(variation, Variation { crop: None, flip: false, adjustments: Vec::new(), erased: None });
        let transform = transform(24, Filter::Bicubic);
        assert_eq!(variation.apply(&image, &transform), preprocess(&image, &transform));
    }
}

#[test]
fn the_draw_is_fixed_across_versions() {
    // The expected values come from another implementation of the generator. They must not change, because a
    // later version may resume a training run.
    let drawn = Augment::default().draw((500, 375), Size::square(32), &[2, 0, 3, 17]);
    let crop = CropBox { left: 16, top: 50, width: 308, height: 323 };
    assert_eq!(drawn, Variation { crop: Some(crop), flip: true, adjustments: Vec::new(), erased: None });
}

#[test]
fn flips_have_their_probability() {
    for (flip, range) in [(0.0, 0..=0), (1.0, 4000..=4000), (0.25, 863..=1137)] {
        // At 0.25 the expected count is 1000 with a standard deviation of 27.4, and the bound is five of
        // them.
        let augment = Augment { flip, ..Augment::default() };
        let count = (0..4000).filter(|&i| augment.draw((32, 32), Size::square(32), &[9, i]).flip).count();
        assert!(range.contains(&count), "{flip}: {count}");
    }
}

#[test]
fn jitter_covers_its_ranges_and_every_order() {
    let augment = Augment { brightness: 0.4, contrast: 1.5, saturation: 0.2, hue: 0.1, ..Augment::default() };
    let mut ranges = [(f64::MAX, f64::MIN); 4];
    let mut orders = std::collections::BTreeMap::new();
    for i in 0..4800 {
        let drawn = augment.draw((32, 32), Size::square(32), &[4, i]).adjustments;
        let numbered: Vec<(usize, f64)> = drawn
            .into_iter()
            .map(|adjustment| match adjustment {
                Adjustment::Brightness(factor) => (0, factor),
                Adjustment::Contrast(factor) => (1, factor),
                Adjustment::Saturation(factor) => (2, factor),
                Adjustment::Hue(factor) => (3, factor),
            })
            .collect();
        for &(kind, factor) in &numbered {
            ranges[kind] = (ranges[kind].0.min(factor), ranges[kind].1.max(factor));
        }
        *orders.entry(numbered.into_iter().map(|(kind, _)| kind).collect::<Vec<_>>()).or_insert(0) += 1;
    }
    for ((low, high), (least, greatest)) in
        ranges.into_iter().zip([(0.6, 1.4), (0.0, 2.5), (0.8, 1.2), (-0.1, 0.1)])
    {
        let slack = (greatest - least) / 100.0;
        assert!((least..least + slack).contains(&low), "{low}");
        assert!((greatest - slack..=greatest).contains(&high), "{high}");
    }
    // The expected count of each of the 24 orders is 200 with a standard deviation of 13.8, and the bound is
    // five of them.
    assert_eq!(orders.len(), 24);
    assert!(orders.values().all(|count| (131..=269).contains(count)), "{orders:?}");
}

#[test]
fn only_enabled_adjustments_are_drawn() {
    let augment = Augment { contrast: 0.3, crop: CropKind::None, ..Augment::none() };
    let drawn = augment.draw((10, 10), Size::square(32), &[0]).adjustments;
    assert!(matches!(drawn[..], [Adjustment::Contrast(_)]), "{drawn:?}");
}
