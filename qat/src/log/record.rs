//! The log's records: of iterations and of validations.

use serde_json::Value;
use swinq_model::quantized::Score;

/// A record of the iterations since the previous record. Losses and accuracy are means over their images;
/// `None` was not computed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IterationRecord {
    /// Number of iterations done, including this one.
    pub iteration: u64,
    /// Epochs passed.
    pub epoch: f64,
    /// The weighted sum of the losses, which is minimised.
    pub loss: f64,
    /// Cross-entropy with the labels, before its weight.
    pub labels: Option<f64>,
    /// Divergence from the teacher's distribution, before its weight.
    pub kl: Option<f64>,
    /// Relative error of a backbone's outputs, before its weight.
    pub outputs: Option<f64>,
    /// Mean squared difference to the teacher's block outputs, before its weight.
    pub features: Option<f64>,
    /// Learning rate of the weights.
    pub lr: f64,
    /// Learning rate of the learned scales.
    pub lr_scales: f64,
    /// Norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Fraction of the images whose label had the highest score, 0 to 1.
    pub top1: Option<f64>,
    /// Training images per second since the previous record.
    pub images_per_second: f64,
    /// Images per second that the threads of the loader can give, with all of them at work: those of this
    /// process, times the number of processes. Measured on the images loaded since the previous record.
    pub loader_images_per_second: Option<f64>,
    /// Fraction of the time since the previous record in which the training waited for images, 0 to 1.
    pub loader_wait: Option<f64>,
    /// Seconds of training since the process started.
    pub seconds: f64,
}

/// A validation.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidationRecord {
    /// Number of iterations done before the validation.
    pub iteration: u64,
    /// Epochs passed.
    pub epoch: f64,
    /// Number of images.
    pub images: u64,
    /// The fraction of the images whose label had the highest score, 0 to 1, or the mean SQNR of a backbone's
    /// outputs.
    pub score: Score,
    /// Fraction of the images whose label was among the five highest scores.
    pub top5: Option<f64>,
    /// Fraction of the images on which the model and the teacher predict the same class.
    pub agreement: Option<f64>,
    /// Mean squared difference to the teacher's logits.
    pub logit_mse: Option<f64>,
    /// Each output of a backbone and its SQNR, in dB.
    pub outputs: Vec<(String, f64)>,
    /// Duration in seconds.
    pub seconds: f64,
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// `"kind": "step"`
    Iteration(IterationRecord),
    /// `"kind": "validation"`
    Validation(ValidationRecord),
}

impl Record {
    /// Number of iterations done at the record.
    pub fn iteration(&self) -> u64 {
        match self {
            Record::Iteration(record) => record.iteration,
            Record::Validation(record) => record.iteration,
        }
    }

    /// The record as a JSON line, without the line feed. NaN and infinity become `null` and are listed in
    /// `non_finite`.
    pub fn to_line(&self) -> String {
        let values = self.values();
        let mut line = format!("{{\"kind\":\"{}\",\"step\":{}", self.kind(), self.iteration());
        let mut non_finite = Vec::new();
        for (key, value) in &values {
            let number = value.filter(|value| value.is_finite());
            if value.is_some() && number.is_none() {
                non_finite.push(key);
            }
            line += &format!(",\"{key}\":{}", number.map_or(Value::Null, |number| plain_number(key, number)));
        }
        if !non_finite.is_empty() {
            line += &format!(",\"non_finite\":{}", serde_json::json!(non_finite));
        }
        line + "}"
    }

    /// Tags and values for TensorBoard: `train/…` for iterations, `val/…` for validations.
    pub fn scalars(&self) -> Vec<(String, f32)> {
        let section = if matches!(self, Record::Iteration(_)) { "train" } else { "val" };
        let values = self.values().into_iter().filter_map(|(key, value)| Some((key, value?)));
        values.map(|(key, value)| (format!("{section}/{key}"), value as f32)).collect()
    }

