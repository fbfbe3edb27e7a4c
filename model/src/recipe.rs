//! Recipes: ordered rules that say which sites are quantized and how.
//!
//! ```yaml
//! name: mine
//! rules:
//!   - {match: "**", enable: true, granularity: channel, calibrator: {percentile: 99.99}}
//!   - {match: "{patch_embed,head}.**", enable: false}
//! ```
//!
//! [`SitePattern`] defines the patterns. A key of a rule overrides the same key of earlier rules at every
//! site that the rule matches. A rule that matches no site of the model is an error.

use std::fmt;

use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::arch::SwinConfig;
use crate::error::ModelError;
use crate::params::MAX_STAGES;
use crate::pattern::{SitePattern, nearest_patterns, nearest_sites};
use crate::site::{Linear, Site, all_sites};
use crate::yaml;

mod name;

pub use name::file_stem;

/// How the range of a site is chosen from the observed values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Calibrator {
    /// The largest magnitude seen.
    Max,
    /// The magnitude below which this percentage of the magnitudes lies.
    Percentile(f64),
    /// The range with the least mean squared quantization error.
    Mse,
    /// The range with the least Kullback-Leibler divergence between the observed and the quantized
    /// distribution.
    Entropy,
}

impl fmt::Display for Calibrator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Calibrator::Max => f.write_str("max"),
            Calibrator::Percentile(p) => write!(f, "percentile {p}"),
            Calibrator::Mse => f.write_str("mse"),
            Calibrator::Entropy => f.write_str("entropy"),
        }
    }
}

impl std::str::FromStr for Calibrator {
    type Err = String;

    /// `max`, `mse`, `entropy`, `percentile` (99.99) or `percentile:99.9`.
    fn from_str(text: &str) -> Result<Calibrator, String> {
        let calibrator = match text.split_once(':') {
            None if text == "percentile" => Some(Calibrator::Percentile(99.99)),
            None => Calibrator::without_number(text),
            Some(("percentile", p)) => {
                Some(Calibrator::Percentile(p.parse().map_err(|_| format!("`{p}` is not a number"))?))
            }
            Some(_) => None,
        };
        let calibrator =
            calibrator.ok_or_else(|| format!("`{text}` is none of max, percentile[:P], mse, entropy"))?;
        calibrator.check().map(|()| calibrator)
    }
}

/// Reads the form that [`Serialize`] writes: `max`, `mse`, `entropy` or `{percentile: 99.9}`.
impl<'de> Deserialize<'de> for Calibrator {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Calibrator, D::Error> {
        deserializer.deserialize_any(CalibratorVisitor)
    }
}

struct CalibratorVisitor;

impl<'de> Visitor<'de> for CalibratorVisitor {
    type Value = Calibrator;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("max, mse, entropy or {percentile: 99.99}")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<Calibrator, E> {
        Calibrator::without_number(name).ok_or_else(|| E::invalid_value(de::Unexpected::Str(name), &self))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Calibrator, A::Error> {
        let key: Option<String> = map.next_key()?;
        if key.as_deref() != Some("percentile") {
            return Err(de::Error::invalid_value(de::Unexpected::Map, &self));
        }
        let percentile = Calibrator::Percentile(map.next_value()?);
        match map.next_key::<String>()? {
            None => Ok(percentile),
            Some(_) => Err(de::Error::invalid_length(2, &self)),
        }
    }
}

impl Calibrator {
    /// The calibrator `name` of those that a name alone states.
    fn without_number(name: &str) -> Option<Calibrator> {
        Some(match name {
            "max" => Calibrator::Max,
            "mse" => Calibrator::Mse,
            "entropy" => Calibrator::Entropy,
            _ => return None,
        })
    }

    fn check(self) -> Result<(), String> {
        match self {
            Calibrator::Percentile(p) if !(p > 0.0 && p <= 100.0) => {
                Err(format!("percentile {p} is outside (0, 100]"))
            }
            _ => Ok(()),
        }
    }
}

/// Granularity of a weight's scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Granularity {
    /// One scale per output channel.
    Channel,
    /// One scale for the whole tensor.
    Tensor,
}

