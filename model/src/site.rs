//! Sites: the named places of a Swin where a tensor may be quantized.
//!
//! A site's name is its module's path in Microsoft's naming, followed by the tensor; rules of a
//! [`Recipe`](crate::Recipe) match these names. [`all_sites`] lists every site of a configuration in forward
//! order.

use std::fmt;
use std::str::FromStr;

use crate::arch::{Input, SwinConfig, SwinVersion};

/// A transformer block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId {
    /// Stage, from 0.
    pub stage: usize,
    /// Block in the stage, from 0.
    pub block: usize,
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "layers.{}.blocks.{}", self.stage, self.block)
    }
}

/// A linear layer of the network: a matrix product with a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Linear {
    /// The patch embedding: a convolution whose kernel and stride have the patch's size.
    PatchEmbed,
    /// The fused query, key and value projection.
    Qkv(BlockId),
    /// The projection after attention.
    Proj(BlockId),
    /// The first linear layer of the MLP.
    Fc1(BlockId),
    /// The second linear layer of the MLP.
    Fc2(BlockId),
    /// The reduction of the patch merging that ends this stage.
    Reduction(usize),
    /// The classifier.
    Head,
}

impl Linear {
    /// The block that contains the layer, if any.
    pub fn block(self) -> Option<BlockId> {
        match self {
            Linear::Qkv(b) | Linear::Proj(b) | Linear::Fc1(b) | Linear::Fc2(b) => Some(b),
            Linear::PatchEmbed | Linear::Reduction(_) | Linear::Head => None,
        }
    }

    /// Name of the weight tensor in Microsoft's naming.
    pub fn weight_name(self) -> String {
        format!("{self}.weight")
    }

    /// Name of the bias tensor in Microsoft's naming.
    pub fn bias_name(self) -> String {
        format!("{self}.bias")
    }

    /// The residual addition of its block that takes its output, whose branch it ends; in a Swin V2 a norm
    /// lies between.
    pub fn branch(self) -> Option<Branch> {
        match self {
            Linear::Proj(_) => Some(Branch::Attn),
            Linear::Fc2(_) => Some(Branch::Mlp),
            _ => None,
        }
    }

    /// The block whose residual stream the layer writes to, or makes; `None` for layers inside a branch and
    /// for the head.
    pub fn residual_block(self) -> Option<BlockId> {
        match self {
            Linear::PatchEmbed => Some(BlockId { stage: 0, block: 0 }),
            Linear::Reduction(stage) => Some(BlockId { stage: stage + 1, block: 0 }),
            Linear::Proj(block) | Linear::Fc2(block) => Some(block),
            Linear::Qkv(_) | Linear::Fc1(_) | Linear::Head => None,
        }
    }
}

impl fmt::Display for Linear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Linear::PatchEmbed => write!(f, "patch_embed.proj"),
            Linear::Qkv(b) => write!(f, "{b}.attn.qkv"),
            Linear::Proj(b) => write!(f, "{b}.attn.proj"),
            Linear::Fc1(b) => write!(f, "{b}.mlp.fc1"),
            Linear::Fc2(b) => write!(f, "{b}.mlp.fc2"),
            Linear::Reduction(s) => write!(f, "layers.{s}.downsample.reduction"),
            Linear::Head => write!(f, "head"),
        }
    }
}

/// A branch of a block, whose result is added to the residual.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Branch {
    /// Attention.
    Attn,
    /// The MLP.
    Mlp,
}

/// Which operand of a residual addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operand {
    /// The output of attention or of the MLP (FasterTransformer: `local_input`).
    Branch,
    /// The residual stream (FasterTransformer: `residual_input`).
    Shortcut,
}

/// A place where a tensor may be quantized. Every block of every architecture has the same sites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Site {
    /// Input activation of a linear layer.
    Input(Linear),
    /// Weight of a linear layer.
    Weight(Linear),
    /// Result of a linear layer's product, before bias, GELU and residual addition. No other op has an
    /// `.output`.
    Output(Linear),
    /// Queries, after bias; in Swin V2 after they are normalised.
    Q(BlockId),
    /// Keys, after bias; in Swin V2 after they are normalised.
    K(BlockId),
    /// Values, after bias.
    V(BlockId),
    /// `QK^T`, before scale, bias and mask.
    Scores(BlockId),
    /// Attention probabilities.
    Probs(BlockId),
    /// An operand of a residual addition.
    Add(BlockId, Branch, Operand),
}

impl Site {
    /// Whether the site is a weight, which is quantized from its own values, rather than an activation.
    pub fn is_weight(self) -> bool {
        matches!(self, Site::Weight(_))
    }

    /// The largest magnitude that the activation can have, if the architecture tells: 1 for the queries and
    /// keys of a Swin V2, which are normalised. Such a site is not calibrated; its step is 1/127.
    pub fn known_range(self, config: &SwinConfig) -> Option<f32> {
        (config.version == SwinVersion::V2 && matches!(self, Site::Q(_) | Site::K(_))).then_some(1.0)
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Site::Input(l) => write!(f, "{l}.input"),
            Site::Weight(l) => write!(f, "{l}.weight"),
            Site::Output(l) => write!(f, "{l}.output"),
            Site::Q(b) => write!(f, "{b}.attn.q"),
            Site::K(b) => write!(f, "{b}.attn.k"),
            Site::V(b) => write!(f, "{b}.attn.v"),
            Site::Scores(b) => write!(f, "{b}.attn.scores"),
            Site::Probs(b) => write!(f, "{b}.attn.probs"),
            Site::Add(b, branch, operand) => {
                let branch = if *branch == Branch::Attn { "attn" } else { "mlp" };
                let operand = if *operand == Operand::Branch { "branch" } else { "shortcut" };
                write!(f, "{b}.{branch}.add.{operand}")
            }
        }
    }
}

