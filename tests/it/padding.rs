//! Padding of images before a backbone: `--pad-to`, `--pad-batch`, and the divisor of a processor.

use std::path::Path;

use crate::common::folder::Maps;
use crate::common::{
    Folder, backbone, refused, sample_cfg, sample_data, sample_model, stdout, swinq, write_png,
};
use assert_cmd::assert::Assert;
use candle_core::{Device, Tensor};
use safetensors::SafeTensors;
use swinq::{
    CalibrateOptions, EngineOptions, FeatureOptions, Features, Images, Model, Padding, Sizing, Split,
    calibrate, pad,
};
use swinq_data::decode_image;
use swinq_float::{Float, Swin};
use swinq_model::site::all_sites;
use swinq_model::{Ptq, QuantizedModel, Recipe, Site, Size};
use swinq_testing::{XorShift, relative_distance};

/// Height and width of the pictures: some of one size, one whose sides are multiples of 16.
const SIZES: [(usize, usize); 5] = [(65, 97), (40, 100), (64, 48), (40, 100), (9, 14)];

/// `swinq features` of all pictures on the CPU.
fn features(folder: &Folder, model: &str, more: &[&str]) -> Assert {
    folder.features(model, &[folder.path("photos")], &[&["--backend", "cpu"], more].concat())
}

/// The maps that [`features`] writes.
fn maps_of(folder: &Folder, model: &str, more: &[&str]) -> Maps {
    folder.maps(model, &[&["--backend", "cpu"], more].concat())
}

/// `swinq calibrate` on all pictures.
fn calibrated(folder: &Folder, output: &str, more: &[&str]) -> Assert {
    folder.calibrate(output, &[&["--ptq", "basic"], more].concat())
}

/// The picture at `path`, normalised and padded to `size`: f32 `[3, height, width]`.
fn padded(path: &Path, size: Size) -> Vec<f32> {
    let image = decode_image(&std::fs::read(path).unwrap()).unwrap();
    let own = Size::new(image.height, image.width);
    let values = backbone().transform.normalised(&image.pixels);
    let value = |channel: usize, y: usize, x: usize| match y < own.height && x < own.width {
        true => values[channel * own.area() + y * own.width + x],
        false => 0.0,
    };
    let places =
        (0..3).flat_map(|c| (0..size.height).flat_map(move |y| (0..size.width).map(move |x| (c, y, x))));
    places.map(|(channel, y, x)| value(channel, y, x)).collect()
}

/// Asserts that `maps` are those of the float forward for the pictures, each padded to the size that `size`
/// gives.
#[track_caller]
fn check(folder: &Folder, maps: &Maps, size: impl Fn(usize) -> Size) {
    let model = backbone();
    let swin = Swin::new(&model.config, &model.tensors, &Device::Cpu).unwrap();
    assert_eq!(maps.len(), 2 * SIZES.len());
    for index in 0..SIZES.len() {
        let size = size(index);
        let values = padded(&folder.image(index), size);
        let images = Tensor::from_vec(values, (1, 3, size.height, size.width), &Device::Cpu).unwrap();
        for (stage, tokens) in swin.outputs(&images, &mut Float).unwrap().into_iter().enumerate() {
            let (shape, values) = &maps[&format!("{index}.stage{}", stage + 1)];
            let grid = size.map(|side| side.div_ceil(4).div_ceil(1 << stage));
            assert_eq!(shape[1..], [grid.height, grid.width], "image {index}");
            let expected: Vec<f32> = tokens.t().unwrap().flatten_all().unwrap().to_vec1().unwrap();
            let distance = relative_distance(values, &expected);
            assert!(distance <= 1e-5, "image {index}, stage {}: {distance}", stage + 1);
        }
    }
}

fn multiples(side: usize, index: usize) -> Size {
    Size::new(SIZES[index].0, SIZES[index].1).map(|own| own.div_ceil(side) * side)
}

#[test]
fn images_are_padded_to_multiples_with_zeros_after_normalisation() {
    let folder = Folder::of_noise(&SIZES);
    let maps = maps_of(&folder, "backbone.safetensors", &["--pad-to", "16"]);
    check(&folder, &maps, |index| multiples(16, index));
    for words in [["--pad-to", "16", "--batch-size", "1"], ["--pad-to", "16", "--batch-size", "2"]] {
        assert!(maps_of(&folder, "backbone.safetensors", &words) == maps, "{words:?}");
    }
    // An image whose sides are multiples is not padded.
    let keep = maps_of(&folder, "backbone.safetensors", &[]);
    assert!(keep["2.stage1"] == maps["2.stage1"] && keep["0.stage1"] != maps["0.stage1"]);
    assert!(maps_of(&folder, "backbone.safetensors", &["--pad-to", "1"]) == keep);
    // Sizes come first.
    let resized = maps_of(&folder, "backbone.safetensors", &["--size", "30x50", "--pad-to", "32"]);
    assert_eq!(resized["4.stage2"].0[1..], [4, 8]);
}