/// The integer codes that a site uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Signed, symmetric codes with a scale.
    S8,
    /// Unsigned codes of attention probabilities: `round(255 exp(x - rowmax))`, normalised by the sum of the
    /// row's codes. They need no calibration.
    U8,
}

/// How a layer's numbers are found once its ranges are observed; stated at the layer's weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ptq {
    /// The calibrators choose the ranges, and weights are rounded to the nearest code.
    #[default]
    Basic,
    /// The layer is rewritten and its ranges are searched so that the error of its output falls.
    Refined,
    /// [`Ptq::Refined`], and the rounding of each weight is chosen by the error of the layer's output.
    Reconstruct,
}

impl Ptq {
    /// Every value, from the fastest to the slowest.
    pub const ALL: [Ptq; 3] = [Ptq::Basic, Ptq::Refined, Ptq::Reconstruct];

    /// Whether it is the default, which files do not state.
    pub(crate) fn is_basic(&self) -> bool {
        *self == Ptq::Basic
    }
}

impl fmt::Display for Ptq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ptq::Basic => "basic",
            Ptq::Refined => "refined",
            Ptq::Reconstruct => "reconstruct",
        })
    }
}

impl std::str::FromStr for Ptq {
    type Err = String;

    fn from_str(text: &str) -> Result<Ptq, String> {
        let found = Ptq::ALL.into_iter().find(|ptq| ptq.to_string() == text);
        found.ok_or_else(|| format!("`{text}` is none of basic, refined, reconstruct"))
    }
}

/// One rule of a recipe.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// A glob over site names, or `re:` and a regular expression.
    #[serde(rename = "match")]
    pub pattern: String,
    /// Whether the sites are quantized.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable: Option<bool>,
    /// Bits of a code: 8, or 7 or 4 for weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bits: Option<u8>,
    /// Granularity of the scales of weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granularity: Option<Granularity>,
    /// How the range is chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibrator: Option<Calibrator>,
    /// A fixed range, which replaces the calibrated one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amax: Option<f32>,
    /// Signed or unsigned codes; only `probs` sites accept `u8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
    /// How the numbers of a layer are found; only weights accept it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ptq: Option<Ptq>,
}

/// An ordered list of rules.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Name, for messages and reports.
    pub name: String,
    /// The recipe's purpose.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Rules, applied in order.
    pub rules: Vec<Rule>,
}

/// The effective setting of one site under a recipe.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiteSpec {
    /// Whether the site is quantized.
    pub enabled: bool,
    /// Bits of a code.
    pub bits: u8,
    /// Granularity of the scales; has no effect on activations.
    pub granularity: Granularity,
    /// How the range is chosen.
    pub calibrator: Calibrator,
    /// A fixed range, if the recipe gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amax: Option<f32>,
    /// Signed or unsigned codes.
    pub kind: Kind,
    /// How the numbers of the layer are found; `basic` for activations.
    #[serde(default, skip_serializing_if = "Ptq::is_basic")]
    pub ptq: Ptq,
}

impl SiteSpec {
    /// Whether the site needs a range, from calibration or from the recipe: true for enabled activations with
    /// signed codes.
    pub fn needs_scale(&self, site: Site) -> bool {
        self.enabled && !site.is_weight() && self.kind == Kind::S8
    }

    /// The largest code `Q` of a weight: 127 for 8 bits, 63 for 7, 7 for 4. Its codes are `-Q..=Q`.
    pub fn largest_code(&self) -> u8 {
        match self.bits {
            4 => 7,
            7 => 63,
            _ => 127,
        }
    }
}

/// Pattern of all activation sites, for rules that must not change weights.
const ACTIVATIONS: &str = r"re:.*\.(input|output|q|k|v|scores|probs|branch|shortcut)";
/// Pattern of all weights.
const WEIGHTS: &str = "**.weight";
/// The most rules of a recipe.
const MAX_RULES: usize = 4096;

impl Recipe {
    /// A shipped recipe: `default`, `mode1` or `mode2`. `None` for other names.
    pub fn shipped(name: &str) -> Option<Recipe> {
        let text = swinq_configs::find(swinq_configs::QUANT, name)?;
        Some(Recipe::from_yaml(name, text).expect("the shipped recipes are well formed"))
    }

