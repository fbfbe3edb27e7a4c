//! The HTML report: it is well formed and self-contained, escapes every text, and shows the required figures.

use std::collections::BTreeMap;
use std::path::Path;

use crate::common;
use swinq_eval::results::tune::MetricGoal;
use swinq_eval::{
    Disagreement, Environment, Interval, ModelResult, Precision, ReportExtras, Results, Thumbnail, html,
    markdown,
};
use swinq_model::Rule;
use swinq_model::quantized::FileRecord;

const VOID: [&str; 3] = ["meta", "br", "img"];

/// Checks that tags nest and close, attributes are quoted, and `<`, `>`, `&` appear in markup only. Returns
/// the number of each element.
fn check_well_formed(page: &str) -> BTreeMap<String, usize> {
    let mut body = page.strip_prefix("<!DOCTYPE html>\n").expect("a doctype");
    let (mut open, mut counts) = (Vec::new(), BTreeMap::new());
    while let Some(start) = body.find('<') {
        check_text(&body[..start], &open);
        let end = start + body[start..].find('>').expect("every tag ends");
        let tag = &body[start + 1..end];
        body = &body[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "in order of opening");
            continue;
        }
        let closed = tag.ends_with('/');
        let tag = tag.trim_end_matches('/');
        let (name, attributes) = tag.split_once([' ', '\n']).unwrap_or((tag, ""));
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric()), "element {name}");
        check_attributes(attributes);
        *counts.entry(name.to_owned()).or_default() += 1;
        if !closed && !VOID.contains(&name) {
            open.push(name);
        }
    }
    check_text(body, &open);
    assert!(open.is_empty(), "{open:?} left open");
    counts
}

fn check_text(text: &str, open: &[&str]) {
    if open.last() == Some(&"style") {
        return;
    }
    assert!(!text.contains('>'), "{text}");
    for rest in text.split('&').skip(1) {
        let entity = rest.split(';').next().unwrap();
        let named = ["amp", "lt", "gt", "quot"].contains(&entity);
        assert!(named || entity.strip_prefix('#').is_some_and(|n| n.parse::<u32>().is_ok()), "&{entity}");
    }
}

fn check_attributes(mut text: &str) {
    while !text.trim().is_empty() {
        text = text.trim_start();
        let Some((name, rest)) = text.split_once("=\"").filter(|(name, _)| !name.contains(' ')) else {
            let flag = text.split(' ').next().unwrap();
            assert!(["open"].contains(&flag), "attribute {text}");
            text = &text[flag.len()..];
            continue;
        };
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == 'B'), "attribute {name}");
        let allowed = match name {
            "src" => rest.starts_with("data:image/jpeg;base64,"),
            "href" => rest.starts_with('#'),
            name => !name.starts_with("on"),
        };
        assert!(allowed, "{name}=\"{rest:.40}");
        let end = rest.find('"').expect("the quote ends");
        check_text(&rest[..end], &[]);
        text = &rest[end + 1..];
    }
}

fn full() -> (Results, ReportExtras) {
    let results = common::complete(common::results());
    let picture = |byte: u8| Thumbnail { jpeg: vec![byte; 40], width: 112, height: 112 };
    let thumbnails = (0..3).map(|id| (id, picture(id as u8))).collect();
    (results, ReportExtras { thumbnails, ..ReportExtras::default() })
}

/// Checks what holds for every page, and returns the number of each element.
pub fn check(page: &str) -> BTreeMap<String, usize> {
    let counts = check_well_formed(page);
    for absent in ["script", "link", "iframe", "object", "image", "use"] {
        assert!(!counts.contains_key(absent), "{absent}");
    }
    for absent in ["http", "url(", "@import", "javascript:", "NaN", "=\"inf", "=\"-inf"] {
        assert!(!page.contains(absent), "{absent}");
    }
    // Every link of the navigation leads to a section.
    for link in page.split("href=\"#").skip(1) {
        let id = link.split('"').next().unwrap();
        assert_eq!(page.matches(&format!("id=\"{id}\"")).count(), 1, "{id}");
    }
    counts
}