#[test]
fn images_of_a_batch_are_padded_to_a_common_size() {
    let folder = Folder::of_noise(&SIZES);
    let common =
        [Size::new(65, 100), Size::new(65, 100), Size::new(64, 100), Size::new(64, 100), Size::new(9, 14)];
    let maps = maps_of(&folder, "backbone.safetensors", &["--pad-batch", "--batch-size", "2"]);
    check(&folder, &maps, |index| common[index]);
    let maps =
        maps_of(&folder, "backbone.safetensors", &["--pad-batch", "--batch-size", "2", "--pad-to", "32"]);
    check(&folder, &maps, |index| common[index].map(|side| side.div_ceil(32) * 32));
    // A file that cannot be read has no place in a batch.
    std::fs::write(folder.path("photos/00.png"), "no image").unwrap();
    refused(features(&folder, "backbone.safetensors", &["--pad-batch", "--batch-size", "2"]), 1, &["00.png"]);
    let bytes = std::fs::read(folder.output()).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let shapes =
        [0, 2, 4, 5].map(|image| file.tensor(&format!("{image}.stage1")).unwrap().shape()[1..].to_vec());
    assert_eq!(shapes, [[17, 25], [17, 25], [16, 25], [3, 4]]);
}

#[test]
fn the_library_tells_which_part_of_a_map_is_the_image() {
    let folder = Folder::of_noise(&SIZES);
    let engine = Model::open(folder.backbone()).unwrap().engine(&EngineOptions::cpu(1)).unwrap();
    let padding = Padding { multiple: 32, to_common: true };
    let options = FeatureOptions { padding, batch_size: 2, ..FeatureOptions::default() };
    let mut features = Features::new(&engine, &[folder.path("photos")], options).unwrap();
    let batch = features.next_batch().unwrap().unwrap();
    assert_eq!((batch.size(), batch.len()), (Size::new(96, 128), 2));
    assert_eq!(batch.valid().collect::<Vec<_>>(), [Size::new(65, 97), Size::new(40, 100)]);
    let found: Vec<_> = batch.maps().map(|map| (map.image, map.shape, map.valid)).collect();
    let expected = [
        (0, [64, 24, 32], Size::new(17, 25)),
        (0, [128, 12, 16], Size::new(9, 13)),
        (1, [64, 24, 32], Size::new(10, 25)),
        (1, [128, 12, 16], Size::new(5, 13)),
    ];
    assert_eq!(found, expected);
    for multiple in [0, 5000] {
        let padding = Padding { multiple, to_common: false };
        let error =
            Features::new(&engine, &[folder.path("photos")], FeatureOptions { padding, ..options }).err();
        assert!(error.unwrap().to_string().contains("padding"), "{multiple}");
    }
}

/// The range of each site that is quantized.
fn ranges(model: &QuantizedModel) -> Vec<(Site, Option<f32>)> {
    all_sites(&model.config).into_iter().map(|site| (site, model.site(site).amax)).collect()
}

