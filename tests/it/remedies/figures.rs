//! Messages about images, calibrations, evaluations and their parts.

use std::ops::ControlFlow;

use swinq::model::{Ptq, QuantizedModel, Size};
use swinq::{
    CalibrateOptions, Candidate, EngineOptions, Error, EvaluateOptions, Images, Model, PartKinds, PartSet,
    PartsOf, ReadOptions, Recipe, SensitivityOptions, Shard, Sizing, Split,
};

use super::{Book, opening, says};
use crate::common::{go_on, root, write_png};

const FLOAT: &str = "eval ms.pth --cfg small.yaml";

/// Every message of this kind.
pub fn cases(book: &Book) {
    images(book);
    patches(book);
    quantized(book);
    ranges(book);
    numbers_of_classes(book);
    comparisons(book);
    parts(book);
    search(book);
}

/// Writes `pictures`, six images, and `broken`, with three damaged ones.
fn images(book: &Book) {
    for (folder, damaged) in [("pictures", 0), ("broken", 3)] {
        std::fs::create_dir_all(book.path(folder)).unwrap();
        for index in 0..6usize {
            let path = book.path(&format!("{folder}/{index}.png"));
            let pixels: Vec<u8> = (0..24 * 24 * 3).map(|i| (i * (index + 3) % 251) as u8).collect();
            write_png(&path, Size::square(24), &pixels);
            if index < damaged {
                let bytes = std::fs::read(&path).unwrap();
                std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
            }
        }
    }
}

/// A picture whose sides are no multiples of the patch, before a backbone that takes none.
fn patches(book: &Book) {
    let line = "features timm/model.safetensors --cfg small.yaml";
    for (name, size, multiple) in [("odd.png", Size::new(26, 25), 4), ("thin.png", Size::new(3, 25), 24)] {
        write_png(&book.path(name), size, &vec![9; size.area() * 3]);
        let error = book.open(line).unwrap().config().grids(size).unwrap_err();
        // `program` carries them out.
        let lines = format!("{line} {name} --pad-to {multiple}\n{line} {name} --size 24x24");
        book.advised(says(error, "multiple of PATCH_SIZE"), &lines);
    }
}

fn pictures(book: &Book, folder: &str) -> Images {
    Images::open(book.path(folder), Split::Train, None, 0).unwrap()
}

fn basic(ptq: Ptq) -> CalibrateOptions {
    let read = ReadOptions { batch_size: 2, ..ReadOptions::default() };
    let recipe = Recipe::shipped("default").unwrap().with_ptq(ptq);
    CalibrateOptions { recipe, read, ..CalibrateOptions::default() }
}

/// The model of `line`, calibrated on the pictures.
pub fn calibrated(book: &Book, line: &str, ptq: Ptq) -> Result<Model, Error> {
    let images = pictures(book, "pictures");
    Ok(swinq::calibrate(book.open(line)?, &basic(ptq), &images, &mut go_on)?.model)
}

/// Quantized checkpoints, and what they are not.
fn quantized(book: &Book) {
    calibrated(book, FLOAT, Ptq::Basic).unwrap().save(book.path("q.safetensors")).unwrap();
    let backbone = "calibrate ms.pth --cfg small.yaml --task features";
    calibrated(book, backbone, Ptq::Basic).unwrap().save(book.path("q_backbone.safetensors")).unwrap();
    book.opening(
        "eval q.safetensors --task features",
        "with `swinq calibrate MODEL --task features`, or give the float checkpoint itself",
        &["eval q_backbone.safetensors --task features", "features ms.pth --cfg small.yaml"],
    );
    book.opening(
        "features q_backbone.safetensors --outputs stage1",
        "leave --outputs out, or give the float checkpoint",
        &["features q_backbone.safetensors", "features ms.pth --cfg small.yaml --outputs stage1"],
    );
    let timm = QuantizedModel::load(&book.path("timm/model.safetensors")).unwrap_err();
    let message =
        says(timm, "this is a float checkpoint; run `swinq calibrate` first, or pass --cfg to a command");
    let remedy = "eval timm/model.safetensors --cfg small.yaml";
    book.open(remedy).unwrap();
    calibrated(book, "calibrate timm/model.safetensors --cfg small.yaml", Ptq::Basic).unwrap();
    book.advised(message, remedy);
}

