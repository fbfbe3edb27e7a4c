//! The library's public functions, used as a program would use them, on the bundled sample.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use swinq_model::Size;

use crate::common;
use swinq::eval::LatencyOptions;
use swinq::model::Resize;
use swinq::{
    BackendChoice, Batch, CalibrateOptions, Candidate, Engine, EngineOptions, Error, EvaluateOptions, Images,
    LoadOptions, Logits, Model, OpenOptions, ReadOptions, RgbImage, Rule, Split, Transform, calibrate,
    evaluate, infer_images, predict, top_k,
};

fn options() -> OpenOptions {
    let cfg = common::sample_cfg().to_str().unwrap().to_owned();
    OpenOptions { cfg: Some(cfg), ..OpenOptions::default() }
}

fn float() -> Model {
    Model::open_with(common::sample_model(), &options()).unwrap()
}

fn images(limit: usize) -> Images {
    Images::open(common::sample_data(), Split::Val, Some(limit), 0).unwrap()
}

/// The sample, quantized.
fn model() -> Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    let calibrated =
        || calibrate(float(), &CalibrateOptions::default(), &images(16), &mut |_| go()).unwrap().model;
    MODEL.get_or_init(calibrated).clone()
}

fn go() -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn engine(threads: usize) -> Engine {
    model().engine(&EngineOptions::cpu(threads)).unwrap()
}

/// Preprocessed images of the sample.
fn batch() -> Batch {
    let mut batches =
        images(12).batches(model().transform(), &ReadOptions { batch_size: 12, ..ReadOptions::default() });
    swinq::BatchSource::batch(batches.as_mut().unwrap(), 0, 0).unwrap()
}

fn bits(logits: &Logits) -> Vec<u32> {
    logits.values.iter().map(|value| value.to_bits()).collect()
}

fn airplane() -> PathBuf {
    common::root().join("tests/data/airplane.jpg")
}

fn files() -> Images {
    Images::from_files(&[airplane()]).unwrap()
}

#[track_caller]
fn refused<T, E: std::fmt::Display>(result: Result<T, E>, word: &str) {
    let message = result.err().expect("an error").to_string();
    assert!(message.contains(word), "`{word}` is not in: {message}");
}

#[test]
fn everything_is_send_and_sync() {
    fn check<T: Send + Sync>() {}
    check::<Model>();
    check::<Engine>();
    check::<Images>();
    check::<EngineOptions>();
    check::<CalibrateOptions>();
    check::<EvaluateOptions>();
    check::<Error>();
}

#[test]
fn eight_engines_of_one_model_give_the_bits_of_one_and_share_its_weights() {
    let (model, batch) = (model(), batch());
    let expected = bits(&engine(2).infer(&batch).unwrap());
    let engines: Vec<Engine> = (0..8).map(|_| model.engine(&EngineOptions::cpu(1)).unwrap()).collect();
    for engine in &engines {
        assert!(Arc::ptr_eq(engine.packed(), engines[0].packed()));
    }
    std::thread::scope(|scope| {
        for engine in &engines {
            scope.spawn(|| assert!(bits(&engine.infer(&batch).unwrap()) == expected));
        }
    });
}

#[test]
fn one_engine_is_called_from_eight_threads() {
    let (engine, batch) = (engine(2), batch());
    let expected = bits(&engine.infer(&batch).unwrap());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert!(bits(&engine.infer(&batch).unwrap()) == expected));
        }
    });
}

#[test]
fn weights_go_with_the_last_engine_of_a_model() {
    let model = Model::from_quantized(model().as_quantized().clone()).unwrap();
    let first = model.engine(&EngineOptions::cpu(1)).unwrap();
    let weak = Arc::downgrade(first.packed());
    let second = model.clone().engine(&EngineOptions::cpu(2)).unwrap();
    drop(first);
    assert!(weak.upgrade().is_some());
    drop(second);
    assert!(weak.upgrade().is_none());
}

