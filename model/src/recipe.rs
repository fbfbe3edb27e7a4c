//! Recipes: ordered rules that say which sites are quantized, and how.
//!
//! ```yaml
//! name: mine
//! rules:
//!   - {match: "**", enable: true, granularity: channel, calibrator: {percentile: 99.99}}
//!   - {match: "{patch_embed,head}.**", enable: false}
//! ```
//!
//! [`SitePattern`] says what a pattern matches. Each key a rule states overrides what earlier rules stated for the
//! sites it matches. A rule that matches no site of the model is an error.

use serde::{Deserialize, Serialize};

use crate::arch::SwinConfig;
use crate::error::ModelError;
use crate::pattern::{SitePattern, nearest_sites};
use crate::site::{Site, all_sites};

/// How a range is chosen from what was observed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Calibrator {
    /// The largest magnitude seen.
    Max,
    /// The magnitude below which this percentage of the values lies.
    Percentile(f64),
    /// The range with the least mean squared quantization error.
    Mse,
    /// The range with the least Kullback-Leibler divergence.
    Entropy,
}

impl std::fmt::Display for Calibrator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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
            None => match text {
                "max" => Calibrator::Max,
                "mse" => Calibrator::Mse,
                "entropy" => Calibrator::Entropy,
                "percentile" => Calibrator::Percentile(99.99),
                _ => return Err(format!("`{text}` is none of max, percentile[:P], mse, entropy")),
            },
            Some(("percentile", p)) => {
                Calibrator::Percentile(p.parse().map_err(|_| format!("`{p}` is not a number"))?)
            }
            Some(_) => return Err(format!("`{text}` is none of max, percentile[:P], mse, entropy")),
        };
        calibrator.check().map(|()| calibrator)
    }
}

impl Calibrator {
    fn check(self) -> Result<(), String> {
        match self {
            Calibrator::Percentile(p) if !(p > 0.0 && p <= 100.0) => {
                Err(format!("percentile {p} is outside (0, 100]"))
            }
            _ => Ok(()),
        }
    }
}

/// Whether a weight has one scale per output channel or one in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Granularity {
    /// One scale per output channel.
    Channel,
    /// One scale for the tensor.
    Tensor,
}

/// The integer codes of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Signed codes, symmetric, with a scale.
    S8,
    /// Attention probabilities as unsigned codes of `exp(x - rowmax)`, divided by their own sum; no calibration.
    U8,
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
    /// Bits of the codes: 8, or 4 for weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bits: Option<u8>,
    /// Scales per weight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub granularity: Option<Granularity>,
    /// How the range is chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibrator: Option<Calibrator>,
    /// A fixed range, instead of a calibrated one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amax: Option<f32>,
    /// Signed or unsigned codes; `u8` is for `probs` sites only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
}

/// An ordered list of rules.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Name, for messages and reports.
    pub name: String,
    /// What it is for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Rules, applied in order.
    pub rules: Vec<Rule>,
}

/// What a recipe says of one site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiteSpec {
    /// Whether the site is quantized.
    pub enabled: bool,
    /// Bits of the codes.
    pub bits: u8,
    /// Scales per weight (meaningless for activations, which have one).
    pub granularity: Granularity,
    /// How the range is chosen.
    pub calibrator: Calibrator,
    /// A fixed range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amax: Option<f32>,
    /// Signed or unsigned codes.
    pub kind: Kind,
}

impl SiteSpec {
    /// Whether the site needs a range from calibration or the recipe: an enabled activation with signed codes.
    pub fn needs_scale(&self, site: Site) -> bool {
        self.enabled && !site.is_weight() && self.kind == Kind::S8
    }
}

impl Recipe {
    /// A shipped recipe: `default`, `mode1` or `mode2`. `None` for other names.
    pub fn shipped(name: &str) -> Option<Recipe> {
        let text = swinq_configs::find(swinq_configs::QUANT, name)?;
        Some(Recipe::from_yaml(name, text).expect("the shipped recipes are well formed"))
    }

    /// The recipe under which nothing is quantized.
    pub fn float() -> Recipe {
        let rule = Rule { pattern: "**".to_owned(), enable: Some(false), ..Rule::default() };
        Recipe { name: "float".to_owned(), description: "nothing is quantized".to_owned(), rules: vec![rule] }
    }

