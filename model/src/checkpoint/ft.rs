//! Ranges from FasterTransformer's calibrated checkpoints (`*_calib.pth`).
//!
//! | FasterTransformer's quantizer | site |
//! | --- | --- |
//! | `M._input_quantizer`, `M._weight_quantizer`, `M._aftergemm_quantizer` | `M.input`, `M.weight`, `M.output` |
//! | `B.attn.matmul_{q,k,v}_input_quantizer` | `B.attn.{q,k,v}` |
//! | `B.attn.softmax_input_quantizer` | `B.attn.scores` |
//! | `B.attn.matmul_a_input_quantizer` | `B.attn.probs` |
//! | `B.add1_local_input_quantizer`, `B.add1_residual_input_quantizer` | `B.attn.add.branch`, `B.attn.add.shortcut` |
//! | `B.add2_local_input_quantizer`, `B.add2_residual_input_quantizer` | `B.mlp.add.branch`, `B.mlp.add.shortcut` |
//! | `B.layernorm_input1_quantizer`, `B.layernorm_input2_quantizer` | none: the residual stream is not quantized |
//!
//! `M` is a linear layer (`layers.0.blocks.1.mlp.fc1`), `B` a block (`layers.0.blocks.1`).

use std::collections::BTreeMap;
use std::path::Path;

use super::dialect::Dialect;
use super::file::{CheckpointFile, names_of};
use super::network::Network;
use super::raw::RawTensor;
use crate::arch::{SwinConfig, SwinVersion, Task};
use crate::error::ModelError;
use crate::quantized::check_range;
use crate::site::{BlockId, Branch, Operand, Site, all_sites};

const SUFFIX: &str = "_quantizer._amax";

/// FasterTransformer's tensor name for the range of `site`.
pub fn ft_key(site: Site) -> String {
    let attention = |b: BlockId, quantizer: &str| format!("{b}.attn.{quantizer}_input{SUFFIX}");
    match site {
        Site::Input(linear) => format!("{linear}._input{SUFFIX}"),
        Site::Weight(linear) => format!("{linear}._weight{SUFFIX}"),
        Site::Output(linear) => format!("{linear}._aftergemm{SUFFIX}"),
        Site::Q(b) => attention(b, "matmul_q"),
        Site::K(b) => attention(b, "matmul_k"),
        Site::V(b) => attention(b, "matmul_v"),
        Site::Scores(b) => attention(b, "softmax"),
        Site::Probs(b) => attention(b, "matmul_a"),
        Site::Add(b, branch, operand) => {
            let number = if branch == Branch::Attn { 1 } else { 2 };
            let operand = if operand == Operand::Branch { "local" } else { "residual" };
            format!("{b}.add{number}_{operand}_input{SUFFIX}")
        }
    }
}

/// The site whose range has FasterTransformer's tensor name `key`; `None` for other names.
pub fn ft_site(key: &str) -> Option<Site> {
    let (module, quantizer) = key.strip_suffix(SUFFIX)?.rsplit_once('.')?;
    let block = || format!("{module}.attn.q").parse().ok().and_then(block_of);
    let attention = || format!("{module}.q").parse().ok().and_then(block_of);
    let add = |branch, operand| block().map(|b| Site::Add(b, branch, operand));
    match quantizer {
        "_input" => format!("{module}.input").parse().ok(),
        "_weight" => format!("{module}.weight").parse().ok(),
        "_aftergemm" => format!("{module}.output").parse().ok(),
        "matmul_q_input" => attention().map(Site::Q),
        "matmul_k_input" => attention().map(Site::K),
        "matmul_v_input" => attention().map(Site::V),
        "softmax_input" => attention().map(Site::Scores),
        "matmul_a_input" => attention().map(Site::Probs),
        "add1_local_input" => add(Branch::Attn, Operand::Branch),
        "add1_residual_input" => add(Branch::Attn, Operand::Shortcut),
        "add2_local_input" => add(Branch::Mlp, Operand::Branch),
        "add2_residual_input" => add(Branch::Mlp, Operand::Shortcut),
        _ => None,
    }
}

fn block_of(site: Site) -> Option<BlockId> {
    match site {
        Site::Q(block) => Some(block),
        _ => None,
    }
}

