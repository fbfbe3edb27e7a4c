//! The changes of a recipe that a search tries, and recipes as sets of changes.

use std::collections::BTreeMap;

use swinq_model::site::all_linears;
use swinq_model::{Calibrator, Granularity, Linear, Ptq, QuantizedModel, Recipe, Rule, Site};

use crate::sensitivity::elements::{ElementId, ModelElement, QuantizedSites, is_int8, layer_kinds};

/// The target of a change. A part has at most one change of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Aspect {
    /// The calibrator of the part's activations.
    Calibrator,
    /// The granularity of the part's weight.
    Granularity,
    /// How the part's ranges and codes are found.
    Ptq,
    /// Whether the part is quantized.
    Precision,
}

/// One change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Change {
    /// The calibrator of the part's activations.
    Calibrator(Calibrator),
    /// A scale per output channel of the part's weight.
    PerChannel,
    /// The part is not refined, so that its input has one scale.
    Basic,
    /// The part is left in float.
    Off,
    /// The part is quantized, although the start recipe leaves it in float.
    On,
}

impl Change {
    fn aspect(self) -> Aspect {
        match self {
            Change::Calibrator(_) => Aspect::Calibrator,
            Change::PerChannel => Aspect::Granularity,
            Change::Basic => Aspect::Ptq,
            Change::Off | Change::On => Aspect::Precision,
        }
    }

    fn describe(self, kind: ElementId) -> String {
        match self {
            Change::Calibrator(calibrator) => format!("{kind}: calibrator {calibrator}"),
            Change::PerChannel => format!("{kind}: weight per channel"),
            Change::Basic => format!("{kind}: ptq basic"),
            Change::Off if matches!(kind, ElementId::Site(_)) => format!("{kind}: off"),
            Change::Off => format!("{kind}: float"),
            Change::On => format!("{kind}: INT8"),
        }
    }
}

/// The parts of a model whose settings a search changes: layers, attention products and `.output` sites.
pub(super) struct Space {
    start: Recipe,
    /// In forward order.
    parts: Vec<ModelElement>,
    /// Whether the start recipe runs the part in INT8, or rounds at it.
    on: Vec<bool>,
    /// Changes that may be tried to remove noise, by part.
    options: Vec<Vec<Change>>,
    /// Parts whose input has a scale for each channel, which costs time.
    per_input_channel: Vec<usize>,
}

/// Changes from the start recipe, by part and aspect.
pub(super) type State = BTreeMap<(usize, Aspect), Change>;

impl Space {
    /// The space around `start`, whose model is `model`.
    pub(super) fn new(start: &Recipe, model: &QuantizedModel) -> Space {
        let mut kinds = layer_kinds(&model.config);
        let outputs =
            all_linears(&model.config).into_iter().map(|linear| ElementId::Site(Site::Output(linear)));
        let quantized = QuantizedSites::of(model);
        let is_on = |kind: &ElementId| !ModelElement::of(&quantized, *kind).sites.is_empty();
        kinds.extend(outputs.filter(is_on));
        let mut space = Space {
            start: start.clone(),
            parts: Vec::new(),
            on: Vec::new(),
            options: Vec::new(),
            per_input_channel: Vec::new(),
        };
        for (index, kind) in kinds.into_iter().enumerate() {
            if matches!(kind, ElementId::Linear(l) if model.site(Site::Input(l)).channels.is_some()) {
                space.per_input_channel.push(index);
            }
            let part = ModelElement::of(&quantized, kind);
            let on = is_int8(&part);
            space.options.push(if on { repairs(model, &part) } else { Vec::new() });
            space.parts.push(if on { part } else { ModelElement { kind, sites: kind.operands() } });
            space.on.push(on);
        }
        space
    }

    /// Number of parts.
    pub(super) fn len(&self) -> usize {
        self.parts.len()
    }

    /// What the part `index` is.
    pub(super) fn kind(&self, index: usize) -> ElementId {
        self.parts[index].kind
    }

    /// Whether the part is quantized in `state`.
    pub(super) fn is_on(&self, state: &State, index: usize) -> bool {
        match state.get(&(index, Aspect::Precision)) {
            Some(change) => *change == Change::On,
            None => self.on[index],
        }
    }

    /// The changes of the part that keep it quantized and are not in `state` yet.
    pub(super) fn repairs<'a>(&'a self, state: &'a State, index: usize) -> impl Iterator<Item = Change> + 'a {
        let unused = move |change: &&Change| !state.contains_key(&(index, change.aspect()));
        self.options[index].iter().filter(unused).copied()
    }

    /// The changes of `state` that may save time: parts that the start recipe leaves in float are quantized,
    /// and inputs with a scale for each channel get one scale.
    pub(super) fn savings<'a>(&'a self, state: &'a State) -> impl Iterator<Item = (usize, Change)> + 'a {
        let off = |index: &usize| !self.on[*index] && !state.contains_key(&(*index, Aspect::Precision));
        let added = (0..self.len()).filter(off).map(|index| (index, Change::On));
        let on = |index: &usize| self.is_on(state, *index);
        added.chain(self.per_input_channel.iter().copied().filter(on).map(|index| (index, Change::Basic)))
    }

    /// `state` with one more change.
    pub(super) fn with(&self, state: &State, index: usize, change: Change) -> State {
        let mut state = state.clone();
        if change == Change::Off {
            state.retain(|(part, _), _| *part != index);
        }
        state.insert((index, change.aspect()), change);
        state
    }

