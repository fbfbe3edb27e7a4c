//! Evaluation in shards.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};
use swinq_eval::{
    Accuracy, Collected, DataInfo, Environment, EvalError, MapErrors, ModelResult, Precision, Results, part,
};
use swinq_model::part::{PartFile, PartKind, PartSet, PartTensors, Shard};

use super::{ImageSet, Part, check_names, version};
use crate::evaluate::predictions::write_csv;
use crate::evaluate::{check_alike, data_info, environment, maps, numbered};
use crate::{Candidate, Error, EvaluateOptions, Images, Observer, Predicted};

/// The facts that all parts of an evaluation share.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Run {
    swinq: String,
    models: Vec<Evaluated>,
    images: ImageSet,
    /// Number of classes of the models; 0 for backbones.
    classes: usize,
    /// Names of the outputs of backbones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    outputs: Vec<String>,
    /// The sizes that images get before backbones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sizing: Option<String>,
    /// Whether the images have labels.
    labelled: bool,
    /// Whether the noise of sites was to be measured.
    sites: bool,
}

/// A model of the evaluation, and its runner.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Evaluated {
    hash: String,
    /// Preprocessing, in words.
    transform: String,
    precision: Precision,
    backend: String,
}

/// The facts of one part alone.
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
    /// The result of [`evaluate`](crate::evaluate()) for all images, without latency, times and memory. The
    /// environment is that of the first shard.
    pub results: Results,
    /// The accuracy of each model; empty for images without labels.
    pub accuracies: Vec<Accuracy>,
    /// The error messages of the corrupt images that were left out.
    pub skipped: Vec<String>,
    /// Number of classes of the models; 0 for backbones.
    pub classes: usize,
    predicted: Vec<Predicted>,
    names: BTreeMap<usize, String>,
}

impl MergedEvaluation {
    /// Writes the file that [`write_predictions`](crate::write_predictions) writes.
    ///
    /// # Errors
    /// [`Error::Argument`] for backbones; an error if `path` cannot be written.
    pub fn write_predictions(&self, path: &Path) -> Result<(), Error> {
        if self.predicted.is_empty() {
            return Err(Error::argument("parts", "are of backbones, which predict no classes"));
        }
        let labels: Vec<String> = self.results.models.iter().map(ModelResult::label).collect();
        let predicted: Vec<&Predicted> = self.predicted.iter().collect();
        write_csv(path, &labels, &predicted, &|id| name_in(&self.names, id))
    }
}

/// The name of image `id`.
fn name_in(names: &BTreeMap<usize, String>, id: usize) -> String {
    names.get(&id).cloned().unwrap_or_default()
}

/// Does what [`evaluate`](crate::evaluate()) does with the images of one shard of `images`, without figures
/// and without latency. [`merge_evaluation`] makes the results of the parts. `notes` are remarks for the
/// reader of the results, and `command` is the command line, which the results keep.
///
/// # Errors
/// Those of [`evaluate`](crate::evaluate()) and of [`Images::shard`]; [`Error::Argument`] for a candidate
/// whose model is not known ([`Candidate::with_hash_of`]).
pub fn evaluate_shard(
    candidates: &mut [Candidate],
    images: &Images,
    shard: Shard,
    options: &EvaluateOptions,
    notes: &[String],
    command: Option<String>,
    observer: &mut dyn Observer,
) -> Result<Part, Error> {
    check_alike(candidates)?;
    let (images, remark) = &numbered(candidates, images)?;
    let own_images = images.shard(shard, options.read.batch_size)?;
    let config = candidates[0].config();
    let run = Run {
        swinq: version(),
        models: candidates.iter().map(evaluated).collect::<Result<_, _>>()?,
        images: ImageSet::of(images, &options.read),
        classes: if config.is_backbone() { 0 } else { candidates[0].classes() },
        outputs: config.outputs.iter().map(|output| output.name.clone()).collect(),
        sizing: config.is_backbone().then(|| options.sizing.to_string()),
        labelled: images.has_labels(),
        sites: options.site_noise,
    };
    if let Some(remark) = remark {
        observer.remark(remark);
    }
    let environment = environment(options.threads)?;
    let (found, skipped) = ModelOutputs::of(candidates, &own_images, options, observer)?;
    candidates.iter().for_each(|candidate| observer.evaluated(&candidate.result, None, &skipped));
    images.turned().iter().for_each(|turned| observer.remark(turned));
    if options.site_noise && shard.index == 1 {
        crate::evaluate::site_noise::measure_all(candidates, images, options.sizing, observer)?;
    }
    let (tensors, ids) = (found.tensors()?, found.ids());
    let own = Own {
        images: ids.iter().map(|&id| images.name_of(id)).collect(),
        skipped,
        models: candidates.iter().map(|candidate| candidate.result.clone()).collect(),
        environment,
        data: data_info(candidates, images, options.sizing),
        notes: remark.iter().chain(notes).cloned().collect(),
        command,
    };
    let part = Part::new(PartKind::Evaluation, shard, &run, &own, tensors)?;
    Ok(Part { images: ids.len(), skipped: own.skipped, ..part })
}

/// The outputs of models for images, from which all figures follow.
enum ModelOutputs {
    /// The logits of every classifier.
    Logits(Vec<Collected>),
    /// The distances of the feature maps of every backbone but the first.
    Maps(Vec<MapErrors>),
}

