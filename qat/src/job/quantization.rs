//! The section `quantization`: which scales are trained.

use serde::{Deserialize, Serialize};
use swinq_model::{Site, SitePattern, nearest_sites};

use super::error::JobError;
use super::values::{ActivationScales, Scales, WeightScales};

/// `quantization`: the treatment of the scales during training. The calibrated checkpoint decides which sites
/// are quantized.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QuantizationKeys {
    /// Scales of activations: `fixed` or `learned`. Default `fixed`.
    pub activation_scales: ActivationScales,
    /// Scales of weights: `recomputed` or `learned`. Default `recomputed`.
    pub weight_scales: WeightScales,
    /// Exceptions by site; the last matching rule decides. Default: none.
    pub rules: Vec<ScaleRule>,
}

/// An exception of [`QuantizationKeys`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScaleRule {
    /// A glob over site names, or `re:` and a regular expression ([`SitePattern`]).
    #[serde(rename = "match")]
    pub pattern: String,
    /// `fixed` (activations only), `learned` or `recomputed` (weights only).
    pub scales: Scales,
}

impl QuantizationKeys {
    /// The treatment of the scales of each of `sites`, in their order. All of `sites` have a scale.
    ///
    /// # Errors
    /// [`JobError::Key`], naming `job`, for a rule that matches no site (with the nearest sites), and for a
    /// rule that sets weights to `fixed` or activations to `recomputed`.
    pub fn resolve(&self, job: &str, sites: &[Site]) -> Result<Vec<(Site, Scales)>, JobError> {
        let mut table: Vec<(Site, Scales)> =
            sites.iter().map(|&site| (site, self.default_of(site))).collect();
        for (index, rule) in self.rules.iter().enumerate() {
            let fail = |problem| rule_error(job, index, problem);
            let pattern = SitePattern::new(&rule.pattern).map_err(fail)?;
            let mut matched = false;
            for (site, scales) in table.iter_mut().filter(|(site, _)| pattern.matches(&site.to_string())) {
                rule.check(*site).map_err(fail)?;
                (*scales, matched) = (rule.scales, true);
            }
            if !matched {
                let nearest = nearest_sites(&rule.pattern, sites.iter().copied());
                let text =
                    format!("`{}` matches no site with a scale; the nearest are {nearest}", rule.pattern);
                return Err(fail(text));
            }
        }
        Ok(table)
    }

    fn default_of(&self, site: Site) -> Scales {
        if site.is_weight() { self.weight_scales.into() } else { self.activation_scales.into() }
    }

    /// Checks the patterns, which do not depend on the sites.
    pub(super) fn check(&self, job: &str) -> Result<(), JobError> {
        for (index, rule) in self.rules.iter().enumerate() {
            let empty = || "`match` is empty; `**` means every site".to_owned();
            let pattern =
                if rule.pattern.is_empty() { Err(empty()) } else { SitePattern::new(&rule.pattern) };
            pattern.map_err(|problem| rule_error(job, index, problem))?;
        }
        Ok(())
    }
}

impl ScaleRule {
    fn check(&self, site: Site) -> Result<(), String> {
        let pattern = &self.pattern;
        match (self.scales, site.is_weight()) {
            (Scales::Fixed, true) => Err(format!(
                "`{pattern}` sets {site} to fixed, which is for activations only; set weights to recomputed or learned"
            )),
            (Scales::Recomputed, false) => Err(format!(
                "`{pattern}` sets {site} to recomputed, which is for weights only; set activations to fixed or learned"
            )),
            _ => Ok(()),
        }
    }
}

fn rule_error(job: &str, index: usize, problem: String) -> JobError {
    JobError::key(job, format!("quantization.rules[{index}]"), problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sites() -> Vec<Site> {
        ["layers.0.blocks.0.mlp.fc1.input", "layers.0.blocks.0.mlp.fc1.weight", "layers.0.blocks.0.attn.q"]
            .map(|name| name.parse().unwrap())
            .to_vec()
    }

    fn resolve(keys: &str) -> Result<Vec<Scales>, String> {
        let keys: QuantizationKeys = serde_saphyr::from_str(keys).unwrap();
        keys.check("test").map_err(|e| e.to_string())?;
        let table = keys.resolve("test", &sites()).map_err(|e| e.to_string())?;
        assert_eq!(table.iter().map(|(site, _)| *site).collect::<Vec<_>>(), sites());
        Ok(table.into_iter().map(|(_, scales)| scales).collect())
    }

    #[test]
    fn rules_are_exceptions_to_the_defaults() {
        use Scales::*;
        assert_eq!(resolve("{}").unwrap(), [Fixed, Recomputed, Fixed]);
        assert_eq!(resolve("weight_scales: learned").unwrap(), [Fixed, Learned, Fixed]);
        let rules = "rules: [{match: '**', scales: learned}, {match: 're:.*attn\\.q', scales: fixed}]";
        assert_eq!(resolve(rules).unwrap(), [Learned, Learned, Fixed]);
    }

    #[test]
    fn impossible_rules_are_refused() {
        for (rules, words) in [
            ("rules: [{match: '**.weight', scales: fixed}]", ["rules[0]", "recomputed or learned"]),
            ("rules: [{match: '**', scales: recomputed}]", ["fc1.input", "fixed or learned"]),
            ("rules: [{match: '**.fc3.input', scales: learned}]", ["matches no site", "fc1.input"]),
            ("rules: [{match: '', scales: learned}]", ["is empty", "every site"]),
            ("rules: [{match: 're:(', scales: learned}]", ["rules[0]", "unclosed"]),
        ] {
            let message = resolve(rules).unwrap_err();
            assert!(words.iter().all(|word| message.contains(word)), "{message}");
        }
    }
}