/// Whether `key` is a quantizer of FasterTransformer that has no site here.
fn is_siteless(key: &str) -> bool {
    ["layernorm_input1", "layernorm_input2", "final_input"]
        .iter()
        .any(|q| key.ends_with(&format!("{q}{SUFFIX}")))
}

/// Reads the ranges (amax) of a checkpoint that FasterTransformer calibrated, by site. Ranges of the inputs
/// of norms are skipped, because these have no site. A weight's per-channel ranges are reduced to the
/// largest.
///
/// # Errors
/// A Swin V2; a file that is unreadable or has no ranges; a range that belongs to no site of `config`; a
/// range of an activation that is not a positive, finite scalar.
pub fn import_ft_amax(path: &Path, config: &SwinConfig) -> Result<BTreeMap<Site, f32>, ModelError> {
    if config.version == SwinVersion::V2 {
        let problem = "FasterTransformer's ranges of a Swin V2 belong to another arithmetic: its queries include the \
                       scale of the logits; calibrate without them";
        return Err(ModelError::config("MODEL.TYPE", problem));
    }
    let file = CheckpointFile::open(path)?;
    let raw = file.tensors(None)?.0;
    let is_range = |key: &str| key.ends_with(SUFFIX) && !is_siteless(key);
    if !raw.keys().any(|key| is_range(key)) {
        let problem = format!(
            "has no calibrated ranges (`*{SUFFIX}`) among its tensors ({}); pass a *_calib.pth of FasterTransformer",
            names_of(&raw)
        );
        return Err(ModelError::file(path, problem));
    }
    let network = Network::find(path, raw, Task::Classification, Some(Dialect::FasterTransformer), None)?;
    let known = all_sites(config);
    let mut ranges = BTreeMap::new();
    for (key, tensor) in network.tensors.iter().filter(|(key, _)| is_range(key)) {
        let site = ft_site(key).filter(|site| known.contains(site)).ok_or_else(|| {
            ModelError::tensor(key, format!("belongs to no site of {}; check --cfg", config.name))
        })?;
        ranges.insert(site, amax(site, key, tensor)?);
    }
    Ok(ranges)
}

fn amax(site: Site, key: &str, tensor: &RawTensor<'_>) -> Result<f32, ModelError> {
    let values = tensor.to_f32().map_err(|problem| ModelError::tensor(key, problem))?.data;
    if values.len() != 1 && !site.is_weight() || values.is_empty() {
        return Err(ModelError::tensor(
            key,
            format!("has {} values; an activation has one range", values.len()),
        ));
    }
    // `f32::max` ignores NaN, so values that are not finite are searched first.
    let not_finite = values.iter().copied().find(|v| !v.is_finite());
    let amax = not_finite.unwrap_or_else(|| values.iter().copied().fold(f32::MIN, f32::max));
    check_range(site, amax)?;
    Ok(amax)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_sites_are_one_to_one() {
        let config = SwinConfig::official("swin_tiny_patch4_window7_224").unwrap();
        let sites = all_sites(&config);
        for site in &sites {
            assert_eq!(ft_site(&ft_key(*site)), Some(*site), "{site}");
        }
        let written = [
            ("layers.0.blocks.1.mlp.fc2._aftergemm_quantizer._amax", "layers.0.blocks.1.mlp.fc2.output"),
            ("layers.2.blocks.5.attn.matmul_a_input_quantizer._amax", "layers.2.blocks.5.attn.probs"),
            ("layers.2.blocks.5.attn.softmax_input_quantizer._amax", "layers.2.blocks.5.attn.scores"),
            ("layers.1.blocks.0.add2_residual_input_quantizer._amax", "layers.1.blocks.0.mlp.add.shortcut"),
            ("layers.1.downsample.reduction._weight_quantizer._amax", "layers.1.downsample.reduction.weight"),
        ];
        for (key, site) in written {
            assert_eq!(ft_site(key).unwrap().to_string(), site);
        }
        for key in ["layers.0.blocks.0.attn.qkv.weight", "head._x_quantizer._amax", "_quantizer._amax", ""] {
            assert_eq!(ft_site(key), None);
        }
    }
}