/// FasterTransformer's ranges.
fn ranges(book: &Book) {
    let import = |line: &str| swinq::load_ft_ranges(&book.path("ft_calib.pth"), &book.open(line).unwrap());
    let mut config = opening::small(book).config;
    config.depths = vec![1, 1];
    let shallow = Model::from_float(swinq_testing::model::random(config, 1)).unwrap();
    let error = swinq::load_ft_ranges(&book.path("ft_calib.pth"), &shallow).unwrap_err();
    let message = says(error, "check --cfg");
    import(FLOAT).unwrap();
    book.advised(message, FLOAT);
}

/// Numbers of classes in data that are not the model's.
fn numbers_of_classes(book: &Book) {
    let picture = std::fs::read(book.path("pictures/0.png")).unwrap();
    let list = |name: &str, text: &str, classes: &str| {
        book.write(&format!("{name}/a.png"), &picture);
        book.write(&format!("{name}/list.txt"), text);
        if !classes.is_empty() {
            book.write(&format!("{name}/classes.txt"), classes);
        }
    };
    list("part", "a.png\tbee\n", "");
    list("other", "a.png\t1\n", "bee\nant\ncat\ndog\neel\n");
    book.write("five.txt", "ant\nbee\ncat\ndog\neel\n");
    book.write("other.txt", "bee\nant\ncat\ndog\neel\n");
    for class in ["ant", "bee", "cat", "dog", "eel"] {
        book.write(&format!("folders/val/{class}/a.png"), &picture);
    }
    let numbered = |data: &str, model: &Model| {
        let images = Images::open(book.path(data), Split::Val, None, 0).unwrap();
        images.numbered_for(model.config(), model.labels(), model.dialect()).map(|(_, remark)| remark)
    };
    let float = |more: &str| book.open(&format!("{FLOAT} {more}")).unwrap();
    let message = says(
        numbered("part/list.txt", &float("")).unwrap_err(),
        "give the names of all the model's classes with --labels",
    );
    numbered("part/list.txt", &float("--labels five.txt")).unwrap();
    book.advised(message, "--labels five.txt");
    let message = says(
        numbered("other/list.txt", &float("--labels five.txt")).unwrap_err(),
        "give the model's right names with --labels",
    );
    numbered("other/list.txt", &float("--labels other.txt")).unwrap();
    book.advised(message, "--labels other.txt");
    let message = says(numbered("folders", &float("")).unwrap().unwrap(), "give their names with --labels");
    assert_eq!(numbered("folders", &float("--labels five.txt")).unwrap(), None);
    book.advised(message, "--labels five.txt");
}

/// Models that are not compared.
fn comparisons(book: &Book) {
    let images = pictures(book, "pictures");
    let compare_on = |images: &Images, lines: [&str; 2]| {
        let candidate =
            |line: &str| Candidate::engine(line, &book.open(line).unwrap(), &EngineOptions::cpu(1)).unwrap();
        let observer = &mut |_: usize, _: usize| ControlFlow::Continue(());
        swinq::evaluate(&mut lines.map(candidate), images, &EvaluateOptions::default(), observer)
    };
    let compare = |lines| compare_on(&images, lines);
    let quantized = "features q_backbone.safetensors";
    let (one, both) = (
        "features ms.pth --cfg small.yaml --outputs stage1",
        "features ms.pth --cfg small.yaml --outputs stage1,stage2",
    );
    let message =
        says(compare([quantized, one]).unwrap_err(), "choose those of a float checkpoint with --outputs");
    compare([quantized, both]).unwrap();
    book.advised(message, both);
    let message =
        says(compare([FLOAT, quantized]).unwrap_err(), "add --task features to read a float checkpoint");
    let remedy = "eval ms.pth --cfg small.yaml --task features";
    compare([remedy, quantized]).unwrap();
    book.advised(message, remedy);
    // One turns an image and the other does not; images that no file turns are compared.
    let photograph = root().join("data/tests/fixtures/kind_turned.jpg");
    book.write("turned/photograph.jpg", std::fs::read(photograph).unwrap());
    let (turned, other) = (pictures(book, "turned"), format!("{both} --orientation stored"));
    compare([quantized, &other]).unwrap();
    let message = says(compare_on(&turned, [quantized, &other]).unwrap_err(), "with --orientation");
    let remedy = format!("{both} --orientation exif");
    compare_on(&turned, [quantized, &remedy]).unwrap();
    book.advised(message, &remedy);
}

