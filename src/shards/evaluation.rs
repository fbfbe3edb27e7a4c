//! Evaluation in shards.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};
use swinq_eval::{Accuracy, Collected, DataInfo, Environment, ModelResult, Precision, Results};
use swinq_model::part::{PartFile, PartKind, PartSet, Shard};

use super::{ImageSet, Part, check_names, version};
use crate::evaluate::predictions::write_csv;
use crate::evaluate::{check_classes, data_info, environment, numbered};
use crate::{Candidate, Error, EvaluateOptions, Images, Observer, Predicted};

/// What all parts of an evaluation have in common.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Run {
    swinq: String,
    models: Vec<Evaluated>,
    images: ImageSet,
    /// Number of classes of the models.
    classes: usize,
    /// Whether the images have labels.
    labelled: bool,
    /// Whether the noise of sites was to be measured.
    sites: bool,
}

/// A model of the evaluation, and what ran it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Evaluated {
    hash: String,
    /// Preprocessing, in words.
    transform: String,
    precision: Precision,
    backend: String,
}

/// What only one part has.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Own {
    /// Names of the images, in the order of use.
    images: Vec<String>,
    skipped: Vec<String>,
    /// The models, without figures of images. The first part has the noise of sites.
    models: Vec<ModelResult>,
    environment: Environment,
    data: DataInfo,
    notes: Vec<String>,
    /// The command line, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    command: Option<String>,
}

/// An evaluation that was merged from parts.
#[derive(Debug)]
pub struct MergedEvaluation {
    /// What [`evaluate`](crate::evaluate()) would return for all images, without latency, times and memory. The environment
    /// is that of the first shard.
    pub results: Results,
    /// The accuracy of each model; empty for images without labels.
    pub accuracies: Vec<Accuracy>,
    /// The error messages of the corrupt images that were left out.
    pub skipped: Vec<String>,
    /// Number of classes of the models.
    pub classes: usize,
    predicted: Vec<Predicted>,
    names: BTreeMap<usize, String>,
}

impl MergedEvaluation {
    /// Writes the file that [`write_predictions`](crate::write_predictions) writes.
    ///
    /// # Errors
    /// An error if `path` cannot be written.
    pub fn write_predictions(&self, path: &Path) -> Result<(), Error> {
        let labels: Vec<String> = self.results.models.iter().map(ModelResult::label).collect();
        let predicted: Vec<&Predicted> = self.predicted.iter().collect();
        write_csv(path, &labels, &predicted, &|id| name_in(&self.names, id))
    }
}

/// The name of image `id`.
fn name_in(names: &BTreeMap<usize, String>, id: usize) -> String {
    names.get(&id).cloned().unwrap_or_default()
}

/// Does what [`evaluate`](crate::evaluate()) does with the images of one shard of `images`, without figures and without
/// latency. [`merge_evaluation`] makes the results of the parts. `notes` are remarks for the reader of the results, and
/// `command` is the command line, which the results keep.
///
/// # Errors
/// Those of [`evaluate`](crate::evaluate()) and of [`Images::shard`]; [`Error::Argument`] for a candidate whose model is not
/// known ([`Candidate::with_hash_of`]).
pub fn evaluate_shard(
    candidates: &mut [Candidate],
    images: &Images,
    shard: Shard,
    options: &EvaluateOptions,
    notes: &[String],
    command: Option<String>,
    observer: &mut dyn Observer,
) -> Result<Part, Error> {
    check_classes(candidates)?;
    let (images, remark) = &numbered(candidates, images)?;
    let own_images = images.shard(shard, options.read.batch_size)?;
    let run = Run {
        swinq: version(),
        models: candidates.iter().map(evaluated).collect::<Result<_, _>>()?,
        images: ImageSet::of(images, &options.read),
        classes: candidates[0].classes(),
        labelled: images.has_labels(),
        sites: options.site_noise,
    };
    if let Some(remark) = remark {
        observer.remark(remark);
    }
    let environment = environment(options.threads)?;
    let (mut collected, mut skipped) = (Vec::new(), Vec::new());
    for candidate in candidates.iter_mut() {
        let found: Collected;
        (found, skipped) = candidate.run(&own_images, &options.read, observer)?;
        observer.evaluated(&candidate.result, None, &skipped);
        collected.push(found);
    }
    if options.site_noise && shard.index == 1 {
        crate::evaluate::site_noise::measure_all(candidates, images, observer)?;
    }
    let tensors = swinq_eval::part::tensors(&collected)?;
    let ids = &collected[0].ids;
    let own = Own {
        images: ids.iter().map(|&id| images.name_of(id)).collect(),
        skipped,
        models: candidates.iter().map(|candidate| candidate.result.clone()).collect(),
        environment,
        data: data_info(candidates, images),
        notes: remark.iter().chain(notes).cloned().collect(),
        command,
    };
    let part = Part::new(PartKind::Evaluation, shard, &run, &own, tensors)?;
    Ok(Part { images: ids.len(), skipped: own.skipped, ..part })
}

