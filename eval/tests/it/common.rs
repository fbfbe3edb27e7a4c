//! Invented results that resemble those of a real run, for tests of text and charts.

use swinq_eval::results::sensitivity::{
    BlockError, ChannelSpread, Effect, Element, ElementKind, Percentile, RangeStatistics, Sensitivity,
    Subject,
};
use swinq_eval::results::tune::{
    CostModel, Goal, SearchEnd, TuneCandidate, TuneImages, Tuning, Verdict, Verification,
};
use swinq_eval::{
    CalibrationSet, ClassResult, DataInfo, Disagreement, Environment, Flips, Guess, Interval, Latency,
    LaunchResult, Load, ModelResult, Origin, Precision, Profile, RangeHistogram, Results, SiteResult,
    StepPoint, TrainingRun, ValidationPoint,
};
use swinq_model::{Recipe, Site, Size, SwinConfig, Transform};
use swinq_testing::Rng;

/// Runs of about `median` milliseconds, a few of them slower.
pub fn latency(median: f64) -> Latency {
    let sample = |i: u32| median * (0.97 + 0.0006 * f64::from(i) + if i % 37 == 36 { 0.2 } else { 0.0 });
    Latency::from_samples((0..101).map(sample).collect()).unwrap()
}

fn model(name: &str, precision: Precision, top1: usize, ms_per_image: f64) -> ModelResult {
    let mut model = ModelResult::new(name, precision, "cpu");
    (model.images, model.top1_correct, model.top5_correct) = (Some(50_000), Some(top1), Some(47_761));
    for batch in [1, 8, 32] {
        model.set_latency(batch, &latency(ms_per_image * batch as f64 * (1.0 + 0.4 / batch as f64)));
    }
    model.file_bytes = Some(30 << 20);
    model.size_bytes = Some(if precision == Precision::Int8 { 29 << 20 } else { 113 << 20 });
    model
}

fn sites(recipe: &str) -> Vec<SiteResult> {
    let config = SwinConfig::official("swin_tiny_patch4_window7_224").unwrap();
    let resolved = Recipe::shipped(recipe).unwrap().resolve(&config).unwrap();
    let mut rng = Rng(7);
    let one = |(site, spec): (Site, swinq_model::SiteSpec)| {
        let noise = 12.0 + 30.0 * rng.unit();
        SiteResult {
            scale: spec.needs_scale(site).then_some(0.03 + 0.02 * rng.float()),
            sqnr_db: spec.enabled.then_some(noise),
            reason: (!spec.enabled).then(|| format!("switched off by the recipe `{recipe}`")),
            ..SiteResult::new(site.to_string(), spec.enabled, spec.kind)
        }
    };
    resolved.into_iter().map(one).collect()
}

/// A float baseline and two INT8 models.
pub fn results() -> Results {
    let libraries = [("gemm".to_owned(), "0.19.0".to_owned())].into();
    let mut results = Results::new(Environment::detect(Some("avx512_vnni"), 2, libraries));
    results.environment.time = "2026-01-02T03:04:05Z".to_owned();
    let mut default = model("swin_t-default.safetensors", Precision::Int8, 40_374, 11.0);
    let mut mode1 = model("swin_t-mode1.safetensors", Precision::Int8, 40_210, 10.0);
    for (int8, recipe, low, high) in
        [(&mut default, "default", -0.00612, -0.00256), (&mut mode1, "mode1", -0.0098, -0.0054)]
    {
        int8.recipe = Some(recipe.to_owned());
        int8.sha256 = Some("5e".repeat(32));
        int8.sites = sites(recipe);
        (int8.agreement, int8.sqnr_db, int8.cosine) = (Some(0.9533), Some(31.27), Some(0.99962));
        int8.int8_share = Some(0.936);
        int8.top1_difference = Some(Interval { difference: (low + high) / 2.0, low, high });
    }
    results.models = vec![model("swin_t.pth", Precision::Fp32, 40_591, 26.0), default, mode1];
    results
}

/// Counts that fall like one half of a Gaussian, with a tail.
fn counts(bins: u64, scale: f64) -> Vec<u64> {
    (0..bins).map(|i| (1e6 * (-(i as f64 / scale).powi(2)).exp()) as u64 + u64::from(i % 17 == 3)).collect()
}

