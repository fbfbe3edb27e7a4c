//! The test distributions of the committed fixture, and histograms.

use std::path::PathBuf;

use swinq_calib::Histogram;

/// The histogram of `values`.
pub fn histogram(values: &[f32]) -> Histogram {
    let mut histogram = Histogram::new();
    histogram.add(values).unwrap();
    histogram
}

/// A named sample.
pub struct Sample {
    pub name: String,
    pub values: Vec<f32>,
    /// `[percentage, numpy's method higher, numpy's method linear]` of the magnitudes.
    pub percentiles: Vec<[f64; 3]>,
}

/// The samples of `fixtures/percentiles.*`.
pub fn samples() -> Vec<Sample> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let bytes = std::fs::read(folder.join("percentiles.f32")).unwrap();
    let mut values = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("percentiles.json")).unwrap()).unwrap();
    let sample = |record: &serde_json::Value| Sample {
        name: record["name"].as_str().unwrap().to_owned(),
        values: values.by_ref().take(record["count"].as_u64().unwrap() as usize).collect(),
        percentiles: serde_json::from_value(record["percentiles"].clone()).unwrap(),
    };
    json.as_array().unwrap().iter().map(sample).collect()
}