    /// Parses YAML. `origin` is the file or name to blame in errors.
    ///
    /// # Errors
    /// [`ModelError::Recipe`] for malformed YAML, unknown keys, and values that no site could take.
    pub fn from_yaml(origin: &str, text: &str) -> Result<Recipe, ModelError> {
        let recipe: Recipe =
            serde_saphyr::from_str(text).map_err(|e| ModelError::recipe(origin, e.to_string()))?;
        for rule in &recipe.rules {
            rule.check().map_err(|problem| {
                ModelError::recipe(origin, format!("rule `{}`: {problem}", rule.pattern))
            })?;
        }
        Ok(recipe)
    }

    /// The recipe with one more rule at its end.
    pub fn with_rule(mut self, rule: Rule) -> Recipe {
        self.rules.push(rule);
        self
    }

    /// What the recipe says of every site of `config`, in forward order.
    ///
    /// # Errors
    /// [`ModelError::Recipe`] where a rule matches nothing (naming the nearest sites) or gives a site something
    /// it cannot be (4-bit activations, `u8` outside `probs`, a per-channel activation range).
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
            if matched == 0 {
                let nearest = nearest_sites(&rule.pattern, sites);
                return Err(fail(format!(
                    "matches no site of {}; the nearest sites are {nearest}",
                    config.name
                )));
            }
        }
        Ok(table)
    }

    /// The last rule that says whether the site of this name is quantized, if one does.
    pub fn deciding_rule(&self, name: &str) -> Option<&Rule> {
        let decides = |rule: &&Rule| {
            rule.enable.is_some()
                && SitePattern::new(&rule.pattern).is_ok_and(|matcher| matcher.matches(name))
        };
        self.rules.iter().rev().find(decides)
    }
}

/// What holds before any rule: nothing is quantized; probabilities would be `u8`.
fn default_spec(site: Site) -> SiteSpec {
    SiteSpec {
        enabled: false,
        bits: 8,
        granularity: Granularity::Channel,
        calibrator: Calibrator::Max,
        amax: None,
        kind: if matches!(site, Site::Probs(_)) { Kind::U8 } else { Kind::S8 },
    }
}

impl Rule {
    /// What is wrong with the rule whatever it matches.
    fn check(&self) -> Result<(), String> {
        if self.pattern.is_empty() {
            return Err("`match` is empty".to_owned());
        }
        if let Some(bits) = self.bits.filter(|b| ![4, 8].contains(b)) {
            return Err(format!("bits {bits} is neither 8 nor 4"));
        }
        if let Some(amax) = self.amax.filter(|a| !(a.is_finite() && *a > 0.0)) {
            return Err(format!("amax {amax} is not a positive number"));
        }
        self.calibrator.map_or(Ok(()), Calibrator::check)
    }