/// Adds every other figure that a run can have.
pub fn complete(mut results: Results) -> Results {
    results.data = Some(DataInfo {
        path: "imagenet".to_owned(),
        split: Some("val".to_owned()),
        total: Some(50_000),
        transform: Some(Transform::microsoft(Size::square(224), 3, true)),
        class_names: Some((0..10).map(|class| format!("kind {class}")).collect()),
        ..DataInfo::default()
    });
    results.environment.cores = Some(2);
    results.environment.load_average = Some(0.5);
    for batch in [1, 8, 32] {
        results.load.insert(batch, Load { average: Some(2.1), other_cores: Some(0.05) });
    }
    results.training = Some(training());
    results.program = Some(crate::program::sample());
    results.commands =
        vec!["swinq eval swin_t.pth swin_t-default.safetensors --data-path imagenet".to_owned()];
    results.notes = vec!["the FP16 engine needs a GPU".to_owned()];
    for model in &mut results.models {
        complete_model(model);
    }
    results
}

fn complete_model(model: &mut ModelResult) {
    let int8 = model.precision == Precision::Int8;
    model.architecture = Some("Swin-T".to_owned());
    model.path = Some(format!("models/{}", model.name));
    model.profile = Some(profile(if int8 { 0.1 } else { 0.3 }));
    let class = |class| {
        let changed = usize::from(int8) * (class % 3);
        ClassResult {
            class,
            images: 5000,
            top1_correct: 4000 + 10 * class,
            gained: changed,
            lost: 2 * changed,
        }
    };
    model.classes = (0..10).map(class).collect();
    if !int8 {
        return;
    }
    model.flips = Some(Flips { gained: 9, lost: 18, other: 3 });
    let image = |id: usize| Disagreement {
        id,
        image: Some(format!("val.zip@/n{id}.jpg")),
        label: Some(id),
        baseline: Guess { class: id, probability: 0.61 },
        own: Guess { class: 9 - id, probability: 0.52 },
        kl: 0.4 - 0.1 * id as f64,
    };
    model.disagreements = (0..3).map(image).collect();
    model.origin = Some(Origin {
        tool_version: "0.1.0".to_owned(),
        source: "swin_t.pth".to_owned(),
        source_sha256: "ab".repeat(32),
        calibration: Some(CalibrationSet {
            images: 80,
            seed: 0,
            batch_size: 8,
            sizing: None,
            sha256: "cd".repeat(32),
        }),
        rules: Recipe::shipped(model.recipe.as_deref().unwrap()).unwrap().rules,
        ..Origin::default()
    });
    for (i, site) in model.sites.iter_mut().filter(|site| site.scale.is_some()).enumerate() {
        let amax = site.amax().unwrap();
        let counts = counts(2048, 300.0 + 4.0 * i as f64);
        site.histogram = Some(RangeHistogram::coarse(&counts, amax / 1600.0, 7, amax * 1.28, Some(amax)));
        site.bits = Some(8);
        site.calibrator = Some("percentile:99.99".parse().unwrap());
    }
}

