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

#[test]
fn ptq_is_resolved_for_each_layer() {
    let recipe = recipe(
        "  - {match: '**.weight', ptq: refined}\n  - {match: '**.fc2.weight', ptq: reconstruct}\n  \
         - {match: 'head.weight', ptq: basic}\n",
    )
    .unwrap();
    let ptq = |layer: &str| spec_of(&recipe, &format!("{layer}.weight")).ptq;
    assert_eq!(ptq("layers.0.blocks.0.mlp.fc1"), Ptq::Refined);
    assert_eq!(ptq("layers.0.blocks.0.mlp.fc2"), Ptq::Reconstruct);
    assert_eq!(ptq("head"), Ptq::Basic);
    assert_eq!(spec_of(&recipe, "head.input").ptq, Ptq::Basic);
    for ptq in Ptq::ALL {
        assert_eq!(ptq.to_string().parse(), Ok(ptq));
    }
    assert!("Refined".parse::<Ptq>().unwrap_err().contains("refined"));
}

fn recipe_of_one(pattern: &str) -> Recipe {
    recipe(&format!("  - {{match: '{pattern}', enable: false}}\n")).unwrap()
}

#[test]
fn a_rule_without_a_match_names_the_nearest_sites() {
    let recipe = recipe("  - {match: 'layers.0.blocks.0.mlp.fc3.input', enable: false}\n").unwrap();
    let message = recipe.resolve(&tiny()).unwrap_err().to_string();
    assert!(message.contains("fc3") && message.contains("layers.0.blocks.0.mlp.fc1.input"), "{message}");
    let message = recipe_of_one("**.fc3.*").resolve(&tiny()).unwrap_err().to_string();
    assert!(message.contains("did you mean `**.fc1.*` or `**.fc2.*`?"), "{message}");
    let message = recipe_of_one("**.wieght").resolve(&tiny()).unwrap_err().to_string();
    assert!(message.contains("did you mean `**.weight`?"), "{message}");
    let message = recipe_of_one("layers.7.**.fc2.*").resolve(&tiny()).unwrap_err().to_string();
    assert!(message.contains(".mlp.fc2."), "{message}");
    for (pattern, wider) in [
        ("*.fc2.*", "**.fc2.**"),
        ("fc2", "**.fc2.**"),
        ("fc2.weight", "**.fc2.weight"),
        ("re:fc2", "re:.*(fc2).*"),
        ("layers.*.weight", "layers.**.weight"),
    ] {
        let message = recipe_of_one(pattern).resolve(&tiny()).unwrap_err().to_string();
        assert!(message.ends_with(&format!("did you mean `{wider}`?")), "{message}");
        recipe_of_one(wider).resolve(&tiny()).unwrap();
    }
}

#[test]
fn a_calibrator_with_a_number_is_a_section() {
    let of = |calibrator: &str| recipe(&format!("  - {{match: '**', calibrator: {calibrator}}}\n"));
    for (text, calibrator) in [
        ("max", Calibrator::Max),
        ("mse", Calibrator::Mse),
        ("entropy", Calibrator::Entropy),
        ("{percentile: 99.9}", Calibrator::Percentile(99.9)),
        ("{percentile: 99}", Calibrator::Percentile(99.0)),
    ] {
        assert_eq!(of(text).unwrap().rules[0].calibrator, Some(calibrator), "{text}");
        let json = serde_json::to_string(&calibrator).unwrap();
        assert_eq!(serde_json::from_str::<Calibrator>(&json).unwrap(), calibrator, "{json}");
    }
    for text in [
        "percentile",
        "percentile:99.9",
        "'percentile: 99.9'",
        "max2",
        "7",
        "{max: 1}",
        "{percentile: 9, mse: 1}",
    ] {
        let message = of(text).unwrap_err().to_string();
        assert!(message.contains("max, mse, entropy or {percentile: 99.99}"), "{text}: {message}");
    }
}

#[test]
fn impossible_rules_are_refused() {
    for (rules, word) in [
        ("  - {match: '**', bits: 4}\n", "4 bits are supported for weights only"),
        ("  - {match: '**', bits: 7}\n", "7 bits are supported for weights only"),
        ("  - {match: '**.input', kind: u8}\n", "kind u8"),
        ("  - {match: '**.weight', amax: 1.0}\n", "amax"),
        ("  - {match: '**', ptq: basic}\n", "match `**.weight`"),
    ] {
        let message = recipe(rules).unwrap().resolve(&tiny()).unwrap_err().to_string();
        assert!(message.contains(word), "{message}");
    }
    for (rules, word) in [
        ("  - {match: '**', bits: 3}\n", "bits 3 is not supported; use 8, or 7 or 4 for weights"),
        ("  - {match: '**', amax: -1}\n", "amax"),
        ("  - {match: '**', calibrator: {percentile: 0}}\n", "percentile"),
        ("  - {match: '**', enabled: true}\n", "enabled"),
        ("  - {match: '**.weight', ptq: best}\n", "best"),
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
        assert_eq!(spec_of(&recipe, "layers.0.blocks.0.attn.qkv.weight").granularity, Granularity::Tensor);
        let probs = spec_of(&recipe, "layers.0.blocks.0.attn.probs");
        assert_eq!((probs.kind, probs.calibrator), (Kind::S8, Calibrator::Percentile(99.99)));
        assert!(!spec_of(&recipe, "layers.0.blocks.0.attn.add.branch").enabled);
    }
}

#[test]
fn a_text_without_rules_is_called_empty() {
    for text in ["", "\n  \n", "# name: mine\n"] {
        assert!(Recipe::from_yaml("r.yaml", text).unwrap_err().to_string().contains("empty"), "{text:?}");
    }
}

#[test]
fn yaml_round_trips() {
    for name in ["default", "mode1", "mode2"] {
        let recipe = Recipe::shipped(name).unwrap().with_rule(Rule {
            pattern: r"re:head\.(input|weight)".to_owned(),
            bits: Some(8),
            amax: None,
            calibrator: Some(Calibrator::Percentile(99.999)),
            ..Rule::default()
        });
        assert_eq!(Recipe::from_yaml("copy", &recipe.to_yaml()).unwrap(), recipe);
    }
}
