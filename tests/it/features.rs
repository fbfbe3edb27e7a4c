//! `features` and the library's `Features`: feature maps of images of any size.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::common::folder::{Maps, read_maps};
use crate::common::{
    self, Folder, backbone, calibrate, files, float_model, refused, root, sample_cfg, sample_model, stderr,
    stdout, swinq, write_png,
};
use assert_cmd::assert::Assert;
use candle_core::Device;
use swinq::{EngineOptions, Error, FeatureOptions, Features, Model, Sizing};
use swinq_data::{decode_image, preprocess};
use swinq_float::{Float, Swin};
use swinq_model::quantized::FloatModel;
use swinq_model::{Batch, QuantizedModel, Resize, Size, SwinConfig, Transform, WindowPolicy};
use swinq_testing::{XorShift, relative_distance};

/// Height and width of the images: rectangles, some of one size, one below the window, one that is the
/// network's own size.
const SIZES: [(usize, usize); 7] = [(65, 97), (40, 100), (65, 97), (56, 56), (9, 14), (40, 100), (65, 97)];

impl Folder {
    /// All pictures.
    fn images(&self) -> Vec<PathBuf> {
        (0..SIZES.len()).map(|index| self.image(index)).collect()
    }

    /// The file that [`Folder::features`] wrote, which it removes.
    fn written(&self) -> Vec<u8> {
        let bytes = std::fs::read(self.output()).unwrap();
        std::fs::remove_file(self.output()).unwrap();
        bytes
    }
}

/// `swinq features` of `images` by the backbone, with more words.
fn features(folder: &Folder, images: &[PathBuf], more: &[&str]) -> Assert {
    folder.features("backbone.safetensors", images, more)
}

/// The maps of image number `index`, which is at `path`, by the float forward of `model`.
fn expected(model: &FloatModel, path: &Path, index: usize, sizing: Sizing) -> Maps {
    let image = decode_image(&std::fs::read(path).unwrap()).unwrap();
    let size = sizing.apply(Size::new(image.height, image.width), None);
    let transform = Transform { size, resize: Resize::Direct, ..model.transform.clone() };
    let batch = Batch { pixels: preprocess(&image, &transform), ids: vec![0], ..Batch::empty(size, 3) };
    let swin = Swin::new(&model.config, &model.tensors, &Device::Cpu).unwrap();
    let outputs = swin.outputs(&swin.images(&batch, &transform).unwrap(), &mut Float).unwrap();
    let of_output = |(output, tokens): (&swinq_model::StageOutput, candle_core::Tensor)| {
        let grid = size.map(|side| side.div_ceil(4).div_ceil(1 << output.stage));
        let shape = vec![tokens.dims()[1], grid.height, grid.width];
        let values = tokens.t().unwrap().flatten_all().unwrap().to_vec1().unwrap();
        (format!("{index}.stage{}", output.stage + 1), (shape, values))
    };
    model.config.outputs.iter().zip(outputs).map(of_output).collect()
}

/// Asserts that a file has exactly the maps that the float forward of [`backbone`] gives for `images`, each
/// with its number.
#[track_caller]
fn check(bytes: &[u8], images: &[(usize, PathBuf)], sizing: Sizing) {
    check_model(&backbone(), bytes, images, sizing);
}

/// [`check`] for another model.
#[track_caller]
fn check_model(model: &FloatModel, bytes: &[u8], images: &[(usize, PathBuf)], sizing: Sizing) {
    let found = read_maps(bytes);
    let expected: Maps =
        images.iter().flat_map(|(index, path)| expected(model, path, *index, sizing)).collect();
    let names = |maps: &Maps| maps.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&found), names(&expected));
    for (name, (shape, values)) in &expected {
        let (found_shape, found) = &found[name];
        assert_eq!(found_shape, shape, "{name}");
        let distance = relative_distance(found, values);
        assert!(distance <= 1e-5, "{name}: {distance}");
    }
}

fn numbered(images: Vec<PathBuf>) -> Vec<(usize, PathBuf)> {
    images.into_iter().enumerate().collect()
}