#[test]
fn a_full_report_is_well_formed_and_loads_nothing() {
    let (results, extras) = full();
    let page = html(&results, &extras);
    std::fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join("report.html"), &page).unwrap();
    let counts = check(&page);
    assert_eq!(counts["img"], 3);
    assert_eq!(counts["section"], 11);
    assert_eq!(page.matches("aria-label=\"Precision and").count(), 2, "a map for each quantized model");
    assert_eq!(page.matches("aria-label=\"Top-1 accuracy against").count(), 2, "for wide and narrow pages");
    assert_eq!(page.matches("over the iterations").count(), 4, "curves of the training");
    assert!(page.contains("prefers-color-scheme: dark") && page.contains("@media print"));
    assert!(!page.contains("<title></title>") && page.matches("<title>").count() == 1, "no tooltips");
}

#[test]
fn a_report_shows_the_required_figures() {
    let (results, extras) = full();
    let page = html(&results, &extras);
    let expected = [
        "<title>INT8 Swin-T (swin_t-default): 2.4x faster, a quarter of the size, 0.43 points of top-1 lost on 50,000 images</title>",
        "<td class=\"subject\">80.75 %<small>-0.43</small></td>",
        "<td class=\"subject\">-0.61 to -0.26</td>",
        "<td class=\"subject\">15.409<small>2.36x</small></td>",
        "30</td>",
        "18 lost, 9 gained",
        "<small>0.26x</small>",
        "30 of 50,000 images change their class: 18 from right to wrong, 9 from wrong to right",
        "kind 9 52 %",
        "switched off by the recipe `mode1`",
        "<td>switched off by the recipe `default`</td><td>117</td><td>patch_embed.proj.input, ",
        "attn.scores (12), attn.proj.output (12)",
        "the FP16 engine needs a GPU",
        "percentile 99.99 (",
        "load average at the start",
        "other processes used 0.05 of 2 cores; load average 2.10",
        "80 images in batches of 8, seed 0, SHA-256 of the pixels cdcd",
        "Top-1 went from 80.000 % after calibration to 82.000 % at step 200",
        "swinq calibrate swin_t.pth --data-path IMAGES --recipe default --batches 10 --batch-size 8 --seed 0 -o \
         models/swin_t-default.safetensors",
        "swinq qat run1/job.yaml",
        "swinq eval swin_t.pth",
        "avx512_vnni",
        "2026-01-02T03:04:05Z",
        "shorter side to 256",
    ];
    for text in expected {
        assert!(page.contains(text), "{text}");
    }
    assert_eq!(page, html(&results, &extras), "the same results give the same bytes");
}

/// A recipe with added rules, and ranges that were imported instead of calibrated.
#[test]
fn a_changed_recipe_and_imported_ranges_are_named() {
    let (mut results, extras) = full();
    let [_, imported, changed] = results.models.as_mut_slice() else { panic!("three models") };
    let ranges = FileRecord { file: "calib.pth".to_owned(), sha256: "ef".repeat(32) };
    let origin = imported.origin.as_mut().unwrap();
    (origin.calibration, origin.imported_ranges) = (None, Some(ranges));
    changed.recipe = Some("mode1 (changed: head.** disabled)".to_owned());
    let rule = Rule { pattern: "head.**".to_owned(), enable: Some(false), ..Rule::default() };
    changed.origin.as_mut().unwrap().rules.push(rule);
    for text in [html(&results, &extras), markdown(&results, &extras)] {
        for words in [
            "none; ranges imported from calib.pth (SHA-256 efef",
            "mode1 (changed: head.",
            "--recipe mode1-changed.yaml",
            "head.**",
        ] {
            assert!(text.contains(words), "`{words}` is not in: {text}");
        }
    }
}

const HOSTILE: &str = "</title></svg></pre><script>alert('x')</script>|\"&`\u{7}\n# x";