#[test]
fn files_images_and_pixels_give_the_same_classes() {
    let engine = engine(1);
    let from_file = predict(&engine, &files(), 3).unwrap();
    let image = swinq::decode_image(&std::fs::read(airplane()).unwrap()).unwrap();
    let decoded = Images::from_rgb([&image], engine.transform()).unwrap();
    assert_eq!(from_file, predict(&engine, &decoded, 3).unwrap());
    let pixels = swinq::data::preprocess(&image, engine.transform());
    let mut logits = Logits { values: vec![0.0; engine.classes()], classes: engine.classes() };
    engine.infer_into(&pixels, &mut logits.values).unwrap();
    assert_eq!(from_file, top_k(&engine, &logits, 3).unwrap());
    assert_eq!((from_file[0].classes.len(), from_file[0].classes[0].index), (3, 0));
}

#[test]
fn more_classes_than_there_are_is_all_classes() {
    let classes = predict(&engine(1), &files(), 1000).unwrap().remove(0).classes;
    assert_eq!(classes.len(), 10);
    assert!((classes.iter().map(|class| class.score).sum::<f64>() - 1.0).abs() < 1e-12);
}

#[test]
fn odd_images_are_errors() {
    let engine = engine(1);
    let decoded = |images: &[RgbImage]| Images::from_rgb(images, engine.transform());
    refused(Images::from_files(&Vec::<PathBuf>::new()), "no image file");
    refused(Images::from_files(&["no/such.jpg"]), "no/such.jpg");
    refused(decoded(&[]), "there is no image");
    let odd = [(0, 0, 0), (0, 5, 0), (2, 2, 11), (usize::MAX, usize::MAX, 3)];
    for (width, height, bytes) in odd {
        let image = RgbImage { width, height, pixels: vec![0; bytes] };
        refused(decoded(&[image]), "claims");
    }
    for bytes in [0, 1, 56 * 56 * 3 - 1, 56 * 56 * 3 + 1] {
        refused(engine.infer_into(&vec![0; bytes], &mut [0.0; 10]), "values for 1 images");
        assert!(
            engine.profile(engine.input_size(), &vec![0; bytes], 0).is_err()
                && engine.trace(&vec![0; bytes]).is_err()
        );
    }
    let batch = batch();
    refused(engine.infer(&Batch { size: Size::square(55), ..batch.clone() }), "55");
    refused(engine.infer(&Batch { ids: vec![0; 99], ..batch.clone() }), "99");
    let empty = Batch { pixels: Vec::new(), labels: Vec::new(), ids: Vec::new(), ..batch.clone() };
    assert!(engine.infer(&empty).unwrap().values.is_empty());
    refused(Images::from_batch(empty), "no image");
    refused(Images::from_batch(Batch { labels: vec![0; 5], ..batch.clone() }), "5 labels");
    refused(Images::from_batch(Batch { size: Size::square(usize::MAX), ..batch.clone() }), "bytes of pixels");
    let small = Transform { size: Size::square(28), ..model().transform().clone() };
    let prepared = Images::from_batch(batch).unwrap();
    refused(prepared.batches(&small, &ReadOptions::default()).map(|_| ()), "56 x 56");
}