#[test]
fn maps_equal_the_float_forward_at_every_size() {
    let folder = Folder::of_noise(&SIZES);
    let run = features(&folder, &folder.images(), &["--backend", "cpu"]).success();
    assert!(stdout(&run).contains("feature maps of 7 images"), "{}", stdout(&run));
    let bytes = folder.written();
    check(&bytes, &numbered(folder.images()), Sizing::Keep);
    let shape = |name: &str| read_maps(&bytes)[name].0.clone();
    assert_eq!((shape("0.stage1"), shape("0.stage2")), (vec![64, 17, 25], vec![128, 9, 13]));

    for (text, sizing) in [
        ("48x100", Sizing::Exact(Size::new(48, 100))),
        ("short:60,long:90", Sizing::Shorter { short: 60, long: 90 }),
    ] {
        features(&folder, &folder.images()[..4], &["--size", text]).success();
        check(&folder.written(), &numbered(folder.images()[..4].to_vec()), sizing);
    }
}

#[test]
fn no_map_depends_on_the_batch_size_or_on_other_images() {
    let folder = Folder::of_noise(&SIZES);
    let of_batch = |size: &str, threads: &str| {
        features(&folder, &folder.images(), &["--batch-size", size, "--threads", threads]).success();
        folder.written()
    };
    let bytes = of_batch("1", "1");
    for (size, threads) in [("2", "1"), ("3", "2"), ("8", "0")] {
        assert!(of_batch(size, threads) == bytes, "batches of {size}");
    }
    let maps = read_maps(&bytes);
    let order = [4, 2, 0, 6, 5, 3, 1];
    features(&folder, &order.map(|index| folder.image(index)), &[]).success();
    let other = read_maps(&folder.written());
    for (number, index) in order.into_iter().enumerate() {
        for stage in ["stage1", "stage2"] {
            assert_eq!(
                other[&format!("{number}.{stage}")],
                maps[&format!("{index}.{stage}")],
                "image {index}"
            );
        }
    }
    // A folder stands for its images in sorted order, and paths come from standard input too.
    let three = folder.path("three");
    std::fs::create_dir(&three).unwrap();
    for index in 0..3 {
        std::fs::copy(folder.image(index), three.join(format!("{index}.png"))).unwrap();
    }
    features(&folder, &[folder.image(3), three], &[]).success();
    let of_folder = read_maps(&folder.written());
    assert_eq!((of_folder.len(), &of_folder["1.stage2"]), (8, &maps["0.stage2"]));
    let mut command = swinq(["features"]);
    command.arg(folder.backbone()).args(["-", "--features"]).arg(folder.output());
    command.write_stdin(format!("{}\n", folder.image(0).display())).assert().success();
    assert_eq!(read_maps(&folder.written())["0.stage1"], maps["0.stage1"]);
}

#[test]
fn an_image_that_cannot_be_read_keeps_its_number_and_stops_no_other() {
    let folder = Folder::of_noise(&SIZES);
    let good = std::fs::read(folder.image(1)).unwrap();
    let [cut, text, absent] = ["cut.png", "notes.md", "absent.png"].map(|name| folder.path(name));
    // The header is whole.
    std::fs::write(&cut, &good[..good.len() / 2]).unwrap();
    std::fs::write(&text, "no image").unwrap();
    let images = [folder.image(0), cut.clone(), absent, folder.image(1), text, folder.image(2)];
    let run = features(&folder, &images, &[]);
    let words =
        ["image 1: ", "cut.png", "image 2: ", "absent.png", "image 4: ", "notes.md", "3 images have no"];
    refused(run, 1, &words);
    check(&folder.written(), &[0, 3, 5].map(|index| (index, images[index].clone())), Sizing::Keep);

    // Images above the limit; one of the network's own size is never.
    let run = features(&folder, &folder.images(), &["--max-pixels", "4000"]);
    refused(run, 1, &["image 0: ", "0.png", "--max-pixels", "image 2: ", "image 6: ", "3 images"]);
    check(&folder.written(), &[1, 3, 4, 5].map(|index| (index, folder.image(index))), Sizing::Keep);

    // They are refused by their headers: what follows is not read.
    let large = folder.path("large.png");
    let bytes = std::fs::read(folder.image(0)).unwrap();
    std::fs::write(&large, &bytes[..40]).unwrap();
    let run = features(&folder, std::slice::from_ref(&large), &["--max-pixels", "4000"]);
    assert!(stderr(&run).contains("65x97 pixels needs"), "{}", stderr(&run));
    refused(run, 1, &["image 0: ", "large.png", "--max-pixels"]);
    refused(
        features(&folder, &[large], &["--size", "5000x10"]),
        1,
        &["large.png: images of 5000x10", "resize the image"],
    );

    // Nothing is written without a map, and an older file stays.
    std::fs::write(folder.output(), "old").unwrap();
    refused(features(&folder, &[cut], &[]), 1, &["cut.png", "1 image has no feature maps"]);
    assert_eq!(std::fs::read(folder.output()).unwrap(), b"old");
    assert!(!files(folder.as_path()).iter().any(|name| name.ends_with(".part")));
}

