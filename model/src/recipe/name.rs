//! Names of recipes with added rules: `default (changed: head.** disabled)`.

use super::{ACTIVATIONS, Granularity, Kind, Rule, WEIGHTS};

/// Between a recipe's own name and the changes.
const START: &str = " (changed";
/// Stands for the changes that no longer fit.
const MORE: &str = "...";
/// The longest text of the changes, in bytes.
const LONGEST: usize = 60;

/// The name of the recipe `name` once `rule` is added to it.
pub(super) fn changed(name: &str, rule: &Rule) -> String {
    let (own, known) = match parts(name) {
        Some((own, known)) => (own, Some(known)),
        None => (name, None),
    };
    let change = describe(rule);
    let text = match known {
        Some(known) if known.ends_with(MORE) => known.to_owned(),
        Some(known) if known.len() + change.len() + 2 > LONGEST => format!("{known}; {MORE}"),
        Some(known) => format!("{known}; {change}"),
        None if change.len() > LONGEST => MORE.to_owned(),
        None => change,
    };
    format!("{own}{START}: {text})")
}

/// The name before rules were added, and the changes. `None` for a recipe without added rules.
fn parts(name: &str) -> Option<(&str, &str)> {
    let (own, changes) = name.rsplit_once(START)?;
    Some((own, changes.strip_prefix(": ")?.strip_suffix(')')?))
}

/// The contents of `rule`, in words.
fn describe(rule: &Rule) -> String {
    let Rule { pattern, enable, bits, granularity, calibrator, amax, kind, ptq } = rule;
    let stated = [
        enable.map(|on| if on { "enabled" } else { "disabled" }.to_owned()),
        bits.map(|bits| format!("{bits} bits")),
        granularity.map(|granularity| match granularity {
            Granularity::Channel => "per channel".to_owned(),
            Granularity::Tensor => "per tensor".to_owned(),
        }),
        calibrator.map(|calibrator| format!("calibrator {calibrator}")),
        amax.map(|amax| format!("amax {amax}")),
        kind.map(|kind| match kind {
            Kind::S8 => "s8".to_owned(),
            Kind::U8 => "u8".to_owned(),
        }),
        ptq.map(|ptq| format!("ptq {ptq}")),
    ];
    let stated: Vec<String> = stated.into_iter().flatten().collect();
    let stated = stated.join(", ");
    match pattern.as_str() {
        ACTIVATIONS | WEIGHTS => stated,
        pattern => format!("{pattern} {stated}"),
    }
}

/// A name for a file of the recipe `name`: letters, digits and `._-`.
pub fn file_stem(name: &str) -> String {
    let (own, end) = parts(name).map_or((name, ""), |(own, _)| (own, "-changed"));
    let kept = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-');
    let words: Vec<&str> = own.split(|c| !kept(c)).filter(|word| !word.is_empty()).collect();
    format!("{}{end}", words.join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Calibrator, Ptq, Recipe};

    fn off(pattern: &str) -> Rule {
        Rule { pattern: pattern.to_owned(), enable: Some(false), ..Rule::default() }
    }

    #[test]
    fn a_name_says_what_was_changed() {
        let recipe = Recipe::shipped("default").unwrap().with_rule(off("head.**"));
        assert_eq!(recipe.name, "default (changed: head.** disabled)");
        let calibrator = Rule::of_activations(Calibrator::Percentile(99.9));
        let recipe = Recipe::shipped("mode1").unwrap().with_rule(calibrator).with_ptq(Ptq::Basic);
        assert_eq!(recipe.name, "mode1 (changed: calibrator percentile 99.9; ptq basic)");
        let weights = Rule {
            pattern: WEIGHTS.to_owned(),
            bits: Some(4),
            granularity: Some(Granularity::Channel),
            ..Rule::default()
        };
        assert_eq!(changed("mine", &weights), "mine (changed: 4 bits, per channel)");
    }

    #[test]
    fn a_name_stays_short() {
        let mut recipe = Recipe::shipped("default").unwrap();
        for block in 0..40 {
            recipe = recipe.with_rule(off(&format!("layers.2.blocks.{block}.**.fc2.*")));
        }
        assert_eq!(recipe.name, "default (changed: layers.2.blocks.0.**.fc2.* disabled; ...)");
        let long = off(&"x".repeat(200));
        let recipe = Recipe::shipped("default").unwrap().with_rule(long).with_ptq(Ptq::Basic);
        assert_eq!(recipe.name, "default (changed: ...)");
    }

    #[test]
    fn files_have_plain_names() {
        for (name, stem) in [
            ("default", "default"),
            ("default (changed: head.** disabled)", "default-changed"),
            ("default, changed", "default-changed"),
            ("mode1 tuned", "mode1-tuned"),
            (
                "default (changed: head.** disabled) tuned (changed: ptq basic)",
                "default-changed-head.-disabled-tuned-changed",
            ),
            ("../a (b) $c", "..-a-b-c"),
        ] {
            assert_eq!(file_stem(name), stem);
        }
    }
}