    /// For each type of part, such as `mlp.fc1`, the state in which all parts of the type are off.
    pub(super) fn families(&self) -> Vec<State> {
        let mut families: BTreeMap<String, State> = BTreeMap::new();
        for index in (0..self.len()).filter(|&index| self.on[index]) {
            let name = self.kind(index).to_string();
            // Names of parts of one type differ in their numbers only.
            let family: String = name.chars().filter(|c| !c.is_ascii_digit()).collect();
            families.entry(family).or_default().insert((index, Aspect::Precision), Change::Off);
        }
        families.into_values().collect()
    }

    /// The recipe of `state`.
    pub(super) fn recipe(&self, state: &State) -> Recipe {
        let mut recipe = self.start.clone();
        if !state.is_empty() {
            recipe.name = format!("{} tuned", self.start.name);
            let changes = swinq_eval::counted(state.len(), "change");
            recipe.description = format!("found by swinq tune; {changes} of {}", self.start.name);
        }
        for (&(index, _), change) in state {
            recipe.rules.extend(self.rules(index, *change));
        }
        recipe
    }

    /// The changes of `state` in words.
    pub(super) fn describe(&self, state: &State) -> Vec<String> {
        state.iter().map(|(&(index, _), change)| change.describe(self.kind(index))).collect()
    }

    fn rules(&self, index: usize, change: Change) -> Vec<Rule> {
        let part = &self.parts[index];
        let for_sites = |weights: bool, rule: Rule| -> Vec<Rule> {
            let sites = part.sites.iter().filter(|site| site.is_weight() == weights);
            sites.map(|site| Rule { pattern: site.to_string(), ..rule.clone() }).collect()
        };
        match change {
            Change::Off => part.switched(false).collect(),
            Change::On => part.switched(true).collect(),
            Change::Calibrator(calibrator) => {
                for_sites(false, Rule { calibrator: Some(calibrator), ..Rule::default() })
            }
            Change::Basic => for_sites(true, Rule { ptq: Some(Ptq::Basic), ..Rule::default() }),
            Change::PerChannel => {
                for_sites(true, Rule { granularity: Some(Granularity::Channel), ..Rule::default() })
            }
        }
    }
}

/// The changes that keep `part` quantized.
fn repairs(model: &QuantizedModel, part: &ModelElement) -> Vec<Change> {
    let mut changes = Vec::new();
    let spec = |site: Site| &model.site(site).spec;
    // Refinement searches the ranges of the layers that it refines.
    let refined = |site: Site| match site {
        Site::Input(layer) => spec(Site::Weight(layer)).ptq != Ptq::Basic,
        Site::Q(block) | Site::K(block) | Site::V(block) => {
            spec(Site::Weight(Linear::Proj(block))).ptq != Ptq::Basic
        }
        _ => false,
    };
    let calibrated =
        |site: &&Site| spec(**site).needs_scale(**site) && spec(**site).amax.is_none() && !refined(**site);
    if let Some(&site) = part.sites.iter().find(calibrated) {
        let all = [
            Calibrator::Max,
            Calibrator::Percentile(99.999),
            Calibrator::Percentile(99.99),
            Calibrator::Percentile(99.9),
            Calibrator::Mse,
        ];
        changes.extend(all.into_iter().filter(|c| *c != spec(site).calibrator).map(Change::Calibrator));
    }
    let per_tensor = |site: &Site| site.is_weight() && spec(*site).granularity == Granularity::Tensor;
    if part.sites.iter().any(per_tensor) {
        changes.push(Change::PerChannel);
    }
    changes
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use swinq_model::site::all_sites;
    use swinq_testing::model::{random, shifted};

    use super::*;

    fn model(recipe: &Recipe) -> QuantizedModel {
        let float = random(shifted(), 1);
        let ranges: BTreeMap<Site, f32> = all_sites(&float.config).into_iter().map(|s| (s, 2.0)).collect();
        swinq_calib::quantize(&float, recipe, &ranges).unwrap()
    }

    #[test]
    fn off_leaves_a_part_in_float_and_replaces_its_other_changes() {
        let start = Recipe::shipped("mode1").unwrap();
        let space = Space::new(&start, &model(&start));
        let fc2 =
            (0..space.len()).find(|&i| space.kind(i).to_string() == "layers.0.blocks.1.mlp.fc2").unwrap();
        let repairs: Vec<Change> = space.repairs(&State::new(), fc2).collect();
        assert!(
            repairs.contains(&Change::PerChannel) && repairs.contains(&Change::Calibrator(Calibrator::Mse))
        );
        let state = space.with(&State::new(), fc2, Change::PerChannel);
        let state = space.with(&state, fc2, Change::Off);
        assert_eq!(state.len(), 1);
        assert!(!space.is_on(&state, fc2) && space.is_on(&State::new(), fc2));
        let changed = model(&space.recipe(&state));
        for site in ["input", "weight", "output"] {
            let site: Site = format!("layers.0.blocks.1.mlp.fc2.{site}").parse().unwrap();
            assert!(!changed.site(site).spec.enabled, "{site}");
        }
        let others = model(&start);
        let differs = changed.sites.iter().filter(|(site, state)| others.site(**site).spec != state.spec);
        assert_eq!(differs.count(), 3);
    }

    #[test]
    fn output_sites_that_are_on_are_parts_and_layers_in_float_can_be_added() {
        let start = Recipe::shipped("mode2").unwrap();
        let space = Space::new(&start, &model(&start));
        let names: Vec<String> = (0..space.len()).map(|i| space.kind(i).to_string()).collect();
        assert!(names.contains(&"layers.0.blocks.0.attn.qkv.output".to_owned()));
        assert!(!names.iter().any(|name| name.ends_with("fc2.output")));
        let additions: Vec<&str> = space.savings(&State::new()).map(|(i, _)| names[i].as_str()).collect();
        assert_eq!(additions, ["patch_embed.proj", "head"]);
    }
}
