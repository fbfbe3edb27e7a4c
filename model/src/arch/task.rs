//! The task of a network: the scores of classes, or feature maps of its stages.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::SwinConfig;
use crate::error::ModelError;

/// The task of a network. The names are those in files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// One vector of scores for each image: a classifier.
    #[default]
    Classification,
    /// Feature maps of stages ([`StageOutput`]): the backbone of a larger model.
    Features,
}

/// The input of a network. The names are those in files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// Images, which a patch embedding turns into tokens.
    #[default]
    Images,
    /// The tokens themselves: a grid of them is an image of patches of one pixel, with a channel for each of
    /// the first stage. The network is a stack of blocks of a larger model, and it is a backbone whose
    /// outputs have no norm. A stage before its first blocks, or behind its last ones, has none: the merging
    /// of patches before or behind the stack. Bytes stand for tokens as for pixels: the transform of the
    /// model gives their values.
    Tokens,
}

impl Input {
    pub(super) fn is_images(&self) -> bool {
        *self == Input::Images
    }
}

impl Task {
    pub(super) fn is_classification(&self) -> bool {
        *self == Task::Classification
    }
}

/// A feature map of a backbone: the tokens behind the last block of a stage, before merging.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct StageOutput {
    /// The name by which callers ask for it: 1 to 64 letters, digits and `_`.
    pub name: String,
    /// The stage, from 0.
    pub stage: usize,
    /// Whether a LayerNorm follows, with the parameters `norm{stage}.weight` and `norm{stage}.bias`. The next
    /// stage reads the tokens without it.
    pub norm: bool,
}

/// An output in files, which state its kind.
#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
enum Stored {
    Stage { name: String, stage: usize, norm: bool },
}

impl From<Stored> for StageOutput {
    fn from(Stored::Stage { name, stage, norm }: Stored) -> StageOutput {
        StageOutput { name, stage, norm }
    }
}

impl From<StageOutput> for Stored {
    fn from(StageOutput { name, stage, norm }: StageOutput) -> Stored {
        Stored::Stage { name, stage, norm }
    }
}

impl StageOutput {
    /// The output of stage `stage`, counted from 0, under its usual name: `stage1` for the first stage.
    pub fn of_stage(stage: usize, norm: bool) -> StageOutput {
        StageOutput { name: StageOutput::usual_name(stage), stage, norm }
    }

    /// The usual name of stage `stage`, counted from 0: `stage1` for the first one. Messages name stages so,
    /// too.
    pub fn usual_name(stage: usize) -> String {
        format!("stage{}", stage + 1)
    }

    /// The stage whose output has the usual name `name`.
    pub fn stage_of(name: &str) -> Option<usize> {
        name.strip_prefix("stage")?.parse::<usize>().ok()?.checked_sub(1)
    }

    /// Name of the module of the LayerNorm, if there is one.
    pub fn norm_name(&self) -> Option<String> {
        self.norm.then(|| format!("norm{}", self.stage))
    }
}

/// The meaning of a classifier's logits (`problem_type` of transformers).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Problem {
    /// The image is of one class.
    #[default]
    SingleLabel,
    /// Each class is there or is not.
    MultiLabel,
    /// The logits are the numbers that are asked for.
    Regression,
}

impl Problem {
    pub(crate) fn is_single_label(&self) -> bool {
        *self == Problem::SingleLabel
    }
}

/// The function that turns a classifier's logits into scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scores {
    /// Probabilities of classes that exclude each other.
    Softmax,
    /// A probability for each class.
    Sigmoid,
    /// The logits themselves.
    Number,
}

impl SwinConfig {
    /// The function that turns the logits into scores. A single logit is that of a class that is there or is
    /// not; softmax would make it 1.
    pub fn scores(&self) -> Scores {
        match self.problem {
            Problem::Regression => Scores::Number,
            Problem::SingleLabel if self.num_classes > 1 => Scores::Softmax,
            Problem::SingleLabel | Problem::MultiLabel => Scores::Sigmoid,
        }
    }

    /// Whether the network is a backbone, which computes feature maps.
    pub fn is_backbone(&self) -> bool {
        self.task == Task::Features
    }

    /// Whether the network is a stack of blocks, which takes tokens.
    pub fn takes_tokens(&self) -> bool {
        self.input == Input::Tokens
    }

    /// The output of stage `stage`, if the network is a backbone that has one.
    pub fn output_of(&self, stage: usize) -> Option<&StageOutput> {
        self.outputs.iter().find(|output| output.stage == stage)
    }

    /// This architecture as a backbone with these `outputs`. Stages behind the last output do not exist.
    pub fn into_backbone(mut self, outputs: Vec<StageOutput>) -> SwinConfig {
        let stages = outputs.last().map_or(0, |output| output.stage + 1);
        self.depths.truncate(stages);
        self.num_heads.truncate(stages);
        self.pretrained_window_sizes.truncate(stages);
        self.window_size = self.window_size.of_first(stages);
        let problem = Problem::default();
        SwinConfig { task: Task::Features, outputs, num_classes: 0, problem, ..self }
    }

    /// Checks that classes and outputs are those of the task.
    pub(super) fn check_outputs(&self) -> Result<(), ModelError> {
        let wrong = |problem: String| Err(ModelError::config("outputs", problem));
        match self.task {
            Task::Classification if self.outputs.is_empty() => return Ok(()),
            Task::Classification => return wrong("a classifier has no feature maps".to_owned()),
            Task::Features if self.num_classes != 0 => {
                let problem = format!("{}, but a backbone has no classes", self.num_classes);
                return Err(ModelError::config("MODEL.NUM_CLASSES", problem));
            }
            Task::Features => {}
        }
        let last = self.depths.len() - 1;
        if !self.outputs.is_sorted_by(|a, b| a.stage < b.stage) {
            return wrong("the stages of the outputs do not ascend".to_owned());
        }
        if self.outputs.last().is_none_or(|output| output.stage != last) {
            return wrong(format!("the last output is not that of the last stage, {last}"));
        }
        let well_formed = |name: &str| {
            (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        };
        if let Some(output) = self.outputs.iter().find(|output| !well_formed(&output.name)) {
            return wrong(format!("{:?} is not a name of 1 to 64 letters, digits and _", output.name));
        }
        let names: BTreeSet<&str> = self.outputs.iter().map(|output| &output.name[..]).collect();
        if names.len() != self.outputs.len() {
            return wrong("two outputs have one name".to_owned());
        }
        Ok(())
    }
}