    fn apply(&self, site: Site, spec: &mut SiteSpec) -> Result<(), String> {
        if self.bits == Some(4) && !site.is_weight() {
            return Err("4 bits are for weights only".to_owned());
        }
        if self.kind == Some(Kind::U8) && !matches!(site, Site::Probs(_)) {
            return Err("kind u8 is for `probs` sites only".to_owned());
        }
        if self.amax.is_some() && site.is_weight() {
            return Err("a weight's range comes from the weight; `amax` is for activations".to_owned());
        }
        spec.enabled = self.enable.unwrap_or(spec.enabled);
        spec.bits = self.bits.unwrap_or(spec.bits);
        spec.granularity = self.granularity.unwrap_or(spec.granularity);
        spec.kind = self.kind.unwrap_or(spec.kind);
        if let Some(calibrator) = self.calibrator {
            (spec.calibrator, spec.amax) = (calibrator, None);
        }
        spec.amax = self.amax.or(spec.amax);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiny() -> SwinConfig {
        SwinConfig::default()
    }

    fn spec_of(recipe: &Recipe, name: &str) -> SiteSpec {
        let site: Site = name.parse().unwrap();
        recipe.resolve(&tiny()).unwrap().into_iter().find(|(s, _)| *s == site).unwrap().1
    }

    fn recipe(rules: &str) -> Result<Recipe, ModelError> {
        Recipe::from_yaml("test.yaml", &format!("name: test\nrules:\n{rules}"))
    }

    #[test]
    fn later_rules_override_the_keys_they_state() {
        let recipe = recipe(
            "  - {match: '**', enable: true, calibrator: {percentile: 99.9}}\n  - {match: '**.fc1.*', calibrator: mse}\n  \
             - {match: 're:layers\\.0\\..*fc1\\.input', enable: false}\n",
        )
        .unwrap();
        let spec = spec_of(&recipe, "layers.1.blocks.0.mlp.fc1.input");
        assert_eq!((spec.enabled, spec.calibrator), (true, Calibrator::Mse));
        assert!(!spec_of(&recipe, "layers.0.blocks.1.mlp.fc1.input").enabled);
        assert_eq!(spec_of(&recipe, "head.input").calibrator, Calibrator::Percentile(99.9));
    }

    #[test]
    fn one_star_stays_within_a_part() {
        let recipe =
            recipe("  - {match: 'head.*', enable: true}\n  - {match: '*.input', enable: true}\n").unwrap();
        assert!(spec_of(&recipe, "head.input").enabled);
        assert!(!spec_of(&recipe, "patch_embed.proj.input").enabled);
    }

    fn recipe_of_one(pattern: &str) -> Recipe {
        recipe(&format!("  - {{match: '{pattern}', enable: false}}\n")).unwrap()
    }

    #[test]
    fn a_rule_without_a_match_names_the_nearest_sites() {
        let recipe = recipe("  - {match: 'layers.0.blocks.0.mlp.fc3.input', enable: false}\n").unwrap();
        let message = recipe.resolve(&tiny()).unwrap_err().to_string();
        assert!(message.contains("fc3") && message.contains("layers.0.blocks.0.mlp.fc1.input"), "{message}");
        let message = recipe_of_one("layers.7.**.fc2.*").resolve(&tiny()).unwrap_err().to_string();
        assert!(message.contains(".mlp.fc2."), "{message}");
    }

    #[test]
    fn impossible_rules_are_refused() {
        for (rules, word) in [
            ("  - {match: '**', bits: 4}\n", "4 bits"),
            ("  - {match: '**.input', kind: u8}\n", "kind u8"),
            ("  - {match: '**.weight', amax: 1.0}\n", "amax"),
        ] {
            let message = recipe(rules).unwrap().resolve(&tiny()).unwrap_err().to_string();
            assert!(message.contains(word), "{message}");
        }
        for (rules, word) in [
            ("  - {match: '**', bits: 3}\n", "bits 3"),
            ("  - {match: '**', amax: -1}\n", "amax"),
            ("  - {match: '**', calibrator: {percentile: 0}}\n", "percentile"),
            ("  - {match: '**', enabled: true}\n", "enabled"),
        ] {
            let message = recipe(rules).unwrap_err().to_string();
            assert!(message.contains(word), "{message}");
        }
    }

    #[test]
    fn shipped_recipes_keep_what_they_promise() {
        let default = Recipe::shipped("default").unwrap();
        for off in [
            "head.weight",
            "patch_embed.proj.input",
            "layers.0.blocks.0.attn.scores",
            "layers.0.blocks.0.mlp.fc1.output",
        ] {
            assert!(!spec_of(&default, off).enabled, "{off}");
        }
        assert_eq!(spec_of(&default, "layers.0.blocks.0.attn.probs").kind, Kind::U8);
        let (mode1, mode2) = (Recipe::shipped("mode1").unwrap(), Recipe::shipped("mode2").unwrap());
        for site in ["layers.0.blocks.0.mlp.fc2.output", "layers.0.downsample.reduction.output"] {
            assert!(spec_of(&mode1, site).enabled && !spec_of(&mode2, site).enabled, "{site}");
        }
        for recipe in [mode1, mode2] {
            assert!(spec_of(&recipe, "layers.0.blocks.0.attn.qkv.output").enabled);
            assert_eq!(
                spec_of(&recipe, "layers.0.blocks.0.attn.qkv.weight").granularity,
                Granularity::Tensor
            );
            let probs = spec_of(&recipe, "layers.0.blocks.0.attn.probs");
            assert_eq!((probs.kind, probs.calibrator), (Kind::S8, Calibrator::Percentile(99.99)));
            assert!(!spec_of(&recipe, "layers.0.blocks.0.attn.add.branch").enabled);
        }
    }
}