/// A text that is not a site's name.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is not a site's name; an example is layers.0.blocks.0.mlp.fc1.input")]
pub struct ParseSiteError(pub String);

impl FromStr for Site {
    type Err = ParseSiteError;

    fn from_str(text: &str) -> Result<Site, ParseSiteError> {
        let parts: Vec<&str> = text.split('.').collect();
        parse_parts(&parts)
            .filter(|site| site.to_string() == text)
            .ok_or_else(|| ParseSiteError(text.to_owned()))
    }
}

fn parse_parts(parts: &[&str]) -> Option<Site> {
    let of_linear = |linear, last: &str| match last {
        "input" => Some(Site::Input(linear)),
        "weight" => Some(Site::Weight(linear)),
        "output" => Some(Site::Output(linear)),
        _ => None,
    };
    match parts {
        ["patch_embed", "proj", last] => of_linear(Linear::PatchEmbed, last),
        ["head", last] => of_linear(Linear::Head, last),
        ["layers", s, "downsample", "reduction", last] => of_linear(Linear::Reduction(s.parse().ok()?), last),
        ["layers", s, "blocks", b, rest @ ..] => {
            let id = BlockId { stage: s.parse().ok()?, block: b.parse().ok()? };
            match rest {
                ["attn", "qkv", last] => of_linear(Linear::Qkv(id), last),
                ["attn", "proj", last] => of_linear(Linear::Proj(id), last),
                ["mlp", "fc1", last] => of_linear(Linear::Fc1(id), last),
                ["mlp", "fc2", last] => of_linear(Linear::Fc2(id), last),
                ["attn", "q"] => Some(Site::Q(id)),
                ["attn", "k"] => Some(Site::K(id)),
                ["attn", "v"] => Some(Site::V(id)),
                ["attn", "scores"] => Some(Site::Scores(id)),
                ["attn", "probs"] => Some(Site::Probs(id)),
                [branch @ ("attn" | "mlp"), "add", operand @ ("branch" | "shortcut")] => Some(Site::Add(
                    id,
                    if *branch == "attn" { Branch::Attn } else { Branch::Mlp },
                    if *operand == "branch" { Operand::Branch } else { Operand::Shortcut },
                )),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Every block of `config`, in forward order.
pub fn all_blocks(config: &SwinConfig) -> Vec<BlockId> {
    let depths = config.depths.iter().enumerate();
    depths.flat_map(|(stage, &depth)| (0..depth).map(move |block| BlockId { stage, block })).collect()
}

/// Every linear layer of `config`, in forward order.
pub fn all_linears(config: &SwinConfig) -> Vec<Linear> {
    let mut linears = match config.input {
        Input::Images => vec![Linear::PatchEmbed],
        Input::Tokens => Vec::new(),
    };
    for (stage, &depth) in config.depths.iter().enumerate() {
        for block in 0..depth {
            let id = BlockId { stage, block };
            linears.extend([Linear::Qkv(id), Linear::Proj(id), Linear::Fc1(id), Linear::Fc2(id)]);
        }
        if stage + 1 < config.depths.len() {
            linears.push(Linear::Reduction(stage));
        }
    }
    if !config.is_backbone() {
        linears.push(Linear::Head);
    }
    linears
}

/// Every site of `config`, in forward order.
pub fn all_sites(config: &SwinConfig) -> Vec<Site> {
    let mut sites = Vec::new();
    for linear in all_linears(config) {
        sites.extend([Site::Input(linear), Site::Weight(linear), Site::Output(linear)]);
        match linear {
            Linear::Qkv(b) => {
                sites.extend([Site::Q(b), Site::K(b), Site::V(b), Site::Scores(b), Site::Probs(b)])
            }
            Linear::Proj(b) => sites.extend(additions(b, Branch::Attn)),
            Linear::Fc2(b) => sites.extend(additions(b, Branch::Mlp)),
            _ => {}
        }
    }
    sites
}

fn additions(block: BlockId, branch: Branch) -> [Site; 2] {
    [Site::Add(block, branch, Operand::Branch), Site::Add(block, branch, Operand::Shortcut)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_are_unique() {
        let config = SwinConfig::official("swin_tiny_patch4_window7_224").unwrap();
        let sites = all_sites(&config);
        let names: std::collections::BTreeSet<String> = sites.iter().map(Site::to_string).collect();
        assert_eq!(names.len(), sites.len());
        // 12 blocks of 4 products x 3 + 5 attention + 4 addition sites; patch embedding, 3 reductions, head x
        // 3.
        assert_eq!(sites.len(), 12 * 21 + 5 * 3);
        for site in sites {
            assert_eq!(site.to_string().parse::<Site>(), Ok(site));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "head", "head.bias", "layers.00.blocks.0.attn.q", "layers.0.blocks.0.attn.add.left"]
        {
            assert!(text.parse::<Site>().is_err(), "{text}");
        }
    }
}