#[test]
fn odd_numbers_are_errors() {
    let (engine, model) = (engine(1), model());
    refused(predict(&engine, &files(), 0), "k: is 0");
    for logits in [Logits { values: vec![0.0; 9], classes: 9 }, Logits { values: Vec::new(), classes: 0 }] {
        refused(top_k(&engine, &logits, 1), "10 classes");
    }
    for threads in [1_000_000, usize::MAX] {
        refused(model.engine(&EngineOptions::cpu(threads)), "threads");
        let read = ReadOptions { threads, ..ReadOptions::default() };
        refused(images(4).batches(model.transform(), &read).map(|_| ()), "threads");
    }
    assert!(engine.threads() == 1 && model.engine(&EngineOptions::cpu(0)).unwrap().threads() >= 1);
    refused(model.engine(&EngineOptions { max_batch: 0, ..EngineOptions::cpu(1) }), "max_batch");
    model
        .engine(&EngineOptions { max_batch: usize::MAX, ..EngineOptions::cpu(1) })
        .expect("the CPU engine runs at most eight images at a time");
    for images in [0, usize::MAX] {
        assert!(
            engine.launches(images).is_err() && engine.compute_times(engine.input_size(), images, 1).is_err()
        );
    }
    refused(Images::open(common::sample_data(), Split::Val, Some(0), 0), "limit");
    let read = |batch_size| ReadOptions { batch_size, ..ReadOptions::default() };
    refused(images(4).batches(model.transform(), &read(0)).map(|_| ()), "batch_size");
    let all = infer_images(&engine, &images(4), &read(usize::MAX), &mut |_, _| go()).unwrap().scores;
    assert_eq!(all.logits.values.len(), 40);
    for resize in [Resize::Direct, Resize::ShorterSide(0)] {
        let size = if resize == Resize::Direct { 0 } else { 56 };
        let transform = Transform { size: Size::square(size), resize, ..model.transform().clone() };
        refused(images(4).batches(&transform, &read(1)).map(|_| ()), "the image size is 0");
        let image = RgbImage::new(1, 1, vec![0; 3]);
        refused(Images::from_rgb([image], &transform), "the image size is 0");
    }
}

#[test]
fn odd_models_and_backends_are_errors() {
    refused(Model::open("no/such/model"), "no such file");
    refused(Model::open(common::sample_model()), "--cfg");
    let opts = vec![("MODEL.NUM_CLASSES".to_owned(), "10".to_owned())];
    let reading = LoadOptions { opts, ..LoadOptions::default() };
    let of_opts = OpenOptions { reading, ..OpenOptions::default() };
    refused(Model::open_with(common::sample_model(), &of_opts), "cfg");
    let mut broken = model().as_quantized().clone();
    broken.sites.clear();
    refused(Model::from_quantized(broken.clone()), "table of sites");
    let backend = EngineOptions::cpu(1).backend().unwrap();
    refused(Engine::new(&broken, backend), "site");
    let mut broken = model().as_quantized().clone();
    broken.params.clear();
    refused(Model::from_quantized(broken), "it lacks");
    if swinq::usable_gpu(0).is_err() {
        let cuda = EngineOptions { backend: BackendChoice::Cuda, ..EngineOptions::default() };
        assert!(matches!(model().engine(&cuda).err(), Some(Error::Runtime(_))));
        assert!(model().engine(&EngineOptions::default()).unwrap().device().is_none());
    }
}

#[test]
fn calibration_is_refused_stopped_and_reproduced() {
    let calibrated = |images: &Images| {
        let found = calibrate(float(), &CalibrateOptions::default(), images, &mut |_| go()).unwrap();
        assert!(found.model.is_quantized() && found.skipped.is_empty());
        found.model
    };
    let sample = images(8);
    let read = ReadOptions { batch_size: 8, ..ReadOptions::default() };
    let prepared = swinq::BatchSource::batch(&mut sample.batches(float().transform(), &read).unwrap(), 0, 0);
    let (a, b) = (calibrated(&sample), calibrated(&Images::from_batch(prepared.unwrap()).unwrap()));
    assert!(
        a.as_quantized().sites == b.as_quantized().sites
            && a.as_quantized().params == b.as_quantized().params
    );
    refused(calibrate(a, &CalibrateOptions::default(), &sample, &mut |_| go()), "quantized already");
    let stop = calibrate(float(), &CalibrateOptions::default(), &sample, &mut |_| ControlFlow::Break(()));
    refused(stop, "interrupted");
    let defaults = CalibrateOptions::default();
    let nothing = Rule { pattern: "**".to_owned(), enable: Some(false), ..Rule::default() };
    let options = CalibrateOptions { recipe: defaults.recipe.with_rule(nothing), ..defaults };
    refused(calibrate(float(), &options, &sample, &mut |_| go()), "quantizes no site");
    refused(swinq::load_recipe("no/such/recipe"), "no/such/recipe");
}

