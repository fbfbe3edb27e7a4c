//! The judge of whether a recipe keeps the accuracy.

use swinq_model::QuantizedModel;

use super::bench::Trial;
use crate::Error;
use crate::cache::Cache;
use crate::evaluation::Evaluation;

/// The condition that a trial must keep.
pub(super) enum Judge<'a> {
    /// The top-1 accuracy of a classifier: it drops by at most so many percentage points.
    Top1(f64),
    /// The SQNR of the outputs of a backbone: at least so many dB.
    Sqnr(f64),
    /// A metric of the caller's.
    Metric(Limit<'a>),
}

/// The largest drop of a metric.
pub(super) struct Limit<'a> {
    pub(super) evaluation: Evaluation<'a>,
    /// The value of the float model.
    pub(super) float: f64,
    pub(super) max_drop: f64,
}

impl Judge<'_> {
    /// The metric of a model, if it decides.
    ///
    /// # Errors
    /// The errors of [`Evaluation::of`].
    pub(super) fn value(&mut self, model: &QuantizedModel, cache: &mut Cache) -> Result<Option<f64>, Error> {
        match self {
            Judge::Top1(_) | Judge::Sqnr(_) => Ok(None),
            Judge::Metric(limit) => limit.evaluation.of(Some(model), cache).map(Some),
        }
    }

    /// Whether a trial keeps the accuracy. The drop of the top-1 accuracy has a margin of its standard error:
    /// without it, a search on few images would stop at a recipe that has only been lucky. The standard error
    /// of another metric is not known.
    pub(super) fn keeps(&self, trial: &Trial) -> bool {
        match self {
            // The tolerance is far below the share of one image.
            Judge::Top1(max_drop) => trial.difference.is_some_and(|difference| {
                let drop = trial.sums.top1_standard_error() - difference.difference;
                100.0 * drop <= max_drop + 1e-9
            }),
            Judge::Sqnr(least) => trial.sums.effect().sqnr_db >= *least,
            Judge::Metric(limit) => trial.value.is_some_and(|value| limit.keeps(value)),
        }
    }

    /// How close a trial is to the float model, before its SQNR counts, with the margin of [`Judge::keeps`].
    /// More is closer.
    pub(super) fn closeness(&self, trial: &Trial) -> f64 {
        match self {
            Judge::Top1(_) => trial
                .difference
                .map_or(0.0, |difference| difference.difference - trial.sums.top1_standard_error()),
            Judge::Sqnr(_) => 0.0,
            Judge::Metric(_) => trial.value.unwrap_or(f64::NEG_INFINITY),
        }
    }

    /// The accuracy of a trial that is kept, for a choice between several: the value of a metric of the
    /// caller's, then the SQNR. More is better. Top-1 on the search images does not count, because the
    /// differences between recipes that keep it are chance.
    pub(super) fn accuracy(&self, trial: &Trial) -> [f64; 2] {
        [trial.value.unwrap_or_default(), trial.sums.effect().sqnr_db]
    }
}

impl Limit<'_> {
    /// Whether `value` is at most the largest drop below the float model's. The tolerance is that of the
    /// rounding of the difference.
    fn keeps(&self, value: f64) -> bool {
        self.float - value <= self.max_drop + 1e-12 * (self.float.abs() + value.abs())
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;

    #[test]
    fn a_drop_of_exactly_the_limit_is_kept() {
        let mut evaluate = |_: Option<&crate::Model>| ControlFlow::Continue(0.0);
        let (metric, context) = (String::new(), String::new());
        let evaluation = Evaluation { metric, context, evaluate: &mut evaluate };
        let limit = Limit { evaluation, float: 0.4638, max_drop: 0.005 };
        // In f64 the difference is 0.0050000000000000044.
        assert!(limit.keeps(0.4588) && limit.keeps(0.5) && !limit.keeps(0.45879));
    }
}