/// `results` with a hostile text in every field that holds text from outside.
fn hostile(mut results: Results) -> Results {
    let text = || HOSTILE.to_owned();
    for model in &mut results.models {
        (model.name, model.backend) = (text(), text());
        (model.recipe, model.sha256, model.path, model.architecture) =
            (Some(text()), Some(text()), Some(text()), Some(text()));
        if let Some(origin) = &mut model.origin {
            (origin.source, origin.source_sha256, origin.command) = (text(), text(), Some(text()));
            origin.rules[0].pattern = text();
        }
        for launch in model.profile.iter_mut().flat_map(|profile| &mut profile.launches) {
            launch.name.push_str(HOSTILE);
        }
        for site in &mut model.sites {
            site.site.push_str(HOSTILE);
            site.reason = Some(text());
        }
        model.disagreements.iter_mut().for_each(|image| image.image = Some(text()));
    }
    results.notes.push(text());
    results.commands.push(text());
    (results.environment.cpu, results.environment.time) = (Some(text()), text());
    results.environment.libraries.insert(text(), text());
    let data = results.data.as_mut().unwrap();
    (data.path, data.class_names) = (text(), Some(vec![text(); 10]));
    let training = results.training.as_mut().unwrap();
    (training.folder, training.job) = (text(), text());
    let program = results.program.as_mut().unwrap();
    (program.environment.device, program.environment.torch) = (text(), text());
    program.metric.as_mut().unwrap().name = text();
    (program.outputs[0].0, program.incomparable[0]) = (text(), (text(), text()));
    results
}

#[test]
fn every_text_is_escaped() {
    let (results, mut extras) = full();
    let results = hostile(results);
    for title in ["", HOSTILE] {
        extras.title = title.to_owned();
        let page = html(&results, &extras);
        check_well_formed(&page);
        assert!(!page.contains("<script") && page.contains("alert(&#39;x&#39;)"));
    }
    let text = markdown(&results, &ReportExtras::default());
    assert!(!text.contains("\n# x"), "{text}");
    check_tables(&text);
}

/// Checks that all rows of a Markdown table have the same number of cells, and returns the number of tables.
pub fn check_tables(text: &str) -> usize {
    let (mut columns, mut tables, mut fence) = (None, 0, None::<String>);
    for line in text.lines() {
        let ticks: String = line.trim_start().chars().take_while(|&c| c == '`').collect();
        if ticks.len() >= 3 && fence.as_ref().is_none_or(|open| *open == ticks) {
            fence = if fence.is_some() { None } else { Some(ticks) };
        }
        if fence.is_some() || !line.starts_with('|') {
            columns = None;
            continue;
        }
        let cells = line.replace("\\|", "").matches('|').count();
        tables += usize::from(columns.is_none());
        assert_eq!(*columns.get_or_insert(cells), cells, "{line}");
    }
    assert_eq!(fence, None, "every fence closes");
    tables
}

#[test]
fn markdown_has_the_figures_of_the_page() {
    let (results, _) = full();
    let text = markdown(&results, &ReportExtras::default());
    assert!(text.starts_with("# INT8 Swin-T (swin\\_t-default): 2.4x faster"), "{text}");
    assert!(check_tables(&text) >= 8, "{text}");
    for expected in [
        "| top-1 | 81.18 % | 80.75 % (-0.43) | 80.42 % (-0.76) |",
        "| median ms, batch 1 | 36.422 | 15.409 (2.36x) | 14.008 (2.60x) |",
        "| kind 2 | 5000 |",
        "```\n   swinq eval swin_t.pth",
        "- {match: \"**\", ",
    ] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
}

#[test]
fn missing_figures_give_a_smaller_report() {
    let mut results = Results::new(Environment::default());
    let none = ReportExtras::default();
    let counts = check(&html(&results, &none));
    assert!(!counts.contains_key("svg"));
    check_tables(&markdown(&results, &ReportExtras::default()));
    results.models =
        vec![ModelResult::new("a", Precision::Fp32, "cpu"), ModelResult::new("b", Precision::Int8, "cpu")];
    results.models[0].set_latency(1, &common::latency(1.0));
    let page = html(&results, &none);
    assert_eq!(check(&page)["svg"], 1);
    assert!(page.contains("no figure in common with the baseline"));
    results.models[1].set_latency(1, &common::latency(2.0));
    for model in &mut results.models {
        (model.images, model.top1_correct, model.top5_correct) = (Some(1), Some(0), Some(0));
    }
    check(&html(&results, &none));
    for model in &mut results.models {
        model.latency_ms.clear();
    }
    let page = html(&results, &none);
    check(&page);
    assert!(!page.contains("id=\"front\""), "no latency, no chart");
    results.models.truncate(1);
    check(&html(&results, &none));
}