    /// The recipe that quantizes nothing.
    pub fn float() -> Recipe {
        let rule = Rule { pattern: "**".to_owned(), enable: Some(false), ..Rule::default() };
        Recipe { name: "float".to_owned(), description: "nothing is quantized".to_owned(), rules: vec![rule] }
    }

    /// Parses YAML. Errors name `origin`, the recipe's file or name.
    ///
    /// # Errors
    /// [`ModelError::Recipe`] for malformed YAML, an unknown key, or a value that no site accepts.
    pub fn from_yaml(origin: &str, text: &str) -> Result<Recipe, ModelError> {
        if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
            return Err(ModelError::recipe(origin, "the file is empty; write `rules:` and a list of rules"));
        }
        let recipe: Recipe =
            serde_saphyr::from_str(text).map_err(|e| ModelError::recipe(origin, yaml::problem(&e)))?;
        if recipe.rules.len() > MAX_RULES {
            let problem = format!("has {} rules; a recipe may have at most {MAX_RULES}", recipe.rules.len());
            return Err(ModelError::recipe(origin, problem));
        }
        for rule in &recipe.rules {
            rule.check().map_err(|problem| {
                ModelError::recipe(origin, format!("rule `{}`: {problem}", rule.pattern))
            })?;
        }
        Ok(recipe)
    }

    /// The recipe as YAML, which [`Recipe::from_yaml`] reads back.
    pub fn to_yaml(&self) -> String {
        let options = serde_saphyr::ser_options! { yaml_12: true, no_lang_directive: true };
        serde_saphyr::to_string_with_options(self, options).expect("a recipe holds texts and numbers only")
    }

    /// Appends a rule. A recipe that was shipped or read from a file is then no longer the one of that name:
    /// the name says what is changed, as far as that is short, as in `default (changed: head.** disabled)`.
    pub fn with_rule(mut self, rule: Rule) -> Recipe {
        self.name = name::changed(&self.name, &rule);
        self.rules.push(rule);
        self
    }

    /// Appends a rule that sets how the numbers of every layer are found.
    pub fn with_ptq(self, ptq: Ptq) -> Recipe {
        self.with_rule(Rule::with_ptq(ptq))
    }

    /// The effective setting of every site of `config`, in forward order.
    ///
    /// # Errors
    /// [`ModelError::Recipe`] for a rule that matches no site, naming the nearest sites, unless a stack of
    /// blocks lacks the layer that it names; for activations of less than 8 bits, `u8` outside `probs`, a
    /// fixed range of a weight, and `ptq` of an activation.
    pub fn resolve(&self, config: &SwinConfig) -> Result<Vec<(Site, SiteSpec)>, ModelError> {
        let sites = all_sites(config);
        let mut table: Vec<(Site, SiteSpec)> = sites.iter().map(|&site| (site, default_spec(site))).collect();
        for rule in &self.rules {
            let fail = |problem: String| {
                ModelError::recipe(&self.name, format!("rule `{}`: {problem}", rule.pattern))
            };
            let matcher = SitePattern::new(&rule.pattern).map_err(fail)?;
            let mut matched = 0;
            for (site, spec) in table.iter_mut().filter(|(site, _)| matcher.matches(&site.to_string())) {
                matched += 1;
                rule.apply(*site, spec).map_err(|problem| fail(format!("{site}: {problem}")))?;
            }
            let is_of_whole = |site: &Site| matcher.matches(&site.to_string());
            if matched == 0 && config.takes_tokens() && beside_blocks().iter().any(is_of_whole) {
                continue;
            }
            if matched == 0 {
                let below = format!("{}.**", rule.pattern);
                let meant = SitePattern::new(&below)
                    .is_ok_and(|matcher| sites.iter().any(|site| matcher.matches(&site.to_string())));
                let similar = nearest_patterns(&rule.pattern, sites.iter().copied());
                let hint = match (meant, similar.as_slice()) {
                    (true, _) => format!("did you mean `{below}`, the sites below it?"),
                    (false, []) => format!("the nearest sites are {}", nearest_sites(&rule.pattern, sites)),
                    (false, similar) => format!("did you mean `{}`?", similar.join("` or `")),
                };
                return Err(fail(format!("matches no site of {}; {hint}", config.name)));
            }
        }
        Ok(table)
    }

    /// The rule that decides whether the site of this name is quantized: the last matching rule with
    /// `enable`.
    pub fn deciding_rule(&self, name: &str) -> Option<&Rule> {
        let decides = |rule: &&Rule| {
            rule.enable.is_some()
                && SitePattern::new(&rule.pattern).is_ok_and(|matcher| matcher.matches(name))
        };
        self.rules.iter().rev().find(decides)
    }
}

