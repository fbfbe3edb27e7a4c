//! Checks of a job's values. An error names the key, the value and the remedy.

use super::error::JobError;
use super::values::{Device, Precision};
use super::{Job, Length};

/// The check of one value: key, value as text, whether it is allowed, and the allowed values as text.
type Check = (&'static str, String, bool, &'static str);

fn number(key: &'static str, value: f64, allowed: bool, remedy: &'static str) -> Check {
    (key, format!("{value:?}"), allowed, remedy)
}

fn count(key: &'static str, value: u64, allowed: bool, remedy: &'static str) -> Check {
    (key, value.to_string(), allowed, remedy)
}

impl Job {
    /// Checks every value; errors name `origin`, the job's file or name.
    pub(super) fn check(&self, origin: &str) -> Result<(), JobError> {
        self.check_files(origin)?;
        self.check_length(origin)?;
        let numbers =
            self.training_numbers().into_iter().chain(self.loss_numbers()).chain(self.mixing_numbers());
        let checks = self.sizes().into_iter().chain(numbers);
        for (key, value, allowed, remedy) in checks {
            if !allowed {
                return Err(JobError::key(origin, key, format!("is {value}; give {remedy}")));
            }
        }
        self.check_combinations(origin)?;
        self.quantization.check(origin)
    }

    fn check_files(&self, origin: &str) -> Result<(), JobError> {
        let need = |set: bool, key: &str, what: &str| {
            let problem = format!("is not set; give {what}, in the file or with --opts {key} VALUE");
            if set { Ok(()) } else { Err(JobError::key(origin, key, problem)) }
        };
        need(!self.name.is_empty(), "name", "a name")?;
        if self.quant {
            need(self.model.is_some(), "model", "the calibrated checkpoint")?;
            need(self.float.is_some(), "float", "the float checkpoint it was calibrated from")?;
        } else if self.model.is_some() {
            let problem =
                "applies to quant: on only; remove it, and give the weights to start from as `float`";
            return Err(JobError::key(origin, "model", problem));
        }
        need(
            self.float.is_some() || self.cfg.is_some(),
            "float",
            "a checkpoint, or `cfg` to start from random weights",
        )?;
        if self.new_head && (self.quant || self.float.is_none()) {
            let problem = "replaces the head of `float` in a float training only; first train with quant: off on the new classes";
            return Err(JobError::key(origin, "new_head", problem));
        }
        let of_checkpoints = [
            ("prefix", &self.prefix),
            ("weights", &self.weights),
            ("transform", &self.transform),
            ("orientation", &self.orientation),
            ("channels", &self.channels),
        ];
        if let Some((key, _)) =
            of_checkpoints.into_iter().find(|(_, value)| value.is_some() && self.float.is_none())
        {
            let problem = "says how checkpoints are read, and `float` is not set; give it, or remove the key";
            return Err(JobError::key(origin, key, problem));
        }
        if self.loss.needs_teacher() && self.teacher_path().is_none() {
            let problem = "is not set, but loss.kl, loss.outputs or loss.features needs one; give a float checkpoint, or set them to 0";
            return Err(JobError::key(origin, "teacher", problem));
        }
        need(!self.data.path.as_os_str().is_empty(), "data.path", "the training images")?;
        need(!self.output.as_os_str().is_empty(), "output", "a folder to write to")
    }

    fn check_length(&self, origin: &str) -> Result<(), JobError> {
        if self.epochs.is_some() && self.steps.is_some() {
            return Err(JobError::key(origin, "steps", "and `epochs` are both set; set only one of them"));
        }
        match self.length() {
            Length::Epochs(epochs) if !(epochs > 0.0 && epochs <= 1e5) => Err(JobError::key(
                origin,
                "epochs",
                format!("is {epochs}; give a number above 0 and at most 100000"),
            )),
            Length::Iterations(count) if !(1..=1_000_000_000).contains(&count) => {
                Err(JobError::key(origin, "steps", format!("is {count}; give 1 to 1000000000")))
            }
            _ => Ok(()),
        }
    }

    fn sizes(&self) -> Vec<Check> {
        let (batch, some) = (1..=65536, "1 to 65536");
        let mut checks = vec![
            count("batch_size", self.batch_size as u64, batch.contains(&self.batch_size), some),
            count("accumulate", self.accumulate as u64, batch.contains(&self.accumulate), some),
            count(
                "validate.batch_size",
                self.validate.batch_size as u64,
                batch.contains(&self.validate.batch_size),
                some,
            ),
            count("threads", self.threads as u64, self.threads <= 1024, "at most 1024; 0 means one per core"),
            count("checkpoint.keep", self.checkpoint.keep as u64, self.checkpoint.keep >= 1, "at least 1"),
            count("log.every", self.log.every, self.log.every >= 1, "at least 1"),
        ];
        let limits = [
            ("data.limit", self.data.limit),
            ("data.val_limit", self.data.val_limit),
            ("validate.limit", self.validate.limit),
        ];
        for (key, limit) in limits {
            let remedy = "at least 1, or remove the key to use all";
            checks.extend(limit.map(|limit| count(key, limit as u64, limit >= 1, remedy)));
        }
        checks
    }

