//! Validation of results.

use super::{ModelResult, OutputResult, PROGRAM_GAIN, ProgramGain, Results, SCHEMA, SizeResult, Stats};
use crate::error::EvalError;
use crate::interval::Interval;

impl Results {
    /// Checks that the schema is known and that every figure is possible.
    ///
    /// # Errors
    /// [`EvalError::Results`] naming the field.
    pub fn check(&self) -> Result<(), EvalError> {
        if self.schema != SCHEMA {
            let text = format!(
                "version {}, but this program reads version {SCHEMA}; use the version of swinq that wrote the file",
                self.schema
            );
            return Err(EvalError::results("schema", text));
        }
        for (batch, load) in &self.load {
            let figures = [("average", load.average), ("other_cores", load.other_cores)];
            for (key, value) in figures {
                within(&format!("load.{batch}.{key}"), value, 0.0, f64::MAX)?;
            }
        }
        self.program.iter().try_for_each(|program| program.check("program"))?;
        self.models.iter().enumerate().try_for_each(|(i, model)| model.check(&format!("models[{i}]")))
    }
}

impl ProgramGain {
    /// Checks that the version is known and that every figure is possible; `at` is the field.
    pub(super) fn check(&self, at: &str) -> Result<(), EvalError> {
        if self.program_gain != PROGRAM_GAIN {
            let text =
                format!("version {}, but this program reads version {PROGRAM_GAIN}", self.program_gain);
            return Err(EvalError::results(format!("{at}.program_gain"), text));
        }
        for (kind, times) in [("float", self.times.float), ("int8", self.times.int8)] {
            let at = format!("{at}.times.{kind}");
            within(&format!("{at}.program_ms"), Some(times.program_ms), f64::MIN_POSITIVE, f64::MAX)?;
            within(&format!("{at}.swin_ms"), Some(times.swin_ms), 0.0, times.program_ms)?;
            within(&format!("{at}.share"), Some(times.share), 0.0, 1.0)?;
        }
        for (name, ratio) in &self.outputs {
            not_nan(&format!("{at}.outputs[{name}]"), Some(*ratio))?;
        }
        for (name, share) in &self.equal {
            within(&format!("{at}.equal[{name}]"), Some(*share), 0.0, 1.0)?;
        }
        let metric = self.metric.iter().flat_map(|metric| [("float", metric.float), ("int8", metric.int8)]);
        for (kind, value) in metric {
            within(&format!("{at}.metric.{kind}"), Some(value), f64::MIN, f64::MAX)?;
        }
        within(&format!("{at}.environment.other_cores"), self.environment.other_cores, 0.0, f64::MAX)
    }
}

impl ModelResult {
    fn check(&self, at: &str) -> Result<(), EvalError> {
        self.check_counts(at)?;
        let fractions = [("agreement", self.agreement), ("int8_share", self.int8_share)];
        for (key, value) in fractions {
            within(&format!("{at}.{key}"), value, 0.0, 1.0)?;
        }
        within(&format!("{at}.cosine"), self.cosine, -1.0, 1.0)?;
        not_nan(&format!("{at}.sqnr_db"), self.sqnr_db)?;
        for (key, by_batch) in [("latency_ms", &self.latency_ms), ("compute_ms", &self.compute_ms)] {
            for (batch, stats) in by_batch {
                stats.check(&format!("{at}.{key}.{batch}"))?;
            }
        }
        for (key, by_batch) in [("throughput_ips", &self.throughput_ips), ("stream_ips", &self.stream_ips)] {
            for (batch, &ips) in by_batch {
                within(&format!("{at}.{key}.{batch}"), Some(ips), 0.0, f64::MAX)?;
            }
        }
        if let Some(Interval { difference, low, high }) = self.top1_difference {
            for (key, value) in [("difference", difference), ("low", low), ("high", high)] {
                within(&format!("{at}.top1_difference.{key}"), Some(value), -1.0, 1.0)?;
            }
        }
        check_outputs(at, &self.outputs)?;
        for image in &self.worst_images {
            check_outputs(&format!("{at}.worst_images[{}]", image.id), &image.outputs)?;
        }
        for SizeResult { size: [height, width], latency_ms, compute_ms } in &self.sizes {
            for (key, by_batch) in [("latency_ms", latency_ms), ("compute_ms", compute_ms)] {
                for (batch, stats) in by_batch {
                    stats.check(&format!("{at}.sizes[{height}x{width}].{key}.{batch}"))?;
                }
            }
        }
        for image in &self.disagreements {
            let at = format!("{at}.disagreements[{}]", image.id);
            within(&format!("{at}.kl"), Some(image.kl), 0.0, f64::MAX)?;
            for (key, guess) in [("baseline", image.baseline), ("own", image.own)] {
                within(&format!("{at}.{key}.probability"), Some(guess.probability), 0.0, 1.0)?;
            }
        }
        for launch in self.profile.iter().flat_map(|profile| &profile.launches) {
            within(&format!("{at}.profile[{}].ms", launch.name), Some(launch.ms), 0.0, f64::MAX)?;
        }
        for site in &self.sites {
            let at = format!("{at}.sites[{}]", site.site);
            not_nan(&format!("{at}.sqnr_db"), site.sqnr_db)?;
            within(&format!("{at}.scale"), site.scale.map(f64::from), f64::MIN_POSITIVE, f64::MAX)?;
        }
        Ok(())
    }