/// The setting of `site` before any rule: not quantized; `probs` sites have kind `u8`.
fn default_spec(site: Site) -> SiteSpec {
    SiteSpec {
        enabled: false,
        bits: 8,
        granularity: Granularity::Channel,
        calibrator: Calibrator::Max,
        amax: None,
        kind: if matches!(site, Site::Probs(_)) { Kind::U8 } else { Kind::S8 },
        ptq: Ptq::Basic,
    }
}

impl Rule {
    /// The rule that sets how the numbers of every layer are found.
    pub fn with_ptq(ptq: Ptq) -> Rule {
        Rule { pattern: WEIGHTS.to_owned(), ptq: Some(ptq), ..Rule::default() }
    }

    /// The rule that sets the calibrator of every activation.
    pub fn of_activations(calibrator: Calibrator) -> Rule {
        Rule { pattern: ACTIVATIONS.to_owned(), calibrator: Some(calibrator), ..Rule::default() }
    }

    /// Checks the values that are wrong at every site.
    fn check(&self) -> Result<(), String> {
        if self.pattern.is_empty() {
            return Err("`match` is empty".to_owned());
        }
        if let Some(bits) = self.bits.filter(|b| ![4, 7, 8].contains(b)) {
            return Err(format!("bits {bits} is not supported; use 8, or 7 or 4 for weights"));
        }
        if let Some(amax) = self.amax.filter(|a| !(a.is_finite() && *a > 0.0)) {
            return Err(format!("amax {amax} is not a positive number"));
        }
        self.calibrator.map_or(Ok(()), Calibrator::check)
    }

    fn apply(&self, site: Site, spec: &mut SiteSpec) -> Result<(), String> {
        if let Some(bits) = self.bits.filter(|&bits| bits != 8 && !site.is_weight()) {
            return Err(format!("{bits} bits are supported for weights only"));
        }
        if self.kind == Some(Kind::U8) && !matches!(site, Site::Probs(_)) {
            return Err("kind u8 is supported for `probs` sites only".to_owned());
        }
        if self.amax.is_some() && site.is_weight() {
            return Err("a weight's range comes from its values; `amax` is for activations only".to_owned());
        }
        if self.ptq.is_some() && !site.is_weight() {
            return Err("`ptq` is stated at a layer's weight; match `**.weight`".to_owned());
        }
        spec.enabled = self.enable.unwrap_or(spec.enabled);
        spec.bits = self.bits.unwrap_or(spec.bits);
        spec.granularity = self.granularity.unwrap_or(spec.granularity);
        spec.kind = self.kind.unwrap_or(spec.kind);
        spec.ptq = self.ptq.unwrap_or(spec.ptq);
        if let Some(calibrator) = self.calibrator {
            (spec.calibrator, spec.amax) = (calibrator, None);
        }
        spec.amax = self.amax.or(spec.amax);
        Ok(())
    }
}

/// The sites of the layers that a network of images may have beside its blocks, and a stack of blocks may
/// lack.
fn beside_blocks() -> Vec<Site> {
    let merging = (0..MAX_STAGES).map(Linear::Reduction);
    let layers = [Linear::PatchEmbed, Linear::Head].into_iter().chain(merging);
    layers.flat_map(|layer| [Site::Input(layer), Site::Weight(layer), Site::Output(layer)]).collect()
}

#[cfg(test)]
mod tests;