#[test]
fn an_image_of_a_size_that_the_network_cannot_process_is_named() {
    let folder = Folder::of_noise(&SIZES);
    let mut float = backbone();
    float.config = SwinConfig { window_policy: WindowPolicy::Timm, ..float.config };
    QuantizedModel::from_float(float).unwrap().save(&folder.backbone()).unwrap();
    let run = features(&folder, &[folder.image(0), folder.image(3)], &[]);
    refused(run, 1, &["image 0: ", "0.png", "multiple of PATCH_SIZE"]);
    assert_eq!(read_maps(&folder.written()).len(), 2);
}

/// The sample's own file is a classifier of timm's names: it has no norms of outputs, and the rule is timm's.
#[test]
fn the_checkpoint_of_a_classifier_is_read_as_a_backbone() {
    let folder = Folder::of_noise(&SIZES);
    // No stage has fewer tokens on a side than its window.
    let images = [folder.image(3), folder.path("wide.png")];
    write_png(&images[1], Size::new(64, 100), &XorShift::new(9).bytes(3 * 64 * 100));
    let run = |more: &[&str]| {
        let mut command = swinq(["features"]);
        command.arg(sample_model()).arg("--cfg").arg(sample_cfg()).args(&images);
        command.arg("--features").arg(folder.output()).args(more).assert()
    };
    let mut model = backbone();
    model.config.outputs[0].norm = false;
    model.config.window_policy = WindowPolicy::Timm;
    model.tensors.retain(|name, _| !name.starts_with("norm0."));
    run(&[]).success();
    check_model(&model, &folder.written(), &numbered(images.to_vec()), Sizing::Keep);
    run(&["--task", "features", "--outputs", "stage2"]).success();
    model.config.outputs.remove(0);
    let bytes = folder.written();
    check_model(&model, &bytes, &numbered(images.to_vec()), Sizing::Keep);
    refused(run(&["--outputs", "stage3"]), 1, &["stage3"]);
    refused(run(&["--outputs", "2"]), 2, &["--outputs", "stage1"]);
    refused(run(&["--task", "classification"]), 2, &["--task classification", "`swinq predict`"]);

    // A file in swinq's format with every site off is as good as its checkpoint, and its outputs may be
    // others.
    QuantizedModel::from_float(float_model()).unwrap().save(&folder.path("own")).unwrap();
    for model in ["own", "backbone.safetensors"] {
        let mut command = swinq(["features", "--outputs", "stage2"]);
        command
            .arg(folder.path(model))
            .args(&images)
            .arg("--features")
            .arg(folder.output())
            .assert()
            .success();
        let found = read_maps(&folder.written());
        assert_eq!(found.keys().collect::<Vec<_>>(), ["0.stage2", "1.stage2"], "{model}");
        assert_eq!(found["1.stage2"].0, read_maps(&bytes)["1.stage2"].0);
    }
}