    /// Checks that top-1 <= top-5 <= images.
    fn check_counts(&self, at: &str) -> Result<(), EvalError> {
        let counts = [("top1_correct", self.top1_correct), ("top5_correct", self.top5_correct)];
        let mut least = 0;
        for (key, count) in counts {
            let Some(count) = count else { continue };
            let field = format!("{at}.{key}");
            let Some(images) = self.images.filter(|&images| images > 0) else {
                return Err(EvalError::results(
                    field,
                    "a count needs the key `images`, which must be at least 1",
                ));
            };
            if !(least..=images).contains(&count) {
                return Err(EvalError::results(field, format!("{count} is outside {least}..={images}")));
            }
            least = count;
        }
        Ok(())
    }
}

/// Checks the figures of outputs.
fn check_outputs(at: &str, outputs: &[OutputResult]) -> Result<(), EvalError> {
    for OutputResult { name, sqnr_db, cosine, relative_error } in outputs {
        let at = format!("{at}.outputs[{name}]");
        not_nan(&format!("{at}.sqnr_db"), Some(*sqnr_db))?;
        within(&format!("{at}.cosine"), Some(*cosine), -1.0, 1.0)?;
        within(&format!("{at}.relative_error"), *relative_error, 0.0, f64::MAX)?;
    }
    Ok(())
}

impl Stats {
    fn check(&self, at: &str) -> Result<(), EvalError> {
        let Stats { median, p90, p95, p99, min, max, mean, runs: _, median_interval } = *self;
        for (key, value) in [("min", min), ("mean", mean), ("max", max)] {
            within(&format!("{at}.{key}"), Some(value), 0.0, f64::MAX)?;
        }
        if let Some([low, high]) = median_interval
            && !(min <= low && low <= median && median <= high && high <= max)
        {
            let problem = "the median lies outside its interval, or the interval outside the runs";
            return Err(EvalError::results(format!("{at}.median_interval"), problem));
        }
        let ordered = [min, median, p90, p95, p99, max];
        if ordered.windows(2).all(|pair| pair[0] <= pair[1]) {
            return Ok(());
        }
        Err(EvalError::results(at, "min, median, p90, p95, p99 and max are not in ascending order"))
    }
}

/// Refuses a value outside `low..=high`, and NaN.
fn within(field: &str, value: Option<f64>, low: f64, high: f64) -> Result<(), EvalError> {
    match value {
        Some(value) if !(low <= value && value <= high) => {
            Err(EvalError::results(field, format!("{value} is outside [{low:e}, {high:e}]")))
        }
        _ => Ok(()),
    }
}

/// Refuses NaN.
fn not_nan(field: &str, value: Option<f64>) -> Result<(), EvalError> {
    match value {
        Some(value) if value.is_nan() => Err(EvalError::results(field, "is not a number")),
        _ => Ok(()),
    }
}