/// `count` models with long names that are equal at both ends.
fn many(count: usize) -> Results {
    let mut results = common::complete(common::results());
    let model = results.models.remove(1);
    results.models.truncate(1);
    for i in 1..count {
        let mut other = model.clone();
        other.name = format!(
            "experiments/2026-01/a/rather/long/path/swin_tiny_{}_number_{i}_of_many.safetensors",
            "x".repeat(60)
        );
        other.set_latency(1, &common::latency(10.0 + 0.01 * i as f64));
        results.models.push(other);
    }
    results
}

#[test]
fn degenerate_figures_are_drawn() {
    let (mut results, extras) = full();
    // Nothing agrees, one image, and infinite ratios.
    for model in &mut results.models[1..] {
        (model.agreement, model.cosine, model.sqnr_db) = (Some(0.0), Some(-1.0), Some(f64::NEG_INFINITY));
        (model.images, model.top1_correct, model.top5_correct) = (Some(1), Some(0), Some(0));
        model.top1_difference = Some(Interval { difference: -1.0, low: -1.0, high: 0.1 });
        model.sites.iter_mut().for_each(|site| site.sqnr_db = site.sqnr_db.map(|_| f64::INFINITY));
        model.disagreements = model
            .disagreements
            .iter()
            .map(|image| Disagreement { kl: 0.0, label: None, ..image.clone() })
            .collect();
    }
    let page = html(&results, &extras);
    let counts = check_well_formed(&page);
    assert!(counts["svg"] > 20 && !page.contains("NaN"));
    assert!(page.contains("Warning.") && page.contains("loss not concluded on 1 image "), "{}", &page[..400]);
    check(&html(&many(6), &ReportExtras::default()));
    check_tables(&markdown(&many(6), &ReportExtras::default()));
}

/// A page must stay below this number of bytes.
const LIMIT: usize = 1_500_000;

#[test]
fn a_report_of_six_models_stays_small() {
    let mut results = many(6);
    for model in &mut results.models {
        // As many sites and launches as Swin-L has, and 1,000 classes.
        let (sites, launches) = (model.sites.clone(), model.profile.as_ref().unwrap().launches.clone());
        model.sites.extend(sites);
        model.profile.as_mut().unwrap().launches.extend(launches);
        let class = model.classes[2];
        model.classes = (0..1000).map(|i| swinq_eval::ClassResult { class: i, ..class }).collect();
        if let Some(image) = model.disagreements.first().cloned() {
            model.disagreements = (0..12).map(|id| Disagreement { id, ..image.clone() }).collect();
        }
    }
    let picture = Thumbnail { jpeg: vec![0; 12_000], width: 128, height: 128 };
    let extras = ReportExtras {
        thumbnails: (0..12).map(|id| (id, picture.clone())).collect(),
        ..ReportExtras::default()
    };
    let page = html(&results, &extras);
    check(&page);
    assert!(page.len() < LIMIT, "{} bytes", page.len());
}

#[test]
fn sensitivity_and_tuning_are_shown() {
    let (results, extras) = full();
    let extras =
        ReportExtras { sensitivity: Some(common::sensitivity()), tuning: Some(common::tuning()), ..extras };
    let page = html(&results, &extras);
    check(&page);
    std::fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join("tuned.html"), &page).unwrap();
    for expected in [
        "<td class=\"label\">layers.2.blocks.19.mlp.fc2</td>",
        "<summary>The other 5 layers</summary>",
        "<td>+0.05 ± 0.08 ?</td>",
        "noise at the site and not its effect on the result: that is in the section Sensitivity",
        "and 3 of 64 images change their class",
        "<td>9.5</td>",
        "Not concluded: -0.10 points (95 % interval -0.40 to +0.20) on 2,925 images",
        "on 2,925 images that the search did not see; about 20,000 verification images would decide (--images 40000).",
        "The search ended after 4 recipes: no further change",
        "<tr class=\"chosen\"><td>#1 (chosen)</td><td>13.000</td>",
        "aria-label=\"Signal to noise of the logits against predicted latency",
        "aria-label=\"Signal to noise of the residual stream",
    ] {
        assert!(page.contains(expected), "{expected}");
    }
    let text = markdown(&results, &extras);
    check_tables(&text);
    assert!(text.contains("## Tuning") && text.contains("| layers.2.blocks.19.mlp.fc2 |"), "{text}");
    // A search alone has a report of its own.
    let alone = html(&Results::new(Environment::default()), &extras);
    check(&alone);
    let title = "<title>Tuned Swin-T: 2.8x faster than float, a drop of at most 0.2 points of top-1 is not concluded \
                 on 2,925 images</title>";
    assert!(alone.contains(title), "{}", &alone[..300]);
}

