//! A small model, under any shipped recipe.

use std::collections::BTreeMap;

use swinq_calib::quantize;
use swinq_model::site::all_sites;
use swinq_model::{Ptq, QuantizedModel, Recipe, Site, Size, SwinConfig};
use swinq_testing::model::{random, small};

/// `float` leaves every site off; the others are shipped.
pub const RECIPES: [&str; 4] = ["float", "default", "mode1", "mode2"];

/// Side of an image.
pub const SIZE: usize = 32;
/// Bytes of an image.
pub const IMAGE: usize = SIZE * SIZE * 3;
/// Classes of the model.
pub const CLASSES: usize = 7;

/// 2 stages of 2 blocks with random weights under `recipe`; every site has the same range.
pub fn model(recipe: &str) -> QuantizedModel {
    let config =
        SwinConfig { image_size: Size::square(SIZE), num_classes: CLASSES, embed_dim: 48, ..small() };
    let float = random(config, 5);
    if recipe == "float" {
        return QuantizedModel::from_float(float).unwrap();
    }
    let ranges: BTreeMap<Site, f32> = all_sites(&float.config).into_iter().map(|site| (site, 3.0)).collect();
    quantize(&float, &Recipe::shipped(recipe).unwrap().with_ptq(Ptq::Basic), &ranges).unwrap()
}

/// Pixels of `images` images, no two of which are equal.
pub fn pixels(images: usize) -> Vec<u8> {
    (0..images * IMAGE).map(|i| (i * i / 7 % 251) as u8).collect()
}