#[test]
fn wrong_command_lines_are_explained() {
    let folder = Folder::of_noise(&SIZES);
    let images = [folder.image(0)];
    for (words, code, expected) in [
        (&["--size", "800"][..], 2, &["short:800,long:1333"][..]),
        (&["--size", "0x4"], 2, &["HEIGHTxWIDTH"]),
        (&["--batch-size", "0"], 2, &["--batch-size"]),
        (&["--max-pixels", "x"], 2, &["--max-pixels"]),
        (&["--cfg", "swin_tiny_patch4_window7_224"], 2, &["--cfg"]),
    ] {
        refused(features(&folder, &images, words), code, expected);
    }
    refused(swinq(["features"]).arg(folder.backbone()).arg(folder.image(0)).assert(), 2, &["--features"]);
    refused(
        swinq(["features"]).arg(folder.backbone()).arg("--features").arg(folder.output()).assert(),
        2,
        &["IMAGE"],
    );
    let to = |path: &Path| {
        let mut command = swinq(["features"]);
        command.arg(folder.backbone()).arg(folder.image(0)).arg("--features").arg(path).assert()
    };
    refused(to(folder.as_path()), 1, &["is a folder"]);
    refused(to(&folder.path("absent/maps")), 1, &["absent", "does not exist"]);
    refused(to(&folder.image(0)), 1, &["replace the input"]);
    refused(to(&folder.backbone()), 1, &["replace the input"]);
    assert!(!folder.output().exists());
    let int8 = folder.path("q.safetensors");
    calibrate(&int8, &["--batches", "1", "--ptq", "basic"]).success();
    let mut command = swinq(["features"]);
    let run = command.arg(&int8).arg(folder.image(0)).arg("--features").arg(folder.output()).assert();
    refused(run, 1, &["q.safetensors", "is a quantized classifier", "--task features"]);
    let mut command = swinq(["inspect", "--outputs", "stage1"]);
    refused(command.arg(&int8).assert(), 1, &["q.safetensors", "is a quantized classifier"]);
}