#[test]
fn evaluation_compares_with_the_first_and_measures_latency() {
    let engine = EngineOptions::cpu(1);
    let (float, int8) = (float(), model());
    let mut candidates = [
        Candidate::engine("float", &float, &engine).unwrap(),
        Candidate::engine("int8", &int8, &engine).unwrap(),
        Candidate::simulated("simulated", &int8, swinq::FloatDevice::Cpu).unwrap(),
    ];
    let options = EvaluateOptions {
        latency: vec![1],
        latency_options: LatencyOptions { warmup_ms: 0.0, min_ms: 0.0, min_runs: 2 },
        ..EvaluateOptions::default()
    };
    let mut calls = 0;
    let mut progress = |done: usize, total: usize| {
        assert!(done <= total && total == 40);
        calls += 1;
        go()
    };
    let results = evaluate(&mut candidates, &images(40), &options, &mut progress).unwrap();
    assert!(calls >= 15, "{calls}");
    let [float, int8, simulated] = results.models.as_slice() else { panic!("three models") };
    assert!(float.agreement.is_none() && int8.agreement.unwrap() > 0.8);
    assert_eq!((int8.top1_correct, int8.sqnr_db), (simulated.top1_correct, simulated.sqnr_db));
    assert_eq!(int8.latency_ms[&1].runs, 2);
    refused(evaluate(&mut [], &images(4), &options, &mut |_: usize, _: usize| go()), "no model");
    let stop = &mut |_: usize, _: usize| ControlFlow::Break(());
    refused(evaluate(&mut candidates, &images(4), &options, stop), "interrupted");
    for batch_size in [0, usize::MAX] {
        let options = EvaluateOptions { latency: vec![batch_size], ..options.clone() };
        refused(
            evaluate(&mut candidates, &images(4), &options, &mut |_: usize, _: usize| go()),
            "batch_size",
        );
    }
    let unlabelled = Images::from_files(&[airplane()]).unwrap();
    let run = |candidates: &mut [Candidate]| {
        let options = EvaluateOptions::default();
        evaluate(candidates, &unlabelled, &options, &mut |_: usize, _: usize| go())
    };
    refused(run(&mut candidates[..1]), "give a second model");
    let results = run(&mut candidates).unwrap();
    let own = &results.models[1];
    assert_eq!((own.images, own.top1_correct, own.top1_difference), (Some(1), None, None));
    assert!(own.sqnr_db.unwrap() > 10.0 && own.agreement.is_some());
    assert!(results.notes[0].contains("no labels: accuracy is not measured"), "{:?}", results.notes);
}

/// Two engines of one model have the same noise at its sites, which is measured once.
#[test]
fn the_noise_of_a_model_is_measured_once() {
    #[derive(Default)]
    struct Starts(Vec<String>);
    impl swinq::Observer for Starts {
        fn images(&mut self, _: usize, _: usize) -> ControlFlow<()> {
            go()
        }
        fn site(&mut self, model: &swinq::eval::ModelResult, done: usize, _: usize) -> ControlFlow<()> {
            if done == 0 {
                self.0.push(model.name.clone());
            }
            go()
        }
    }
    let int8 = model();
    let recipe = swinq::model::Recipe::shipped("mode1").unwrap().with_ptq(swinq::model::Ptq::Basic);
    let other = CalibrateOptions { recipe, ..CalibrateOptions::default() };
    let other = calibrate(float(), &other, &images(16), &mut |_| go()).unwrap().model;
    let candidate = |name: &str, model: &Model, threads: usize| {
        let candidate = Candidate::engine(name, model, &EngineOptions::cpu(threads)).unwrap();
        candidate.with_sites_of(model)
    };
    let mut candidates =
        [candidate("one", &int8, 1), candidate("two", &int8, 2), candidate("another", &other, 1)];
    let options = EvaluateOptions { site_noise: true, ..EvaluateOptions::default() };
    let mut starts = Starts::default();
    let results = evaluate(&mut candidates, &images(16), &options, &mut starts).unwrap();
    assert_eq!(starts.0, ["one", "another"]);
    let noise = |model: usize| -> Vec<Option<f64>> {
        results.models[model].sites.iter().map(|site| site.sqnr_db).collect()
    };
    assert!(noise(0).iter().flatten().count() > 20, "{:?}", noise(0));
    assert_eq!(noise(0), noise(1));
    assert_ne!(noise(0), noise(2));
}

