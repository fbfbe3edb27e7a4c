//! The outputs that a measurement compares: the logits of a classifier, or feature maps of a backbone.

use std::borrow::Cow;

use swinq_eval::{EffectSums, EvalError, ImageNoise};
use swinq_model::{Logits, SwinConfig};

use crate::Error;

/// The outputs of a network for some images: of each f32 `[images, values]`.
pub(crate) type Outputs = Vec<Vec<f32>>;

/// The outputs that a run from within the network computes. Those before are complete where it starts.
pub(crate) struct Computed {
    /// Index of the first output.
    pub(crate) first: usize,
    pub(crate) values: Outputs,
}

impl Computed {
    /// All outputs: those before the first are `complete`.
    pub(crate) fn with<'a>(&'a self, complete: &[&'a [f32]]) -> Vec<Cow<'a, [f32]>> {
        let before = complete[..self.first].iter().map(|output| Cow::Borrowed(*output));
        before.chain(self.values.iter().map(|output| Cow::Borrowed(&output[..]))).collect()
    }
}

/// The measure of a change's effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Metric {
    /// Logits of so many classes.
    Logits(usize),
    /// The outputs with these indices and names.
    Maps(Vec<(usize, String)>),
}

impl Metric {
    /// The metric of a network of the architecture `config`. `chosen` names the outputs of a backbone that
    /// count; if empty, all count.
    ///
    /// # Errors
    /// [`Error::Argument`] for outputs that the network does not have.
    pub(crate) fn new(config: &SwinConfig, chosen: &[String]) -> Result<Metric, Error> {
        let name = &config.name;
        if !config.is_backbone() {
            let problem = format!("{name} is a classifier, which has no feature maps to choose from");
            return match chosen {
                [] => Ok(Metric::Logits(config.num_classes)),
                _ => Err(Error::argument("sqnr_of", problem)),
            };
        }
        let names: Vec<&str> = config.outputs.iter().map(|output| &output.name[..]).collect();
        if let Some(unknown) = chosen.iter().find(|chosen| !names.contains(&&chosen[..])) {
            let problem = format!("{name} has no output {unknown}; its outputs are {}", names.join(", "));
            return Err(Error::argument("sqnr_of", problem));
        }
        let counts = |name: &str| chosen.is_empty() || chosen.iter().any(|chosen| chosen == name);
        let indices = names.into_iter().enumerate().filter(|(_, name)| counts(name));
        Ok(Metric::Maps(indices.map(|(index, name)| (index, name.to_owned())).collect()))
    }

    /// The distance of the outputs `own` of `images` images from `reference`. `labels` are the classes of the
    /// images, or empty.
    ///
    /// # Errors
    /// Those of [`EffectSums::add`].
    pub(crate) fn sums(
        &self,
        reference: &[&[f32]],
        own: &[Cow<'_, [f32]>],
        (images, labels): (usize, &[u32]),
    ) -> Result<EffectSums, EvalError> {
        let mut sums = EffectSums::default();
        match self {
            Metric::Logits(classes) => {
                let logits = |values: &[f32]| Logits { values: values.to_vec(), classes: *classes };
                sums.add(&logits(reference[0]), &logits(&own[0]), labels)?;
            }
            Metric::Maps(chosen) => {
                let pairs = chosen.iter().map(|(index, name)| (&name[..], reference[*index], &*own[*index]));
                sums.add_maps(images, pairs)?;
            }
        }
        Ok(sums)
    }
}

impl Metric {
    /// The noise of each of `images` images at the outputs that count.
    ///
    /// # Errors
    /// Those of [`ImageNoise::of`].
    pub(crate) fn noise(
        &self,
        reference: &[&[f32]],
        own: &[Cow<'_, [f32]>],
        images: usize,
    ) -> Result<ImageNoise, EvalError> {
        let outputs = match self {
            Metric::Logits(_) => vec![0],
            Metric::Maps(chosen) => chosen.iter().map(|(index, _)| *index).collect(),
        };
        ImageNoise::of(images, outputs.into_iter().map(|index| (reference[index], &*own[index])))
    }
}

/// The first `images` of `all` images in each of `outputs`.
pub(crate) fn first_of(outputs: &Outputs, images: usize, all: usize) -> Vec<&[f32]> {
    outputs.iter().map(|output| &output[..output.len() / all * images]).collect()
}

#[cfg(test)]
mod tests {
    use swinq_model::StageOutput;

    use super::*;

    #[test]
    fn outputs_that_do_not_exist_are_named() {
        let classifier = SwinConfig::official("swin_tiny_patch4_window7_224").unwrap();
        assert_eq!(Metric::new(&classifier, &[]).unwrap(), Metric::Logits(1000));
        let stage = |stage: usize| StageOutput::of_stage(stage, true);
        let backbone = classifier.clone().into_backbone(vec![stage(1), stage(3)]);
        let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let all = Metric::Maps(vec![(0, "stage2".to_owned()), (1, "stage4".to_owned())]);
        assert_eq!(Metric::new(&backbone, &[]).unwrap(), all);
        let last = Metric::Maps(vec![(1, "stage4".to_owned())]);
        assert_eq!(Metric::new(&backbone, &named(&["stage4"])).unwrap(), last);
        let error = Metric::new(&backbone, &named(&["stage3"])).unwrap_err().to_string();
        assert!(error.contains("no output stage3; its outputs are stage2, stage4"), "{error}");
        assert!(
            Metric::new(&classifier, &named(&["stage4"])).unwrap_err().to_string().contains("classifier")
        );
    }

    #[test]
    fn only_chosen_outputs_count_and_complete_ones_are_those_of_the_base() {
        let reference: [&[f32]; 2] = [&[1.0, 1.0], &[2.0]];
        let computed = Computed { first: 1, values: vec![vec![2.2]] };
        let own = computed.with(&[&[1.5, 1.0], &[9.0]]);
        let sums = |chosen: &[(usize, &str)]| {
            let chosen = chosen.iter().map(|(index, name)| (*index, (*name).to_owned())).collect();
            Metric::Maps(chosen).sums(&reference, &own, (1, &[])).unwrap().effect()
        };
        let (both, second) = (sums(&[(0, "a"), (1, "b")]), sums(&[(1, "b")]));
        assert!((second.sqnr_db - 20.0).abs() < 1e-4, "{second:?}");
        assert!((both.sqnr_db - 10.0 * 8f64.log10()).abs() < 1e-9 && both.outputs.len() == 2, "{both:?}");
    }
}
