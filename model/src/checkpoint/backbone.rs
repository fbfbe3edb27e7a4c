//! The backbone that a checkpoint is: its outputs, with the norms that the file has for them.

use std::collections::BTreeSet;

use super::dialect::output_norm;
use crate::arch::{StageOutput, SwinConfig};
use crate::error::ModelError;
use crate::params::{MAX_STAGES, depths, name_list};
use crate::tensor::StateDict;

/// `config` as a backbone with the parameters `tensors`, from which those of no output are removed, and
/// remarks on what was left out.
///
/// The outputs are those of the stages `wanted`, else of the stages `stated` by the model's description, else
/// of those for which the file has norms, else of all stages in the file.
///
/// # Errors
/// [`ModelError::Config`] for no output, or for one of a stage that the network does not have.
pub(super) fn of(
    config: SwinConfig,
    wanted: Option<&[usize]>,
    stated: Option<&[usize]>,
    tensors: &mut StateDict,
) -> Result<(SwinConfig, Vec<String>), ModelError> {
    let stages_of_file = depths(tensors.keys()).len();
    // A description that has outputs ends with the last of them; the file may go on.
    let described = config.depths.len();
    let all =
        if config.outputs.is_empty() { described } else { described.max(stages_of_file.min(MAX_STAGES)) };
    let norms: BTreeSet<usize> =
        tensors.keys().filter_map(|name| output_norm(name)).filter(|&stage| stage < all).collect();
    let stages: BTreeSet<usize> = match wanted.or(stated) {
        Some(stages) => stages.iter().copied().collect(),
        None if norms.is_empty() => (0..described.min(stages_of_file)).collect(),
        None => norms.clone(),
    };
    if let Some(stage) = stages.iter().find(|&&stage| stage >= described) {
        let problem = format!("stage{} is no stage of {}, which has {described}", stage + 1, config.name);
        return Err(ModelError::config("outputs", problem));
    }
    let Some(&last) = stages.last() else {
        return Err(ModelError::config("outputs", "none; name at least one stage"));
    };
    let outputs = stages.iter().map(|&stage| StageOutput::of_stage(stage, norms.contains(&stage)));
    let is_whole = stages_of_file >= described || config.takes_tokens();
    let config = config.into_backbone(outputs.collect());
    let behind = |name: &str| {
        let stage = |stage: usize| name.starts_with(&format!("layers.{stage}."));
        (last + 1..all).any(stage) || name.starts_with(&format!("layers.{last}.downsample."))
    };
    let unused = |name: &str| output_norm(name).is_some_and(|stage| stage < all && !stages.contains(&stage));
    let mut remarks = Vec::new();
    if !is_whole {
        remarks.push(format!("the file has {stages_of_file} of the {described} stages of the architecture"));
    }
    let mut leave_out = |is: &dyn Fn(&str) -> bool, what: &str| {
        let names: Vec<String> = tensors.extract_if(.., |name, _| is(name)).map(|(name, _)| name).collect();
        if !names.is_empty() {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            remarks.push(format!("{} tensors {what} are left out: {}", names.len(), name_list(&names)));
        }
    };
    leave_out(&behind, &format!("behind the last output (stage{})", last + 1));
    leave_out(&unused, "of norms of stages that are no outputs");
    Ok((config, remarks))
}