#[test]
fn a_search_by_a_metric_of_the_users_shows_it() {
    let mut tuning = common::tuning();
    (tuning.goal.max_drop, tuning.verification) = (None, None);
    tuning.goal.metric = Some(MetricGoal { name: "box AP".to_owned(), float: 46.0, max_drop: 0.5 });
    for (candidate, value) in tuning.candidates.iter_mut().zip([44.0, 45.75, 45.25, 46.0]) {
        (candidate.value, candidate.top1_difference, candidate.effect.kl) = (Some(value), None, None);
    }
    let extras = ReportExtras { tuning: Some(tuning), ..ReportExtras::default() };
    let page = html(&Results::new(Environment::default()), &extras);
    check_well_formed(&page);
    for text in [
        "<title>Tuned Swin-T: 2.8x faster than float, a drop of box AP of at most 0.5 from 46 holds</title>",
        "The goal holds: box AP is 45.75, and 46 in float.",
        "<th scope=\"col\">difference from float</th>",
        "<td>-0.2500</td>",
        "SQNR of the worst output",
    ] {
        assert!(page.contains(text), "{text}");
    }
    assert!(!page.contains("top-1 difference"));
    check_tables(&markdown(&Results::new(Environment::default()), &extras));
}

#[test]
fn degenerate_searches_are_drawn() {
    let (mut sensitivity, mut tuning) = (common::sensitivity(), common::tuning());
    for element in &mut sensitivity.layers {
        (element.alone.sqnr_db, element.without.sqnr_db, element.macs) = (f64::INFINITY, f64::INFINITY, 0);
    }
    sensitivity.sites.clear();
    sensitivity.blocks.iter_mut().for_each(|block| block.sqnr_db = f64::INFINITY);
    sensitivity.ranges[0].spread = None;
    tuning.candidates.truncate(1);
    tuning.candidates[0].effect.sqnr_db = f64::INFINITY;
    (tuning.front, tuning.chosen) = (vec![], 0);
    let extras =
        ReportExtras { sensitivity: Some(sensitivity), tuning: Some(tuning), ..ReportExtras::default() };
    let page = html(&Results::new(Environment::default()), &extras);
    check_well_formed(&page);
    assert!(!page.contains("NaN") && !page.contains("Signal to noise of"));
    check_tables(&markdown(&Results::new(Environment::default()), &extras));
}

/// The first picture of `page` whose text alternative starts with `label`.
fn picture<'a>(page: &'a str, label: &str) -> &'a str {
    let at = page.find(&format!("<svg role=\"img\" aria-label=\"{label}")).expect(label);
    let end = page[at..].find("</svg>").expect("it ends");
    &page[at..at + end + 6]
}

#[test]
fn charts_equal_their_snapshots() {
    let (results, extras) = full();
    let page = html(&results, &extras);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots");
    let charts = [
        ("front", "Top-1 accuracy against"),
        ("map", "Precision and quantization error"),
        ("histogram", "Histogram of magnitudes"),
        ("curve", "validation top-1"),
    ];
    for (name, label) in charts {
        let (found, path) = (picture(&page, label).to_owned() + "\n", folder.join(format!("{name}.svg")));
        if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
            std::fs::write(&path, &found).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == expected,
            "{} differs from the chart; look at the new one with UPDATE_SNAPSHOTS=1 set",
            path.display()
        );
    }
}