#[test]
fn other_commands_refuse_backbones() {
    let folder = Folder::of_noise(&SIZES);
    let image = folder.image(3);
    let run = swinq(["predict"]).arg(folder.backbone()).arg(&image).assert();
    refused(run, 1, &["backbone.safetensors: ", "is a backbone", "`swinq features`"]);
    let mut command = swinq(["predict", "--task", "features"]);
    let run = command.arg(sample_model()).arg("--cfg").arg(sample_cfg()).arg(&image).assert();
    refused(run, 1, &["model.safetensors: ", "is a backbone", "`swinq features`"]);
    let job = format!(
        "float: {}\noutput: {}\nquant: false\ndata: {{path: {}}}\n",
        folder.backbone().display(),
        folder.path("run").display(),
        common::sample_data().display()
    );
    let path = folder.path("job.yaml");
    std::fs::write(&path, job).unwrap();
    refused(swinq(["qat"]).arg(path).assert(), 1, &["loss.labels: is 1", "is a backbone", "`backbone`"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_run_that_is_stopped_leaves_nothing() {
    let folder = Folder::of_noise(&SIZES);
    let maps = folder.path("maps");
    std::fs::create_dir(&maps).unwrap();
    let output = maps.join("f.safetensors");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_swinq"));
    command
        .arg("features")
        .arg(folder.backbone())
        .args(vec![folder.image(0); 300])
        .arg("--features")
        .arg(&output);
    common::terminated_before_it_writes(&mut command, &output);
    assert!(files(&maps).is_empty(), "{:?}", files(&maps));
}

#[test]
fn the_library_gives_maps_batch_by_batch() {
    let folder = Folder::of_noise(&SIZES);
    let engine = Model::open(folder.backbone()).unwrap().engine(&EngineOptions::cpu(2)).unwrap();
    let options = FeatureOptions { batch_size: 2, threads: 1, ..FeatureOptions::default() };
    let paths = [folder.image(0), folder.path("absent.png"), folder.image(1), folder.image(2)];
    let mut features = Features::new(&engine, &paths, options).unwrap();
    assert_eq!((features.images(), features.left_out().len()), (4, 1));
    let mut found = Maps::new();
    let mut sizes = Vec::new();
    while let Some(batch) = features.next_batch().unwrap() {
        sizes.push((batch.size().height, batch.len(), batch.is_empty()));
        for map in batch.maps() {
            let name = format!("{}.{}", map.image, map.name);
            assert!(found.insert(name, (map.shape.to_vec(), map.values.to_vec())).is_none());
        }
    }
    assert_eq!(sizes, [(65, 2, false), (40, 1, false)]);
    let left_out = features.left_out();
    assert!(left_out.len() == 1 && left_out[0].image == 1 && left_out[0].problem.contains("absent.png"));
    let write = |progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>| {
        Features::new(&engine, &paths, options).unwrap().write(&folder.output(), progress)
    };
    let mut steps = Vec::new();
    let left_out = write(&mut |done, all| {
        steps.push((done, all));
        ControlFlow::Continue(())
    });
    assert_eq!(left_out.unwrap().len(), 1);
    assert_eq!(steps, [(1, 4), (3, 4), (4, 4)]);
    assert_eq!(read_maps(&folder.written()), found);
    assert!(matches!(write(&mut |_, _| ControlFlow::Break(())), Err(Error::Interrupted)));
    assert!(!folder.output().exists());

    let refuse = |options: FeatureOptions| Features::new(&engine, &paths, options).err().unwrap().to_string();
    assert!(refuse(FeatureOptions { batch_size: 0, ..options }).contains("batch_size"));
    assert!(refuse(FeatureOptions { threads: 1 << 20, ..options }).contains("threads"));
    let classifier = Model::from_float(float_model()).unwrap();
    let engine = classifier.engine(&EngineOptions::cpu(1)).unwrap();
    let error = Features::new(&engine, &paths, options).err().unwrap().to_string();
    assert!(error.contains("is a classifier"), "{error}");
    let image = root().join("tests/data/airplane.png");
    let nothing: [&Path; 0] = [];
    classifier.check_classifier().unwrap();
    let backbone = Model::open(folder.backbone()).unwrap();
    assert!(matches!(backbone.check_classifier(), Err(Error::Backbone { .. })));
    let engine = backbone.engine(&EngineOptions::cpu(1)).unwrap();
    let images = swinq::Images::from_files(&[image]).unwrap();
    assert!(matches!(swinq::predict(&engine, &images, 1), Err(Error::Backbone { .. })));
    let mut features = Features::new(&engine, &nothing, options).unwrap();
    assert!(features.next_batch().unwrap().is_none() && features.images() == 0);
}

/// An image is named by the program's warning, not by the results.
#[test]
fn a_quiet_run_prints_warnings_only() {
    let folder = Folder::of_noise(&SIZES);
    let run = features(&folder, &[folder.image(0), folder.path("absent.png")], &["-q"]).code(1);
    assert_eq!(stdout(&run), "");
    let said = stderr(&run);
    assert!(said.starts_with("warning: image 1: ") && said.lines().count() == 2, "{said}");
}

#[test]
fn bench_times_backbones_at_several_sizes() {
    let folder = Folder::of_noise(&SIZES);
    let results = folder.path("bench.json");
    let words =
        ["--backend", "cpu", "--size", "65x97,40x100", "--batch-size", "1,2", "--seconds", "0.05", "--json"];
    swinq(["bench"]).arg(folder.backbone()).args(words).arg(&results).assert().success();
    let results: serde_json::Value = serde_json::from_slice(&std::fs::read(results).unwrap()).unwrap();
    let models = results["models"].as_array().unwrap();
    assert_eq!(models.len(), 2, "{results}");
    for (model, size) in models.iter().zip([[65, 97], [40, 100]]) {
        assert_eq!(model["input_size"], serde_json::json!(size));
        for batch in ["1", "2"] {
            assert!(model["latency_ms"][batch]["median"].as_f64().unwrap() > 0.0, "{model}");
            assert!(model["stream_ips"][batch].as_f64().unwrap() > 0.0, "{model}");
        }
    }
}