    fn kind(&self) -> &'static str {
        match self {
            Record::Iteration(_) => "step",
            Record::Validation(_) => "validation",
        }
    }

    /// Every number except the iteration, in the order of the JSON line. Younger keys than the first logs'
    /// are absent where they do not apply.
    fn values(&self) -> Vec<(String, Option<f64>)> {
        let named = |values: Vec<(&str, Option<f64>)>| -> Vec<(String, Option<f64>)> {
            values.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
        };
        match self {
            Record::Iteration(r) => {
                let mut values = named(vec![
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
                    ("loader_images_per_second", r.loader_images_per_second),
                    ("loader_wait", r.loader_wait),
                    ("seconds", Some(r.seconds)),
                ]);
                values.extend(r.outputs.map(|error| ("outputs".to_owned(), Some(error))));
                values
            }
            Record::Validation(r) => {
                let mut values = named(vec![("epoch", Some(r.epoch)), ("images", Some(r.images as f64))]);
                match r.score {
                    Score::Top1(top1) => values.extend(named(vec![
                        ("top1", Some(top1)),
                        ("top5", r.top5),
                        ("agreement", r.agreement),
                        ("logit_mse", r.logit_mse),
                    ])),
                    Score::Sqnr(db) => {
                        values.push(("sqnr_db".to_owned(), Some(db)));
                        values.extend(
                            r.outputs.iter().map(|(name, db)| (format!("sqnr_db.{name}"), Some(*db))),
                        );
                    }
                }
                values.push(("seconds".to_owned(), Some(r.seconds)));
                values
            }
        }
    }
}

/// Writes counts as whole numbers.
fn plain_number(key: &str, number: f64) -> Value {
    if key == "images" { Value::from(number as u64) } else { Value::from(number) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn validation(score: Score) -> ValidationRecord {
        let (top5, agreement, logit_mse, outputs) = (None, None, None, vec![("stage1".to_owned(), 41.5)]);
        let (iteration, epoch, images, seconds) = (9, 0.5, 10_000, 2.0);
        ValidationRecord { iteration, epoch, images, score, top5, agreement, logit_mse, outputs, seconds }
    }

    #[test]
    fn a_validation_of_a_backbone_has_the_sqnr_of_each_output() {
        let record = Record::Validation(validation(Score::Sqnr(38.25)));
        assert_eq!(
            record.to_line(),
            "{\"kind\":\"validation\",\"step\":9,\"epoch\":0.5,\"images\":10000,\"sqnr_db\":38.25,\"sqnr_db.stage1\":41.5,\
             \"seconds\":2.0}"
        );
        assert!(record.scalars().contains(&("val/sqnr_db.stage1".to_owned(), 41.5)));
    }

    #[test]
    fn a_line_has_every_key_and_lists_values_that_are_not_finite() {
        let record = IterationRecord {
            iteration: 3,
            loss: f64::NAN,
            kl: Some(f64::INFINITY),
            lr: 5e-5,
            ..IterationRecord::default()
        };
        let line = Record::Iteration(record).to_line();
        assert_eq!(
            line,
            "{\"kind\":\"step\",\"step\":3,\"epoch\":0.0,\"loss\":null,\"labels\":null,\"kl\":null,\"features\":null,\
             \"lr\":0.00005,\"lr_scales\":0.0,\"grad_norm\":0.0,\"top1\":null,\"images_per_second\":0.0,\
             \"loader_images_per_second\":null,\"loader_wait\":null,\"seconds\":0.0,\"non_finite\":[\"loss\",\"kl\"]}"
        );
        assert!(serde_json::from_str::<Value>(&line).is_ok());
        let record = validation(Score::Top1(0.5));
        let value: Value = serde_json::from_str(&Record::Validation(record).to_line()).unwrap();
        assert_eq!((value["images"].as_u64(), value["top5"].is_null()), (Some(10_000), true));
        assert!(value.get("non_finite").is_none());
    }

    #[test]
    fn tensorboard_gets_what_was_computed() {
        let record = IterationRecord { iteration: 3, kl: Some(0.5), ..IterationRecord::default() };
        let scalars = Record::Iteration(record).scalars();
        assert!(scalars.contains(&("train/kl".to_owned(), 0.5)));
        assert!(!scalars.iter().any(|(tag, _)| tag == "train/labels"));
        let scalars = Record::Validation(validation(Score::Top1(0.5))).scalars();
        assert!(scalars.iter().all(|(tag, _)| tag.starts_with("val/")));
    }
}