#[test]
fn a_calibration_on_padded_images_is_that_on_their_values() {
    let folder = Folder::of_noise(&SIZES);
    let words = ["--pad-to", "16", "--batches", "5", "--batch-size", "1"];
    let run = calibrated(&folder, "one", &words).success();
    assert!(stdout(&run).contains("sizes      keep, padded to multiples of 16"), "{}", stdout(&run));
    calibrated(&folder, "two", &["--pad-to", "16", "--batches", "2", "--batch-size", "3"]).success();
    let file = |name: &str| std::fs::read(folder.path(name)).unwrap();
    assert!(file("one") == file("two"));
    let load = |name: &str| QuantizedModel::load(&folder.path(name)).unwrap();
    let record = load("one").provenance.calibration.unwrap();
    assert_eq!((record.batch_size, record.sizing.as_deref()), (1, Some("keep, padded to multiples of 16")));
    let shown = stdout(&swinq(["inspect"]).arg(folder.path("one")).assert().success());
    assert!(shown.contains("sizes keep, padded to multiples of 16"), "{shown}");

    let values = |size: &dyn Fn(usize) -> Size| {
        let images =
            record.images.iter().map(|name| name.strip_suffix(".png").unwrap().rsplit('/').next().unwrap());
        let images: Vec<usize> = images.map(|name| name.parse().unwrap()).collect();
        let batches =
            images.into_iter().map(|index| (size(index), padded(&folder.image(index), size(index))));
        let images = Images::from_values(3, batches).unwrap();
        let model = Model::open(folder.backbone()).unwrap();
        let recipe = Recipe::shipped("default").unwrap().with_ptq(Ptq::Basic);
        let options = CalibrateOptions { recipe, ..CalibrateOptions::default() };
        let found = calibrate(model, &options, &images, &mut |_| std::ops::ControlFlow::Continue(()));
        ranges(found.unwrap().model.as_quantized())
    };
    assert!(ranges(&load("one")) == values(&|index| multiples(16, index)));
    assert!(ranges(&load("one")) != values(&|index| multiples(32, index)));

    let words = ["--pad-batch", "--batches", "1", "--batch-size", "5"];
    calibrated(&folder, "common", &words).success();
    let record = load("common").provenance.calibration.unwrap();
    let sizing = "keep, padded to the size of the batch";
    assert_eq!((record.batch_size, record.sizing.as_deref()), (5, Some(sizing)));
    assert!(ranges(&load("common")) == values(&|_| Size::new(65, 100)));
}

#[test]
fn a_divisor_of_the_preprocessing_rounds_resized_sides_up() {
    let folder = Folder::of_noise(&SIZES);
    let mut model = backbone();
    model.transform.size_divisor = Some(32);
    QuantizedModel::from_float(model).unwrap().save(&folder.path("divided")).unwrap();
    let maps = maps_of(&folder, "divided", &["--size", "48x100"]);
    assert!(maps == maps_of(&folder, "backbone.safetensors", &["--size", "64x128"]));
    assert!(maps_of(&folder, "divided", &[]) == maps_of(&folder, "backbone.safetensors", &[]));
    let shown = stdout(&swinq(["inspect"]).arg(folder.path("divided")).assert().success());
    assert!(shown.contains("resized sides multiples of 32"), "{shown}");
}

#[test]
fn wrong_paddings_are_explained() {
    let folder = Folder::of_noise(&SIZES);
    for value in ["0", "4097", "-1", "x"] {
        refused(
            features(&folder, "backbone.safetensors", &[&format!("--pad-to={value}")]),
            2,
            &["--pad-to", "1 to 4096"],
        );
    }
    for words in [&["--pad-to", "32"][..], &["--pad-batch"]] {
        let mut command = swinq(["calibrate", "--output"]);
        command.arg(folder.path("c")).arg(sample_model()).arg("--cfg").arg(sample_cfg()).args(words);
        let run = command.arg("--data-path").arg(sample_data()).assert();
        refused(run, 2, &["--pad-to", "--pad-batch", "for backbones"]);
    }
    // The padded image is what must fit.
    let words = ["--pad-to", "128", "--max-pixels", "10000"];
    refused(
        features(&folder, "backbone.safetensors", &words),
        1,
        &["0.png", "128x128", "--max-pixels", "5 images"],
    );
    // A common size may be too large although no image is.
    let tall = folder.image(0);
    write_png(&tall, Size::new(300, 10), &XorShift::new(9).bytes(9000));
    let words = ["--pad-batch", "--batch-size", "2", "--max-pixels", "7000"];
    let run = features(&folder, "backbone.safetensors", &words);
    refused(run, 1, &["image 0: ", "0.png", "image 1: ", "1.png", "300x100", "smaller batches", "2 images"]);
    let padding = Padding { multiple: 32, to_common: false };
    let model = Model::open(folder.backbone()).unwrap();
    let image = pad(&[0.0; 12], Size::square(2), Size::square(64));
    let images = Images::from_values(3, [(Size::square(64), image)]).unwrap();
    let options = CalibrateOptions { padding, ..CalibrateOptions::default() };
    let refusal = |images: &Images| {
        let model = model.clone();
        calibrate(model, &options, images, &mut |_| std::ops::ControlFlow::Continue(()))
            .unwrap_err()
            .to_string()
    };
    assert!(refusal(&images).contains("padding: images in memory are not padded"), "{}", refusal(&images));
    let options = CalibrateOptions {
        padding: Padding { multiple: 0, ..padding },
        sizing: Sizing::Keep,
        ..options.clone()
    };
    let images = Images::open(folder.path("photos"), Split::Train, None, 0).unwrap();
    let error = calibrate(model.clone(), &options, &images, &mut |_| std::ops::ControlFlow::Continue(()));
    assert!(error.unwrap_err().to_string().contains("padding"));
}
