//! The sites, layers and attention products of a model whose quantization has an effect of its own.

use swinq_eval::results::sensitivity::ElementKind;
use swinq_int8_runtime::Outline;
use swinq_model::site::{BlockId, Half, Operand, all_linears, all_sites};
use swinq_model::{Linear, QuantizedModel, Rule, Site};

use crate::quantizer::switch;

/// A site, a linear layer, an attention product or a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) kind: PartKind,
    /// Its quantized sites.
    pub(crate) sites: Vec<Site>,
}

/// What a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PartKind {
    Site(Site),
    Linear(Linear),
    /// `Q K^T` of a block.
    Scores(BlockId),
    /// The product of a block's probabilities and values.
    Values(BlockId),
    /// Everything in a block.
    Block(BlockId),
}

impl PartKind {
    /// The layers and products of a block.
    fn of_block(b: BlockId) -> [PartKind; 6] {
        let linear = PartKind::Linear;
        let attention = [linear(Linear::Qkv(b)), PartKind::Scores(b), PartKind::Values(b)];
        let [qkv, scores, values] = attention;
        [qkv, scores, values, linear(Linear::Proj(b)), linear(Linear::Fc1(b)), linear(Linear::Fc2(b))]
    }

    /// The sites that must be on for the part's products to run in INT8.
    pub(crate) fn operands(self) -> Vec<Site> {
        match self {
            PartKind::Site(site) => vec![site],
            PartKind::Linear(l) => vec![Site::Input(l), Site::Weight(l)],
            PartKind::Scores(b) => vec![Site::Q(b), Site::K(b)],
            PartKind::Values(b) => vec![Site::V(b), Site::Probs(b)],
            PartKind::Block(b) => PartKind::of_block(b).into_iter().flat_map(PartKind::operands).collect(),
        }
    }

    /// The sites that the part may have.
    fn possible_sites(self) -> Vec<Site> {
        match self {
            PartKind::Site(site) => vec![site],
            PartKind::Linear(l) => vec![Site::Input(l), Site::Weight(l), Site::Output(l)],
            PartKind::Scores(b) => vec![Site::Q(b), Site::K(b)],
            PartKind::Values(b) => vec![Site::V(b), Site::Probs(b)],
            PartKind::Block(b) => {
                let parts = PartKind::of_block(b).into_iter().flat_map(PartKind::possible_sites);
                let add =
                    |half| [Operand::Branch, Operand::Shortcut].map(|operand| Site::Add(b, half, operand));
                parts
                    .chain([Site::Scores(b)])
                    .chain([Half::Attn, Half::Mlp].into_iter().flat_map(add))
                    .collect()
            }
        }
    }

    /// The kind in results.
    pub(crate) fn result(self) -> ElementKind {
        match self {
            PartKind::Site(_) => ElementKind::Site,
            PartKind::Linear(_) => ElementKind::Linear,
            PartKind::Scores(_) | PartKind::Values(_) => ElementKind::AttentionProduct,
            PartKind::Block(_) => ElementKind::Block,
        }
    }

    /// Multiply-accumulates of an image, from the plan of a model.
    pub(crate) fn macs(self, plan: &Outline) -> u64 {
        let of =
            |name: String| plan.steps.iter().find(|step| step.name == name).map_or(0, |step| plan.macs(step));
        match self {
            PartKind::Site(_) => 0,
            PartKind::Linear(linear) => of(linear.to_string()),
            // The two products of a block have the same number.
            PartKind::Scores(b) | PartKind::Values(b) => of(format!("{b}.attn")) / 2,
            PartKind::Block(b) => PartKind::of_block(b).into_iter().map(|part| part.macs(plan)).sum(),
        }
    }
}

impl std::fmt::Display for PartKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PartKind::Site(site) => site.fmt(f),
            PartKind::Linear(linear) => linear.fmt(f),
            PartKind::Scores(b) => write!(f, "{b}.attn.qk"),
            PartKind::Values(b) => write!(f, "{b}.attn.pv"),
            PartKind::Block(b) => b.fmt(f),
        }
    }
}

impl Part {
    /// The part `kind` of `model`, with the sites that are on.
    pub(crate) fn of(model: &QuantizedModel, kind: PartKind) -> Part {
        let mut sites = kind.possible_sites();
        sites.retain(|site| model.sites.get(site).is_some_and(|state| state.spec.enabled));
        Part { kind, sites }
    }

    /// The rules that switch its sites on or off.
    pub(crate) fn switched(&self, enable: bool) -> impl Iterator<Item = Rule> {
        self.sites.iter().map(move |&site| switch(site, enable))
    }
}

/// Every quantized site of `model`, in forward order.
pub(crate) fn sites(model: &QuantizedModel) -> Vec<Part> {
    let all = all_sites(&model.config).into_iter().map(|site| Part::of(model, PartKind::Site(site)));
    all.filter(|part| !part.sites.is_empty()).collect()
}

/// Every linear layer and attention product of the architecture, in forward order.
pub(crate) fn layer_kinds(model: &QuantizedModel) -> Vec<PartKind> {
    let mut kinds = Vec::new();
    for linear in all_linears(&model.config) {
        kinds.push(PartKind::Linear(linear));
        if let Linear::Qkv(block) = linear {
            kinds.extend([PartKind::Scores(block), PartKind::Values(block)]);
        }
    }
    kinds
}

/// Every linear layer and attention product of `model` that runs in INT8, in forward order.
pub(crate) fn layers(model: &QuantizedModel) -> Vec<Part> {
    let parts = layer_kinds(model).into_iter().map(|kind| Part::of(model, kind));
    parts.filter(is_int8).collect()
}

/// Every block of `model`, and every layer outside of blocks, that has quantized sites, in forward order.
pub(crate) fn blocks(model: &QuantizedModel) -> Vec<Part> {
    let kind = |linear| match linear {
        Linear::Qkv(block) => Some(PartKind::Block(block)),
        Linear::Proj(_) | Linear::Fc1(_) | Linear::Fc2(_) => None,
        Linear::PatchEmbed | Linear::Reduction(_) | Linear::Head => Some(PartKind::Linear(linear)),
    };
    let all = all_linears(&model.config).into_iter().filter_map(kind).map(|kind| Part::of(model, kind));
    all.filter(|part| !part.sites.is_empty()).collect()
}

/// Whether the operands of the part's products are on.
pub(crate) fn is_int8(part: &Part) -> bool {
    part.kind.operands().iter().all(|site| part.sites.contains(site))
}