#[test]
fn a_saved_model_is_the_same_model() {
    let folder = tempfile::tempdir().unwrap();
    for model in [float(), model()] {
        let path = folder.path().join("m.safetensors");
        model.save(&path).unwrap();
        let again = Model::open(&path).unwrap();
        assert!(again.describes_itself() && again.is_quantized() == model.is_quantized());
        assert!(again.as_quantized().params == model.as_quantized().params);
        assert_eq!((again.labels(), again.config()), (model.labels(), model.config()));
        assert_eq!(again.sites(), model.sites());
    }
}

#[test]
fn random_models_run() {
    let cfg = swinq::load_config(common::sample_cfg().to_str().unwrap(), &[]).unwrap();
    let model = Model::random(&cfg, 7).unwrap();
    assert!(!model.is_quantized() && model.labels().is_none());
    let engine = model.engine(&EngineOptions::cpu(1)).unwrap();
    assert_eq!(engine.infer(&swinq::noise(&engine, 3).unwrap()).unwrap().values.len(), 30);
}

/// A Swin-T with timm's names: timm crops less than Microsoft's configuration says.
#[test]
fn another_preprocessing_than_that_of_the_names_gives_a_warning() {
    let name = "swin_tiny_patch4_window7_224";
    let model = swinq::model::random_model(&swinq::load_config(name, &[]).unwrap(), 1);
    let timm = |name: &str| match name
        .strip_prefix("layers.")
        .and_then(|rest| rest.split_once(".downsample."))
    {
        Some((stage, rest)) => format!("layers.{}.downsample.{rest}", stage.parse::<usize>().unwrap() + 1),
        None => name.replace("head.", "head.fc."),
    };
    let bytes =
        |t: &swinq::model::HostTensor| t.data.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let stored: Vec<_> = model.tensors.iter().map(|(n, t)| (timm(n), t.shape.clone(), bytes(t))).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("timm.safetensors");
    let views = stored.iter().map(|(name, shape, bytes)| {
        let dtype = safetensors::Dtype::F32;
        (name, safetensors::tensor::TensorView::new(dtype, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, &path).unwrap();
    let open = |transform| {
        let options = OpenOptions { cfg: Some(name.to_owned()), transform, ..OpenOptions::default() };
        Model::open_float(&path, &options).unwrap().warnings().to_vec()
    };
    let [warning] = &open(None)[..] else { panic!("{:?}", open(None)) };
    assert!(warning.len() < 230 + path.display().to_string().len(), "{warning}");
    for word in ["names of timm", "shorter side to 248", "ms: shorter side to 256", "--transform timm"] {
        assert!(warning.contains(word), "`{word}` is not in: {warning}");
    }
    for family in [swinq::Family::Timm, swinq::Family::Microsoft] {
        assert_eq!(open(Some(family)), Vec::<String>::new());
    }
    // The user's own statement about the crop decides.
    let opts = vec![("TEST.CROP".to_owned(), "True".to_owned())];
    let reading = LoadOptions { opts, ..LoadOptions::default() };
    let options = OpenOptions { cfg: Some(name.to_owned()), reading, ..OpenOptions::default() };
    assert_eq!(Model::open_float(&path, &options).unwrap().warnings(), Vec::<String>::new());
    let yaml = folder.path().join("own.yaml");
    for (text, warnings) in [("MODEL:\n  NUM_CLASSES: 1000\n", 1), ("TEST:\n  CROP: False\n", 0)] {
        std::fs::write(&yaml, text).unwrap();
        let options = OpenOptions { cfg: Some(yaml.display().to_string()), ..OpenOptions::default() };
        assert_eq!(Model::open_float(&path, &options).unwrap().warnings().len(), warnings, "{text}");
    }
}
