//! Keys that only make sense for one task. An error names the key and the remedy.

use swinq_model::SwinConfig;

use super::Job;
use super::error::JobError;
use super::sections::KEEP;

/// A key that is not for the task: the key, its value as text, and why it is not.
type Unfit = (&'static str, String, &'static str);

impl Job {
    /// Checks that the job's keys suit the task of the network `config`.
    ///
    /// # Errors
    /// [`JobError::Key`]: labels, classes or mixed labels for a backbone; outputs or sizes for a classifier;
    /// an output that the backbone does not have.
    pub fn check_network(&self, config: &SwinConfig) -> Result<(), JobError> {
        let (what, unfit) = match config.is_backbone() {
            true => ("a backbone", self.keys_of_classifiers()),
            false => ("a classifier", self.keys_of_backbones()),
        };
        if let Some((key, value, problem)) = unfit.into_iter().next() {
            let problem = format!("is {value}, but {} is {what}: {problem}", config.name);
            return Err(JobError::key(&self.name, key, problem));
        }
        if config.is_backbone() { self.check_outputs(config) } else { Ok(()) }
    }

    /// The keys that are set and need classes.
    fn keys_of_classifiers(&self) -> Vec<Unfit> {
        let (loss, mixing) = (&self.loss, &self.mixing);
        let off = "it has no labels and no classes; set it to 0 (the shipped job `backbone` trains on loss.outputs)";
        let unmixed = "pairs of images are mixed for their labels, which it does not have; set it to 0";
        let numbers = [
            ("loss.labels", loss.labels, off),
            ("loss.kl", loss.kl, off),
            ("loss.smoothing", loss.smoothing, off),
            ("mixing.mixup", mixing.mixup, unmixed),
            ("mixing.cutmix", mixing.cutmix, unmixed),
        ];
        let set = numbers.into_iter().filter(|(_, value, _)| *value > 0.0);
        let mut unfit: Vec<Unfit> = set.map(|(key, value, why)| (key, value.to_string(), why)).collect();
        if self.new_head {
            unfit.push(("new_head", "true".to_owned(), "it has no head; set it to false"));
        }
        if !self.quant {
            let why = "a training in float needs labels, which it does not have; set quant: on, and give a calibrated checkpoint as \
                       `model`";
            unfit.push(("quant", "off".to_owned(), why));
        }
        unfit
    }

    /// The keys that are set and need feature maps or images of several sizes.
    fn keys_of_backbones(&self) -> Vec<Unfit> {
        let mut unfit: Vec<Unfit> = Vec::new();
        if self.loss.outputs > 0.0 {
            let why = "it has no feature maps; set it to 0 and loss.kl to 1, or give a backbone (`swinq calibrate \
                       --task features`) as `model`";
            unfit.push(("loss.outputs", self.loss.outputs.to_string(), why));
        }
        if !self.loss.output_weights.is_empty() {
            let names: Vec<&str> = self.loss.output_weights.keys().map(String::as_str).collect();
            unfit.push((
                "loss.output_weights",
                format!("set for {}", names.join(", ")),
                "it has no feature maps; remove it",
            ));
        }
        if let Some(sizes) =
            self.augment.get("sizes").and_then(|sizes| sizes.as_array()).filter(|s| !s.is_empty())
        {
            let why = "its images have the size of its preprocessing; set it to []";
            unfit.push(("augment.sizes", format!("a list of {} sizes", sizes.len()), why));
        }
        if self.validate.size != KEEP {
            let why = "its images have the size of its preprocessing; set it to keep";
            unfit.push(("validate.size", self.validate.size.clone(), why));
        }
        unfit
    }

    /// Checks the weights of a backbone's outputs.
    fn check_outputs(&self, config: &SwinConfig) -> Result<(), JobError> {
        let key = |output: &str| format!("loss.output_weights.{output}");
        let names: Vec<&str> = config.outputs.iter().map(|output| output.name.as_str()).collect();
        for (output, weight) in &self.loss.output_weights {
            if !names.contains(&output.as_str()) {
                let problem = format!("{} has no such output; it has {}", config.name, names.join(", "));
                return Err(JobError::key(&self.name, key(output), problem));
            }
            if !(*weight >= 0.0 && weight.is_finite()) {
                let problem = format!("is {weight}; give a weight of at least 0");
                return Err(JobError::key(&self.name, key(output), problem));
            }
        }
        if self.loss.outputs > 0.0 && self.loss.weights_of(config).iter().sum::<f64>() == 0.0 {
            let problem = "is 0 for every output; give one of them a weight";
            return Err(JobError::key(&self.name, "loss.output_weights", problem));
        }
        Ok(())
    }
}