    fn training_numbers(&self) -> Vec<Check> {
        let (o, s) = (&self.optimizer, &self.schedule);
        let unit = |value: f64| (0.0..=1.0).contains(&value);
        let below_one = |value: f64| (0.0..1.0).contains(&value);
        let up_to_lr = |value: f64| (0.0..=o.lr).contains(&value);
        let rate = "an absolute learning rate from 0 to 1, such as 1e-4";
        let lower_rate = "a learning rate from 0 to optimizer.lr";
        let mut checks = vec![
            number("optimizer.lr", o.lr, unit(o.lr), rate),
            number("optimizer.lr_scales", o.lr_scales, unit(o.lr_scales), rate),
            number("optimizer.weight_decay", o.weight_decay, unit(o.weight_decay), "0 to 1, such as 0.01"),
            number("optimizer.betas[0]", o.betas[0], below_one(o.betas[0]), "from 0 to below 1, such as 0.9"),
            number(
                "optimizer.betas[1]",
                o.betas[1],
                below_one(o.betas[1]),
                "from 0 to below 1, such as 0.999",
            ),
            number("optimizer.eps", o.eps, o.eps > 0.0 && o.eps <= 1.0, "above 0, at most 1, such as 1e-8"),
            number("optimizer.clip_norm", o.clip_norm, o.clip_norm >= 0.0, "at least 0; 0 disables clipping"),
            number("optimizer.ema", o.ema, below_one(o.ema), "from 0 (no average) to below 1, such as 0.999"),
            number("schedule.warmup_lr", s.warmup_lr, up_to_lr(s.warmup_lr), lower_rate),
            number("schedule.min_lr", s.min_lr, up_to_lr(s.min_lr), lower_rate),
        ];
        let drop_path = self.drop_path.map(|p| number("drop_path", p, below_one(p), "from 0 to below 1"));
        checks.extend(drop_path);
        checks
    }

    fn loss_numbers(&self) -> Vec<Check> {
        let l = &self.loss;
        let weight = "a weight of at least 0";
        vec![
            number("loss.labels", l.labels, l.labels >= 0.0, weight),
            number("loss.kl", l.kl, l.kl >= 0.0, weight),
            number("loss.outputs", l.outputs, l.outputs >= 0.0, weight),
            number("loss.features", l.features, l.features >= 0.0, weight),
            number(
                "loss.smoothing",
                l.smoothing,
                (0.0..1.0).contains(&l.smoothing),
                "from 0 to below 1, such as 0.1",
            ),
            number(
                "loss.temperature",
                l.temperature,
                l.temperature > 0.0 && l.temperature <= 100.0,
                "above 0, at most 100",
            ),
        ]
    }

    fn mixing_numbers(&self) -> Vec<Check> {
        let m = &self.mixing;
        let (alpha, unit) = (|x: f64| (0.0..=2.0).contains(&x), |x: f64| (0.0..=1.0).contains(&x));
        vec![
            number("mixing.mixup", m.mixup, alpha(m.mixup), "from 0 (off) to 2, such as 0.8"),
            number("mixing.cutmix", m.cutmix, alpha(m.cutmix), "from 0 (off) to 2, such as 1"),
            number("mixing.probability", m.probability, unit(m.probability), "0 to 1"),
            number("mixing.switch", m.switch, unit(m.switch), "0 to 1"),
        ]
    }

    fn check_combinations(&self, origin: &str) -> Result<(), JobError> {
        if self.loss.labels == 0.0 && !self.loss.needs_teacher() {
            let problem = "is empty: labels, kl, outputs and features are all 0; give one of them a weight";
            return Err(JobError::key(origin, "loss", problem));
        }
        if self.precision != Precision::F32 && self.device == Device::Cpu {
            let problem = "is lower than f32, which needs a GPU; give f32, or device: cuda";
            return Err(JobError::key(origin, "precision", problem));
        }
        if !self.augment.is_object() {
            return Err(JobError::key(
                origin,
                "augment",
                format!("is a section, but holds {}", self.augment),
            ));
        }
        Ok(())
    }
}
