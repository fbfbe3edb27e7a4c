//! Records: what is known of a step or of a validation.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A step of the optimizer. Numbers are means over the step's images; `None` is what was not computed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Steps done, this one included: the first record's is at least 1.
    pub step: u64,
    /// Epochs passed.
    pub epoch: f64,
    /// The weighted sum that is minimised.
    pub loss: f64,
    /// Cross-entropy with the labels, before its weight.
    pub labels: Option<f64>,
    /// Divergence from the teacher, before its weight.
    pub kl: Option<f64>,
    /// Squared difference from the teacher's block outputs, before its weight.
    pub features: Option<f64>,
    /// Learning rate of the weights.
    pub lr: f64,
    /// Learning rate of the learned scales.
    pub lr_scales: f64,
    /// Length of the gradient before it is clipped.
    pub grad_norm: f64,
    /// Part of the images whose label had the highest score, 0 to 1.
    pub top1: Option<f64>,
    /// Training images a second since the record before.
    pub images_per_second: f64,
    /// Seconds of training since the process started.
    pub seconds: f64,
}

/// A validation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ValidationRecord {
    /// Steps done before it.
    pub step: u64,
    /// Epochs passed.
    pub epoch: f64,
    /// Images validated on.
    pub images: u64,
    /// Part of them whose label had the highest score, 0 to 1.
    pub top1: f64,
    /// Part of them whose label was among the five highest.
    pub top5: Option<f64>,
    /// Part of them with the teacher's highest score where the teacher has it.
    pub agreement: Option<f64>,
    /// Mean squared difference from the teacher's logits.
    pub logit_mse: Option<f64>,
    /// Seconds it took.
    pub seconds: f64,
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// `"kind": "step"`
    Step(StepRecord),
    /// `"kind": "validation"`
    Validation(ValidationRecord),
}

impl Record {
    /// Steps done at the record.
    pub fn step(&self) -> u64 {
        match self {
            Record::Step(record) => record.step,
            Record::Validation(record) => record.step,
        }
    }

    /// The record's line, without its end. Values that JSON has no number for are `null` and listed in `non_finite`.
    pub fn to_line(&self) -> String {
        let values = self.values();
        let mut line = format!("{{\"kind\":\"{}\",\"step\":{}", self.kind(), self.step());
        let mut non_finite = Vec::new();
        for (key, value) in &values {
            let number = value.filter(|value| value.is_finite());
            if value.is_some() && number.is_none() {
                non_finite.push(*key);
            }
            line += &format!(",\"{key}\":{}", number.map_or(Value::Null, |number| plain_number(key, number)));
        }
        if !non_finite.is_empty() {
            line += &format!(",\"non_finite\":{}", serde_json::json!(non_finite));
        }
        line + "}"
    }

    /// What TensorBoard shows, as tags and values; training under `train/`, validation under `val/`.
    pub fn scalars(&self) -> Vec<(String, f32)> {
        let section = if matches!(self, Record::Step(_)) { "train" } else { "val" };
        let values = self.values().into_iter().filter_map(|(key, value)| Some((key, value?)));
        values.map(|(key, value)| (format!("{section}/{key}"), value as f32)).collect()
    }

    fn kind(&self) -> &'static str {
        match self {
            Record::Step(_) => "step",
            Record::Validation(_) => "validation",
        }
    }

    /// Every number but the step, in the order of the line.
    fn values(&self) -> Vec<(&'static str, Option<f64>)> {
        match self {
            Record::Step(r) => vec![
                ("epoch", Some(r.epoch)),
                ("loss", Some(r.loss)),
                ("labels", r.labels),
                ("kl", r.kl),
                ("features", r.features),
                ("lr", Some(r.lr)),
                ("lr_scales", Some(r.lr_scales)),
                ("grad_norm", Some(r.grad_norm)),
                ("top1", r.top1),
                ("images_per_second", Some(r.images_per_second)),
                ("seconds", Some(r.seconds)),
            ],
            Record::Validation(r) => vec![
                ("epoch", Some(r.epoch)),
                ("images", Some(r.images as f64)),
                ("top1", Some(r.top1)),
                ("top5", r.top5),
                ("agreement", r.agreement),
                ("logit_mse", r.logit_mse),
                ("seconds", Some(r.seconds)),
            ],
        }
    }
}

/// Counts as whole numbers, others as they are.
fn plain_number(key: &str, number: f64) -> Value {
    if key == "images" { Value::from(number as u64) } else { Value::from(number) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_every_key_and_says_what_was_not_finite() {
        let record = StepRecord {
            step: 3,
            loss: f64::NAN,
            kl: Some(f64::INFINITY),
            lr: 5e-5,
            ..StepRecord::default()
        };
        let line = Record::Step(record).to_line();
        assert_eq!(
            line,
            "{\"kind\":\"step\",\"step\":3,\"epoch\":0.0,\"loss\":null,\"labels\":null,\"kl\":null,\"features\":null,\
             \"lr\":0.00005,\"lr_scales\":0.0,\"grad_norm\":0.0,\"top1\":null,\"images_per_second\":0.0,\
             \"seconds\":0.0,\"non_finite\":[\"loss\",\"kl\"]}"
        );
        assert!(serde_json::from_str::<Value>(&line).is_ok());
        let record = ValidationRecord { step: 9, images: 10_000, top1: 0.5, ..ValidationRecord::default() };
        let value: Value = serde_json::from_str(&Record::Validation(record).to_line()).unwrap();
        assert_eq!((value["images"].as_u64(), value["top5"].is_null()), (Some(10_000), true));
        assert!(value.get("non_finite").is_none());
    }

    #[test]
    fn tensorboard_gets_what_was_computed() {
        let record = StepRecord { step: 3, kl: Some(0.5), ..StepRecord::default() };
        let scalars = Record::Step(record).scalars();
        assert!(scalars.contains(&("train/kl".to_owned(), 0.5)));
        assert!(!scalars.iter().any(|(tag, _)| tag == "train/labels"));
        let scalars = Record::Validation(ValidationRecord::default()).scalars();
        assert!(scalars.iter().all(|(tag, _)| tag.starts_with("val/")));
    }
}