/// A launch for every op of a Swin-T, each of about `ms` milliseconds.
fn profile(ms: f64) -> Profile {
    let mut names = vec!["patch_embed.proj".to_owned()];
    for (stage, depth) in [2, 2, 6, 2].into_iter().enumerate() {
        for block in 0..depth {
            let ops = ["norm1", "attn.qkv", "attn", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2"];
            names.extend(ops.map(|op| format!("layers.{stage}.blocks.{block}.{op}")));
        }
        if stage < 3 {
            names.extend(["norm", "reduction"].map(|op| format!("layers.{stage}.downsample.{op}")));
        }
    }
    names.extend(["norm", "head"].map(str::to_owned));
    let launch = |(i, name): (usize, String)| LaunchResult {
        name,
        ms: ms * (1.0 + (i % 5) as f64),
        macs: 1000,
        ..LaunchResult::default()
    };
    Profile { batch: 1, launches: names.into_iter().enumerate().map(launch).collect() }
}

fn training() -> TrainingRun {
    let step = |i: u64| StepPoint {
        step: 10 * i,
        epoch: 0.1 * i as f64,
        loss: Some(1.0 / (1.0 + i as f64)),
        lr: Some(1e-5),
        top1: Some(0.8),
    };
    let validation = |i: u64| ValidationPoint {
        step: 100 * i,
        epoch: i as f64,
        images: 1000,
        top1: Some(0.8 + 0.01 * i as f64),
        sqnr_db: None,
        agreement: Some(0.95 + 0.01 * i as f64),
    };
    TrainingRun {
        folder: "run1".to_owned(),
        job: "model: swin_t-default.safetensors\nepochs: 2".to_owned(),
        steps: (1..=20).map(step).collect(),
        validations: (0..=2).map(validation).collect(),
    }
}

/// The effect of quantization that leaves `db` of SQNR.
fn effect(db: f64) -> Effect {
    Effect {
        sqnr_db: db,
        cosine: 0.999,
        kl: Some(10f64.powf(-db / 10.0)),
        top1_changes: Some(3),
        top1_correct: Some(900),
        outputs: Vec::new(),
    }
}

/// An invented run of `sensitivity`.
pub fn sensitivity() -> Sensitivity {
    let element = |name: String, kind, db: f64| Element {
        sites: vec![format!("{name}.input")],
        name,
        kind,
        macs: 1000,
        alone: effect(db),
        without: effect(39.0 + 0.001 * db),
        alone_spread_db: Some(0.5),
        gain_spread_db: Some(0.08),
    };
    let linear =
        |i: usize| element(format!("layers.2.blocks.{i}.mlp.fc2"), ElementKind::Linear, 50.0 - i as f64);
    let site =
        |i: usize| element(format!("layers.2.blocks.{i}.mlp.fc2.input"), ElementKind::Site, 51.0 - i as f64);
    let block =
        |i: usize| BlockError { name: format!("layers.2.blocks.{i}"), sqnr_db: 50.0 - i as f64, cosine: 0.9 };
    let spread = ChannelSpread { channels: 96, least: 0.1, median: 1.0, largest: 9.5, outlier: 7 };
    let range = RangeStatistics {
        site: "layers.2.blocks.0.mlp.fc2.input".to_owned(),
        calibrator: "percentile 99.99".to_owned(),
        max: 4.0,
        amax: Some(3.5),
        percentiles: vec![Percentile { percent: 99.9, value: 3.25 }],
        clipped: 0.0001,
        zeroed: 0.125,
        spread: Some(spread),
        histogram: vec![5, 4, 1],
    };
    Sensitivity {
        schema: 1,
        model: subject(),
        recipe: Recipe::shipped("default").unwrap(),
        images: 64,
        float_correct: Some(60),
        whole: effect(39.0),
        site_images: 32,
        site_whole: effect(38.5),
        layers: (0..20).map(linear).collect(),
        sites: (0..20).map(site).collect(),
        blocks: (0..6).map(block).collect(),
        ranges: vec![range],
        environment: Environment::default(),
        data: None,
    }
}

fn subject() -> Subject {
    Subject { name: "swin_t.pth".to_owned(), architecture: "Swin-T".to_owned(), sha256: String::new() }
}

/// An invented run of `tune`: the start recipe and three others.
pub fn tuning() -> Tuning {
    let candidate = |(i, db): (usize, f64)| TuneCandidate {
        recipe: Recipe::shipped("default").unwrap(),
        changes: (0..i).map(|layer| format!("layers.{layer}.blocks.0.mlp.fc2: float")).collect(),
        predicted_ms: [12.0, 13.0, 13.5, 15.0][i],
        latency_ms: None,
        speedup: [3.0, 2.8, 2.7, 2.4][i],
        int8_share: 0.9,
        effect: effect(db),
        top1_difference: Some(Interval { difference: -0.001, low: -0.003, high: 0.001 }),
        value: None,
    };
    let candidates: Vec<TuneCandidate> =
        [20.0, 31.0, 30.0, 38.0].into_iter().enumerate().map(candidate).collect();
    Tuning {
        schema: 1,
        model: subject(),
        start_recipe: "mode1".to_owned(),
        goal: Goal {
            metric: None,
            max_drop: Some(0.2),
            min_sqnr_db: None,
            min_speedup: Some(2.0),
            budget_minutes: None,
        },
        cost: CostModel {
            backend: "cpu".to_owned(),
            hardware: "a processor".to_owned(),
            batch_size: 8,
            image_size: None,
            table_sha256: "ef".repeat(32),
            spread: 0.012,
        },
        images: TuneImages { calibration: 80, search: 1000, verification: 2925 },
        float_ms: 36.0,
        float_latency_ms: latency(36.0).stats(),
        candidates,
        front: vec![0, 1, 3],
        chosen: 1,
        kept: true,
        verification: Some(Verification {
            images: 2925,
            float_correct: Some(2600),
            effect: effect(31.0),
            top1_difference: Some(Interval { difference: -0.001, low: -0.004, high: 0.002 }),
            verdict: Verdict::NotConcluded { images_needed: Some(20_000) },
        }),
        end: SearchEnd::Reached,
        launch_load: Load::default(),
        latency_load: Load::default(),
        environment: Environment::default(),
        data: None,
    }
}
