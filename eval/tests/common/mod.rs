//! Invented results that resemble those of a real run, for tests of text and charts.

use swinq_eval::{Environment, Interval, Latency, ModelResult, Precision, Results, SiteResult};
use swinq_model::{Recipe, Site, SwinConfig};
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
    model.peak_memory_bytes = Some(512 << 20);
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
            site: site.to_string(),
            enabled: spec.enabled,
            kind: spec.kind,
            scale: spec.needs_scale(site).then_some(0.03 + 0.02 * rng.float()),
            sqnr_db: spec.enabled.then_some(noise),
            reason: (!spec.enabled).then(|| format!("switched off by the recipe `{recipe}`")),
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
