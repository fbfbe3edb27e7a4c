//! The sites, layers and attention products of a model whose quantization has an effect of its own.

use std::collections::BTreeSet;

use swinq_eval::results::sensitivity::ElementKind;
use swinq_int8_runtime::Outline;
use swinq_model::site::{BlockId, Branch, Operand, all_linears, all_sites};
use swinq_model::{Linear, ModelError, QuantizedModel, Recipe, Rule, Site, SwinConfig};

use crate::quantizer::switch;

/// A site, a linear layer, an attention product or a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelElement {
    pub(crate) kind: ElementId,
    /// Its quantized sites.
    pub(crate) sites: Vec<Site>,
}

/// Which element of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ElementId {
    Site(Site),
    Linear(Linear),
    /// `Q K^T` of a block.
    Scores(BlockId),
    /// The product of a block's probabilities and values.
    Values(BlockId),
    /// Everything in a block.
    Block(BlockId),
}

impl ElementId {
    /// The layers and products of a block.
    fn of_block(b: BlockId) -> [ElementId; 6] {
        let linear = ElementId::Linear;
        let attention = [linear(Linear::Qkv(b)), ElementId::Scores(b), ElementId::Values(b)];
        let [qkv, scores, values] = attention;
        [qkv, scores, values, linear(Linear::Proj(b)), linear(Linear::Fc1(b)), linear(Linear::Fc2(b))]
    }

    /// The sites that must be on for the element's products to run in INT8.
    pub(crate) fn operands(self) -> Vec<Site> {
        match self {
            ElementId::Site(site) => vec![site],
            ElementId::Linear(l) => vec![Site::Input(l), Site::Weight(l)],
            ElementId::Scores(b) => vec![Site::Q(b), Site::K(b)],
            ElementId::Values(b) => vec![Site::V(b), Site::Probs(b)],
            ElementId::Block(b) => ElementId::of_block(b).into_iter().flat_map(ElementId::operands).collect(),
        }
    }

    /// The sites that the element may have.
    fn possible_sites(self) -> Vec<Site> {
        match self {
            ElementId::Site(site) => vec![site],
            ElementId::Linear(l) => vec![Site::Input(l), Site::Weight(l), Site::Output(l)],
            ElementId::Scores(b) => vec![Site::Q(b), Site::K(b)],
            ElementId::Values(b) => vec![Site::V(b), Site::Probs(b)],
            ElementId::Block(b) => {
                let parts = ElementId::of_block(b).into_iter().flat_map(ElementId::possible_sites);
                let add = |branch| {
                    [Operand::Branch, Operand::Shortcut].map(|operand| Site::Add(b, branch, operand))
                };
                parts
                    .chain([Site::Scores(b)])
                    .chain([Branch::Attn, Branch::Mlp].into_iter().flat_map(add))
                    .collect()
            }
        }
    }

    /// The kind in results.
    pub(crate) fn result(self) -> ElementKind {
        match self {
            ElementId::Site(_) => ElementKind::Site,
            ElementId::Linear(_) => ElementKind::Linear,
            ElementId::Scores(_) | ElementId::Values(_) => ElementKind::AttentionProduct,
            ElementId::Block(_) => ElementKind::Block,
        }
    }

    /// Multiply-accumulates of an image, from the plan of a model.
    pub(crate) fn macs(self, plan: &Outline) -> u64 {
        let of =
            |name: String| plan.steps.iter().find(|step| step.name == name).map_or(0, |step| plan.macs(step));
        match self {
            ElementId::Site(_) => 0,
            ElementId::Linear(linear) => of(linear.to_string()),
            // The two products of a block have the same number.
            ElementId::Scores(b) | ElementId::Values(b) => of(format!("{b}.attn")) / 2,
            ElementId::Block(b) => ElementId::of_block(b).into_iter().map(|part| part.macs(plan)).sum(),
        }
    }
}

