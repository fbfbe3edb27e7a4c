//! Calibration on images in memory: 8-bit pixels, and normalised floats of several sizes.

use std::ops::ControlFlow;
use std::path::Path;

use crate::common;
use swinq::model::{Ptq, Size};
use swinq::{
    Batch, BatchSource, CalibrateOptions, Error, Images, Model, OpenOptions, ReadOptions, Split, Transform,
    calibrate,
};

const SIZES: [Size; 3] =
    [Size { height: 64, width: 96 }, Size { height: 44, width: 72 }, Size { height: 60, width: 32 }];

fn classifier() -> Model {
    let cfg = Some(common::sample_cfg().to_str().unwrap().to_owned());
    Model::open_with(common::sample_model(), &OpenOptions { cfg, ..OpenOptions::default() }).unwrap()
}

fn backbone(folder: &Path) -> Model {
    let path = folder.join("backbone.safetensors");
    common::write_backbone(&path);
    Model::open_with(&path, &OpenOptions::default()).unwrap()
}

fn calibrated(model: &Model, images: &Images, ptq: Ptq) -> Result<Model, Error> {
    let mut options = CalibrateOptions::default();
    options.recipe = options.recipe.with_ptq(ptq);
    let go = &mut |_| ControlFlow::Continue(());
    Ok(calibrate(model.clone(), &options, images, go)?.model)
}

/// Four images of the sample.
fn pixels(transform: &Transform) -> Batch {
    let images = Images::open(common::sample_data(), Split::Val, Some(4), 0).unwrap();
    let read = ReadOptions { batch_size: 4, ..ReadOptions::default() };
    let batch = images.batches(transform, &read).unwrap().batch(0, 0).unwrap();
    Batch { labels: Vec::new(), ids: (0..4).collect(), ..batch }
}

/// The values that the network reads for the pixels of `batch`, with the channels first.
fn values(batch: &Batch, transform: &Transform) -> Vec<f32> {
    let table = transform.lookup();
    let image = |pixels: &[u8]| -> Vec<f32> {
        let plane = |channel: usize| {
            let bytes = pixels[channel..].iter().step_by(batch.channels);
            bytes.map(|&byte| table[channel][usize::from(byte)]).collect::<Vec<f32>>()
        };
        (0..batch.channels).flat_map(plane).collect()
    };
    (0..batch.len()).flat_map(|index| image(batch.pixels_of(index))).collect()
}

/// Smooth values for image `index`, beyond those of pixels.
fn waves(index: usize, size: Size) -> Vec<f32> {
    let value = |at: usize| ((at as f32) / (3.0 + index as f32)).sin() * (1.0 + index as f32 / 2.0);
    (0..3 * size.area()).map(value).collect()
}

fn assert_same(found: &Model, expected: &Model) {
    let (found, expected) = (found.as_quantized(), expected.as_quantized());
    assert!(found.sites == expected.sites && found.params == expected.params);
}

#[test]
fn floats_of_pixels_give_the_model_of_the_pixels() {
    let model = classifier();
    let (batch, transform) = (pixels(model.transform()), model.transform().clone());
    let floats = values(&batch, &transform);
    let half = floats.len() / 2;
    let floats =
        Images::from_values(3, [(batch.size, &floats[..half]), (batch.size, &floats[half..])]).unwrap();
    let bytes = Images::from_batch(batch).unwrap();
    for ptq in [Ptq::Basic, Ptq::Refined] {
        let expected = calibrated(&model, &bytes, ptq).unwrap();
        assert_same(&calibrated(&model, &floats, ptq).unwrap(), &expected);
    }
}

#[test]
fn images_of_several_sizes_calibrate_in_any_batches() {
    let folder = tempfile::tempdir().unwrap();
    let model = backbone(folder.path());
    let images: Vec<(Size, Vec<f32>)> =
        (0..6).map(|index| (SIZES[index / 2], waves(index, SIZES[index / 2]))).collect();
    let joined = images.chunks(2).map(|images| {
        (images[0].0, images.iter().flat_map(|(_, values)| values.clone()).collect::<Vec<f32>>())
    });
    let (single, joined) =
        (Images::from_values(3, images.clone()).unwrap(), Images::from_values(3, joined).unwrap());
    for ptq in [Ptq::Basic, Ptq::Reconstruct] {
        let [one, three] = [&single, &joined].map(|images| calibrated(&model, images, ptq).unwrap());
        assert_same(&one, &three);
        let record = one.as_quantized().provenance.calibration.clone().unwrap();
        assert_eq!((record.images.len(), &record.images[5][..]), (6, "image 5"));
        assert_eq!(Some(record), three.as_quantized().provenance.calibration);
    }
    // Other images, other ranges.
    let other = calibrated(&model, &single.first(4), Ptq::Basic).unwrap();
    assert!(
        other.as_quantized().sites != calibrated(&model, &single, Ptq::Basic).unwrap().as_quantized().sites
    );
    assert_eq!(single.halves().map(|half| half.len()), [3, 3]);
}

#[test]
fn values_that_cannot_calibrate_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let size = SIZES[0];
    let refused = |result: Result<_, Error>, problem: &str| {
        let text = result.map(|_: ()| ()).unwrap_err().to_string();
        assert!(text.contains(problem), "{text}");
    };
    let made = |batches: Vec<(Size, Vec<f32>)>| Images::from_values(3, batches).map(|_| ());
    refused(made(Vec::new()), "there is no image");
    refused(made(vec![(size, vec![0.0; 7])]), "7 values are not whole images of 3 channels");
    let mut bad = vec![0.0; 2 * 3 * size.area()];
    bad[3 * size.area() + 2 * size.area() + size.width + 5] = f32::NAN;
    refused(made(vec![(size, bad)]), "image 1 holds NaN (channel 2, row 1, column 5)");

    let channels = Images::from_values(4, [(size, vec![0.0; 4 * size.area()])]).unwrap();
    let backbone = backbone(folder.path());
    refused(calibrated(&backbone, &channels, Ptq::Basic).map(|_| ()), "4 channels, and the model takes 3");
    let images = Images::from_values(3, [(size, waves(1, size))]).unwrap();
    refused(
        images.batches(classifier().transform(), &ReadOptions::default()).map(|_| ()),
        "calibration alone",
    );
}