impl ModelOutputs {
    /// Runs the candidates. Returns what they found, and the error messages of the corrupt images that were
    /// left out.
    fn of(
        candidates: &[Candidate],
        images: &Images,
        options: &EvaluateOptions,
        observer: &mut dyn Observer,
    ) -> Result<(ModelOutputs, Vec<String>), Error> {
        if candidates[0].config().is_backbone() {
            let compared = maps::compare(candidates, images, options, observer)?;
            return Ok((ModelOutputs::Maps(compared.errors), compared.skipped));
        }
        let (mut collected, mut skipped) = (Vec::new(), Vec::new());
        for candidate in candidates {
            let found: Collected;
            (found, skipped) = candidate.run(images, &options.read, observer)?;
            collected.push(found);
        }
        Ok((ModelOutputs::Logits(collected), skipped))
    }

    /// Nothing yet of the models of `run`.
    fn nothing(run: &Run) -> ModelOutputs {
        if run.outputs.is_empty() {
            return ModelOutputs::Logits(part::nothing(run.models.len(), run.classes));
        }
        let others = run.models.len().saturating_sub(1);
        ModelOutputs::Maps(vec![MapErrors::of_outputs(run.outputs.clone()); others])
    }

    /// Positions of the images in the data set's list.
    fn ids(&self) -> Vec<usize> {
        match self {
            ModelOutputs::Logits(all) => all.first().map_or(Vec::new(), |first| first.ids.clone()),
            ModelOutputs::Maps(all) => {
                let images = all.iter().take(1).flat_map(MapErrors::images);
                images.map(|image| image.id).collect()
            }
        }
    }

    fn tensors(&self) -> Result<PartTensors, EvalError> {
        match self {
            ModelOutputs::Logits(all) => part::tensors(all),
            ModelOutputs::Maps(all) => part::map_tensors(all),
        }
    }

    /// Adds the images of a part, and returns their positions.
    fn append(&mut self, file: &PartFile, run: &Run) -> Result<Vec<usize>, EvalError> {
        match self {
            ModelOutputs::Logits(all) => {
                let images = part::append(all, &file.tensors(), run.labelled)?;
                let ids = all.first().map_or(&[][..], |first| &first.ids[..]);
                Ok(ids[ids.len() - images..].to_vec())
            }
            ModelOutputs::Maps(all) => part::append_maps(all, &file.tensors()),
        }
    }

    /// Stores the figures of all images in `models`, and returns the accuracies.
    fn store(
        &mut self,
        models: &mut [ModelResult],
        name_of: &dyn Fn(usize) -> String,
    ) -> Result<Vec<Accuracy>, EvalError> {
        let mut accuracies = Vec::new();
        match self {
            ModelOutputs::Logits(all) => {
                for (model, collected) in models.iter_mut().zip(&*all) {
                    accuracies.extend(model.set_own_figures(collected)?);
                }
                let (baseline, others) = all.split_first().expect("an evaluation has a model");
                for (model, collected) in models[1..].iter_mut().zip(others) {
                    model.set_figures_against(baseline, collected, name_of)?;
                }
            }
            ModelOutputs::Maps(all) => {
                all.iter_mut().for_each(MapErrors::sort);
                models[0].images = all.first().map(|errors| errors.images().len());
                for (model, errors) in models[1..].iter_mut().zip(all) {
                    model.set_maps_against(errors, name_of)?;
                }
            }
        }
        Ok(accuracies)
    }

    /// The classes that classifiers predict.
    fn predicted(&self) -> Vec<Predicted> {
        match self {
            ModelOutputs::Logits(all) => all.iter().map(Predicted::of).collect(),
            ModelOutputs::Maps(_) => Vec::new(),
        }
    }
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

/// Merges the parts of an evaluation. Every figure is that of [`evaluate`](crate::evaluate()) on all images,
/// bit for bit.
///
/// # Errors
/// [`Error::Argument`] for parts of a calibration, and for more corrupt images than allowed; [`Error::Model`]
/// for a part that cannot be read or is damaged; [`Error::Eval`] for figures that are impossible.
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
    found: Option<ModelOutputs>,
    names: BTreeMap<usize, String>,
    skipped: Vec<String>,
    commands: Vec<String>,
    machines: BTreeSet<String>,
}

impl Merging {
    fn add(&mut self, file: &PartFile) -> Result<(), Error> {
        let (run, own): (Run, Own) = (file.run()?, file.own()?);
        let found = self.found.get_or_insert_with(|| ModelOutputs::nothing(&run));
        let ids = found.append(file, &run)?;
        check_names(file, &own.images, ids.len())?;
        for (id, name) in ids.into_iter().zip(&own.images) {
            if self.names.insert(id, name.clone()).is_some() {
                let problem = format!("has image {id}, which another part has, too; run this shard again");
                return Err(swinq_model::ModelError::file(file.path(), problem).into());
            }
        }
        self.skipped.extend(own.skipped.iter().cloned());
        self.commands.extend(own.command.iter().cloned());
        self.machines.insert(machine(&own.environment));
        if self.first.is_none() {
            if own.models.len() != run.models.len() || own.models.is_empty() {
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
        let mut found = self.found.expect("a set has a part");
        let mut models = own.models;
        let accuracies = found.store(&mut models, &|id| name_in(&self.names, id))?;
        let mut results = Results::new(own.environment);
        results.models = models;
        results.data = Some(own.data);
        results.notes = own.notes;
        results.notes.push(remark(count, &self.machines));
        results.commands = self.commands;
        results.check()?;
        let predicted = found.predicted();
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