impl std::fmt::Display for ElementId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ElementId::Site(site) => site.fmt(f),
            ElementId::Linear(linear) => linear.fmt(f),
            ElementId::Scores(b) => write!(f, "{b}.attn.qk"),
            ElementId::Values(b) => write!(f, "{b}.attn.pv"),
            ElementId::Block(b) => b.fmt(f),
        }
    }
}

/// A network, and which of its sites are quantized.
pub(crate) struct QuantizedSites<'a> {
    config: &'a SwinConfig,
    on: BTreeSet<Site>,
}

impl<'a> QuantizedSites<'a> {
    /// Those of `model`.
    pub(crate) fn of(model: &'a QuantizedModel) -> QuantizedSites<'a> {
        let on = model.sites.iter().filter(|(_, state)| state.spec.enabled).map(|(site, _)| *site);
        QuantizedSites { config: &model.config, on: on.collect() }
    }

    /// Those that `recipe` quantizes.
    ///
    /// # Errors
    /// For a recipe that does not fit the network.
    pub(crate) fn under(recipe: &Recipe, config: &'a SwinConfig) -> Result<QuantizedSites<'a>, ModelError> {
        let on = recipe.resolve(config)?.into_iter().filter(|(_, spec)| spec.enabled).map(|(site, _)| site);
        Ok(QuantizedSites { config, on: on.collect() })
    }
}

impl ModelElement {
    /// The element `kind` with the sites that are on.
    pub(crate) fn of(model: &QuantizedSites<'_>, kind: ElementId) -> ModelElement {
        let mut sites = kind.possible_sites();
        sites.retain(|site| model.on.contains(site));
        ModelElement { kind, sites }
    }

    /// The rules that switch its sites on or off.
    pub(crate) fn switched(&self, enable: bool) -> impl Iterator<Item = Rule> {
        self.sites.iter().map(move |&site| switch(site, enable))
    }
}

/// Every quantized site of `model`, in forward order.
pub(crate) fn sites(model: &QuantizedSites<'_>) -> Vec<ModelElement> {
    let all = all_sites(model.config).into_iter().map(|site| ModelElement::of(model, ElementId::Site(site)));
    all.filter(|part| !part.sites.is_empty()).collect()
}

/// Every linear layer and attention product of the architecture, in forward order.
pub(crate) fn layer_kinds(config: &SwinConfig) -> Vec<ElementId> {
    let mut kinds = Vec::new();
    for linear in all_linears(config) {
        kinds.push(ElementId::Linear(linear));
        if let Linear::Qkv(block) = linear {
            kinds.extend([ElementId::Scores(block), ElementId::Values(block)]);
        }
    }
    kinds
}

/// Every linear layer and attention product of `model` that runs in INT8, in forward order.
pub(crate) fn layers(model: &QuantizedSites<'_>) -> Vec<ModelElement> {
    let parts = layer_kinds(model.config).into_iter().map(|kind| ModelElement::of(model, kind));
    parts.filter(is_int8).collect()
}

/// Every block of the architecture, and every layer outside of blocks, in forward order.
pub(crate) fn block_kinds(config: &SwinConfig) -> Vec<ElementId> {
    let kind = |linear| match linear {
        Linear::Qkv(block) => Some(ElementId::Block(block)),
        Linear::Proj(_) | Linear::Fc1(_) | Linear::Fc2(_) => None,
        Linear::PatchEmbed | Linear::Reduction(_) | Linear::Head => Some(ElementId::Linear(linear)),
    };
    all_linears(config).into_iter().filter_map(kind).collect()
}

/// Every block of `model`, and every layer outside of blocks, that has quantized sites, in forward order.
pub(crate) fn blocks(model: &QuantizedSites<'_>) -> Vec<ModelElement> {
    let all = block_kinds(model.config).into_iter().map(|kind| ModelElement::of(model, kind));
    all.filter(|part| !part.sites.is_empty()).collect()
}

/// Whether the operands of the element's products are on.
pub(crate) fn is_int8(part: &ModelElement) -> bool {
    part.kind.operands().iter().all(|site| part.sites.contains(site))
}