/// Shards and their parts.
fn parts(book: &Book) {
    let float = || book.open(FLOAT).unwrap();
    let part = |folder: &str, skip_corrupt: usize, index: usize| {
        let mut options = basic(Ptq::Basic);
        options.read.skip_corrupt = skip_corrupt;
        let images = pictures(book, folder);
        let shard = Shard { index, count: 2 };
        let part = swinq::calibrate_shard(float(), &options, &images, shard, None, &mut go_on).unwrap();
        let path = book.path(&format!("{folder}.{skip_corrupt}.{index}.part"));
        part.save(&path).unwrap();
        path
    };
    let merge = |paths: &[_]| swinq::merge_calibration(&PartSet::open(paths).unwrap(), &mut go_on);
    let [first, second] = [1, 2].map(|index| part("pictures", 0, index));
    let lines = "calibrate --shard 1/2\ncalibrate --shard 2/2\neval --shard 1/1";
    let message = says(PartSet::open(&[book.path("q.safetensors")]).unwrap_err(), "give the files that");
    book.advised(message, lines);
    let message = says(
        PartSet::open(std::slice::from_ref(&first)).unwrap_err(),
        "shard 2/2 is missing; run it with --shard",
    );
    book.advised(message, lines);
    merge(&[first, second]).unwrap();
    evaluated_part(book);
    let damaged = [2, 3].map(|skip| [1, 2].map(|index| part("broken", skip, index)));
    let message = says(merge(&damaged[0]).unwrap_err(), "but --skip-corrupt allows 2 in all");
    merge(&damaged[1]).unwrap();
    book.advised(message, "calibrate --shard 1/2 --skip-corrupt 3\ncalibrate --shard 2/2 --skip-corrupt 3");
    let backbone = "calibrate ms.pth --cfg small.yaml --task features";
    let images = pictures(book, "pictures");
    let shard = Shard { index: 1, count: 2 };
    let model = book.open(backbone).unwrap();
    let error =
        swinq::calibrate_shard(model, &basic(Ptq::Basic), &images, shard, None, &mut go_on).unwrap_err();
    let message = says(error, "leave --shard out");
    calibrated(book, backbone, Ptq::Basic).unwrap();
    book.advised(message, &format!("{backbone} --shard 1/2\n{backbone}"));
}

/// The part of an evaluation of two models is merged too.
fn evaluated_part(book: &Book) {
    let images = pictures(book, "pictures");
    let candidate = |line: &str| {
        let model = book.open(line).unwrap();
        Candidate::engine(line, &model, &EngineOptions::cpu(1)).unwrap().with_hash_of(&model).unwrap()
    };
    let mut candidates = [FLOAT, "eval q.safetensors"].map(candidate);
    let (options, shard) = (EvaluateOptions::default(), Shard { index: 1, count: 1 });
    let observer = &mut |_: usize, _: usize| ControlFlow::Continue(());
    let part = swinq::evaluate_shard(&mut candidates, &images, shard, &options, &[], None, observer).unwrap();
    part.save(book.path("eval.part")).unwrap();
    swinq::merge_evaluation(&PartSet::open(&[book.path("eval.part")]).unwrap()).unwrap();
}

/// Recipes that searches do not take.
fn search(book: &Book) {
    let images = pictures(book, "pictures");
    let measure = |ptq: Ptq| {
        let CalibrateOptions { recipe, read, .. } = basic(ptq);
        let (sizing, sqnr_of) = (Sizing::Keep, Vec::new());
        let options = SensitivityOptions { recipe, read, sizing, sqnr_of, threads: 1, cache: None };
        let (model, parts) = (book.open(FLOAT).unwrap(), PartsOf::all(PartKinds::Blocks));
        swinq::sensitivity(model, &options, &parts, &images, &images, &mut |_| ControlFlow::Continue(()))
    };
    let message = says(measure(Ptq::Reconstruct).unwrap_err(), "that `tune` writes with `--ptq reconstruct`");
    measure(Ptq::Refined).unwrap();
    calibrated(book, FLOAT, Ptq::Reconstruct).unwrap();
    book.advised(message, "sensitivity --ptq refined\ncalibrate --ptq reconstruct");
}
