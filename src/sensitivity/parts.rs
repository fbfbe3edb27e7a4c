//! The parts of a model by their kind and name.

use swinq_model::{Recipe, SitePattern, SwinConfig, nearest_patterns};

use super::elements::{
    ElementId, ModelElement, QuantizedSites, block_kinds, blocks, layer_kinds, layers, sites,
};
use crate::Error;

/// Kinds of parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PartKinds {
    /// Linear layers and attention products that run in INT8.
    #[default]
    Layers,
    /// Blocks, and the layers outside of them.
    Blocks,
    /// Single sites.
    Sites,
    /// Layers, then single sites.
    LayersAndSites,
}

/// The parts that are measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartsOf {
    /// Their kind.
    pub kinds: PartKinds,
    /// A pattern of their names, as of sites in recipes.
    pub pattern: String,
}

impl PartsOf {
    /// All parts of these kinds.
    pub fn all(kinds: PartKinds) -> PartsOf {
        PartsOf { kinds, pattern: "**".to_owned() }
    }

    /// Those of a network whose sites `recipe` quantizes: layers or blocks in forward order, then sites in
    /// forward order.
    pub(super) fn find(&self, recipe: &Recipe, config: &SwinConfig) -> Result<Vec<ModelElement>, Error> {
        let model = &QuantizedSites::under(recipe, config)?;
        let refuse = |problem: String| Error::argument("only", format!("`{}`: {problem}", self.pattern));
        let pattern = SitePattern::new(&self.pattern).map_err(refuse)?;
        let all = match self.kinds {
            PartKinds::Layers => layers(model),
            PartKinds::Blocks => blocks(model),
            PartKinds::Sites => sites(model),
            PartKinds::LayersAndSites => [layers(model), sites(model)].concat(),
        };
        let matches = |part: &&ModelElement| pattern.matches(&part.kind.to_string());
        let found: Vec<ModelElement> = all.iter().filter(matches).cloned().collect();
        if !found.is_empty() {
            return Ok(found);
        }
        let similar = nearest_patterns(&self.pattern, all.iter().map(|part| &part.kind));
        let hint = match (similar.as_slice(), all.first()) {
            ([], None) => String::new(),
            ([], Some(part)) => format!("; one of them is {}", part.kind),
            (similar, _) => format!("; did you mean `{}`?", similar.join("`, `")),
        };
        Err(refuse(format!("matches none of the quantized parts{hint}")))
    }
}

/// The pattern of the sites of the part with this name, as results of sensitivity have it:
/// `layers.0.downsample.reduction.**` for a layer, `layers.0.blocks.0.**` for a block,
/// `layers.0.blocks.0.attn.{q,k}` for the product `layers.0.blocks.0.attn.qk`. Any other text is a pattern
/// already, and is returned as it is.
pub fn sites_of_part(name: &str, config: &SwinConfig) -> String {
    let all = layer_kinds(config).into_iter().chain(block_kinds(config));
    match all.into_iter().find(|kind| kind.to_string() == name) {
        Some(ElementId::Scores(block)) => format!("{block}.attn.{{q,k}}"),
        Some(ElementId::Values(block)) => format!("{block}.attn.{{v,probs}}"),
        Some(ElementId::Linear(_) | ElementId::Block(_)) => format!("{name}.**"),
        Some(ElementId::Site(_)) | None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use swinq_model::site::all_sites;

    use super::*;

    #[test]
    fn every_name_of_a_part_gives_the_pattern_of_its_sites() {
        let config = SwinConfig::official("swin_tiny_patch4_window7_224").unwrap();
        let sites: Vec<String> = all_sites(&config).iter().map(ToString::to_string).collect();
        let matched = |pattern: &str| {
            let pattern = SitePattern::new(pattern).unwrap();
            sites.iter().filter(|site| pattern.matches(site)).cloned().collect::<Vec<String>>()
        };
        for kind in layer_kinds(&config).into_iter().chain(block_kinds(&config)) {
            let operands: Vec<String> = kind.operands().iter().map(ToString::to_string).collect();
            let found = matched(&sites_of_part(&kind.to_string(), &config));
            assert!(operands.iter().all(|site| found.contains(site)), "{kind}: {found:?}");
        }
        assert_eq!(sites_of_part("layers.0.blocks.1.attn.qk", &config), "layers.0.blocks.1.attn.{q,k}");
        assert_eq!(matched(&sites_of_part("layers.0.blocks.1.attn.pv", &config)).len(), 2);
        for pattern in ["**.fc2.*", "layers.0.blocks.0.mlp.fc1.input", "re:head.*"] {
            assert_eq!(sites_of_part(pattern, &config), pattern);
        }
    }
}