fn evaluated(candidate: &Candidate) -> Result<Evaluated, Error> {
    let problem = || {
        let problem = format!(
            "{} has no hash, by which parts are told apart; call with_hash_of",
            candidate.result.name
        );
        Error::argument("candidates", problem)
    };
    let hash = candidate.fingerprint().ok_or_else(problem)?.to_owned();
    let ModelResult { precision, backend, .. } = &candidate.result;
    let (precision, backend) = (*precision, backend.clone());
    Ok(Evaluated { hash, transform: candidate.transform().to_string(), precision, backend })
}

/// Merges the parts of an evaluation. Every figure is that of [`evaluate`](crate::evaluate()) on all images, bit for bit.
///
/// # Errors
/// [`Error::Argument`] for parts of a calibration, and for more corrupt images than allowed; [`Error::Model`] for a part
/// that cannot be read or is damaged; [`Error::Eval`] for figures that are impossible.
pub fn merge_evaluation(parts: &PartSet) -> Result<MergedEvaluation, Error> {
    if parts.kind() != PartKind::Evaluation {
        return Err(Error::argument("parts", format!("are parts of {}, not of an evaluation", parts.kind())));
    }
    let mut merging = Merging::default();
    for file in parts.files() {
        merging.add(&file?)?;
    }
    merging.finish(parts.count())
}

/// The parts so far.
#[derive(Default)]
struct Merging {
    first: Option<(Run, Own)>,
    collected: Vec<Collected>,
    names: BTreeMap<usize, String>,
    skipped: Vec<String>,
    commands: Vec<String>,
    machines: BTreeSet<String>,
}

impl Merging {
    fn add(&mut self, file: &PartFile) -> Result<(), Error> {
        let (run, own): (Run, Own) = (file.run()?, file.own()?);
        if self.collected.is_empty() {
            self.collected = swinq_eval::part::nothing(run.models.len(), run.classes);
        }
        let images = swinq_eval::part::append(&mut self.collected, &file.tensors(), run.labelled)?;
        check_names(file, &own.images, images)?;
        let ids = self.collected.first().map_or(&[][..], |all| &all.ids[all.ids.len() - images..]);
        for (&id, name) in ids.iter().zip(&own.images) {
            if self.names.insert(id, name.clone()).is_some() {
                let problem = format!("has image {id}, which another part has, too; run this shard again");
                return Err(swinq_model::ModelError::file(file.path(), problem).into());
            }
        }
        self.skipped.extend(own.skipped.iter().cloned());
        self.commands.extend(own.command.iter().cloned());
        self.machines.insert(machine(&own.environment));
        if self.first.is_none() {
            if own.models.len() != run.models.len() {
                let problem = "has results of other models than it states; run this shard again";
                return Err(swinq_model::ModelError::file(file.path(), problem).into());
            }
            self.first = Some((run, own));
        }
        Ok(())
    }

    fn finish(self, count: usize) -> Result<MergedEvaluation, Error> {
        let (run, own) = self.first.expect("a set has a part");
        run.images.check_skipped(&self.skipped)?;
        let mut models = own.models;
        let mut accuracies = Vec::new();
        for (model, collected) in models.iter_mut().zip(&self.collected) {
            accuracies.extend(model.set_own_figures(collected)?);
        }
        let name_of = |id| name_in(&self.names, id);
        let (baseline, others) = self.collected.split_first().expect("an evaluation has a model");
        for (model, collected) in models[1..].iter_mut().zip(others) {
            model.set_figures_against(baseline, collected, &name_of)?;
        }
        let mut results = Results::new(own.environment);
        results.models = models;
        results.data = Some(own.data);
        results.notes = own.notes;
        results.notes.push(remark(count, &self.machines));
        results.commands = self.commands;
        results.check()?;
        let predicted = self.collected.iter().map(Predicted::of).collect();
        let Merging { skipped, names, .. } = self;
        Ok(MergedEvaluation { results, accuracies, skipped, classes: run.classes, predicted, names })
    }
}

/// The remark on results that were merged.
fn remark(count: usize, machines: &BTreeSet<String>) -> String {
    let shards = if count == 1 { "1 shard" } else { &format!("{count} shards") };
    let mut text = format!(
        "merged from {shards}; latency was not measured (`swinq bench` measures it), and the machine stated is that of shard 1"
    );
    if machines.len() > 1 {
        let all: Vec<&str> = machines.iter().map(String::as_str).collect();
        text += &format!("; the shards ran on {}", all.join(" and "));
    }
    text
}

/// The processor of a shard, in words.
fn machine(environment: &Environment) -> String {
    let cpu = environment.cpu.as_deref().unwrap_or(&environment.arch);
    let isa = environment.isa.as_deref().map_or(String::new(), |isa| format!(" ({isa})"));
    format!("{cpu}{isa}")
}
