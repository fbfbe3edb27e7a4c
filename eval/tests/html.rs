//! The HTML report: it is well formed and self-contained, escapes every text, and shows the required figures.

mod common;

use std::collections::BTreeMap;

use swinq_eval::{
    DataInfo, Environment, ModelResult, Precision, RangeHistogram, ReportExtras, Results, html,
};
use swinq_model::Transform;

const VOID: [&str; 2] = ["meta", "br"];

/// Checks that tags nest and close, attributes are quoted, and `<`, `>`, `&` appear in markup only. Returns the
/// number of each element.
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
        assert!(!["src", "href", "onload", "onclick"].contains(&name), "{name}");
        let end = rest.find('"').expect("the quote ends");
        check_text(&rest[..end], &[]);
        text = &rest[end + 1..];
    }
}

/// Counts that fall like one half of a Gaussian, with a tail.
fn counts(bins: u64, scale: f64) -> Vec<u64> {
    (0..bins).map(|i| (1e6 * (-(i as f64 / scale).powi(2)).exp()) as u64 + u64::from(i % 17 == 3)).collect()
}

fn extras(results: &Results) -> ReportExtras {
    let scaled = results.models[1].sites.iter().filter(|site| site.scale.is_some()).take(12);
    let histograms = scaled.enumerate().map(|(i, site)| {
        let width = f64::from(site.scale.unwrap()) * 127.0 / 1600.0;
        (
            site.site.clone(),
            RangeHistogram { bin_width: width, counts: counts(2048, 300.0 + 60.0 * i as f64) },
        )
    });
    ReportExtras {
        title: "Swin-T, INT8 against FP32".to_owned(),
        histograms: histograms.collect(),
        calibration: vec!["10 batches of 8 images, seed 0".to_owned(), "percentile 99.99".to_owned()],
        commands: vec!["swinq eval swin_t.pth swin_t-default.safetensors --data-path imagenet".to_owned()],
    }
}

fn full() -> (Results, ReportExtras) {
    let mut results = common::results();
    results.data = Some(DataInfo {
        path: "imagenet".to_owned(),
        split: Some("val".to_owned()),
        total: Some(50_000),
        transform: Some(Transform::microsoft(224, true)),
        ..DataInfo::default()
    });
    results.notes = vec!["the FP16 engine needs a GPU".to_owned()];
    let extras = extras(&results);
    (results, extras)
}

#[test]
fn a_full_report_is_well_formed_and_loads_nothing() {
    let (results, extras) = full();
    let page = html(&results, &extras);
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("report.html");
    std::fs::write(&path, &page).unwrap();
    let counts = check_well_formed(&page);
    // Accuracy against speed, latency of 3 batch sizes, precision and noise of 2 models, 12 histograms.
    assert_eq!(counts["svg"], 1 + 3 + 2 * 2 + 12);
    for absent in ["script", "link", "img", "iframe", "object", "image", "use"] {
        assert!(!counts.contains_key(absent), "{absent}");
    }
    for absent in ["http", "url(", "@import", "javascript:", "NaN"] {
        assert!(!page.contains(absent), "{absent}");
    }
    assert!(page.contains("prefers-color-scheme: dark"));
}

#[test]
fn a_report_shows_the_required_figures() {
    let (results, extras) = full();
    let page = html(&results, &extras);
    let expected = [
        "<title>Swin-T, INT8 against FP32</title>",
        "80.748(-0.434)",
        "95 % interval -0.612 to -0.256",
        "2.36x the speed at batch 1",
        "29.0 MiB instead of 113.0 MiB",
        "layers.2.blocks.3.mlp.fc2.input: INT8 (s8), scale ",
        "layers.0.blocks.0.attn.probs: INT8 (u8)",
        "switched off by the recipe `mode1`",
        "<td>switched off by the recipe `default`</td><td>117</td><td>patch_embed.proj.input, ",
        "attn.scores (12), attn.proj.output (12)",
        "the FP16 engine needs a GPU",
        "percentile 99.99",
        "swinq eval swin_t.pth",
        "avx512_vnni",
        "2026-01-02T03:04:05Z",
        "ShorterSide(256)",
    ];
    for text in expected {
        assert!(page.contains(text), "{text}");
    }
    assert_eq!(page, html(&results, &extras), "the same results give the same bytes");
}

#[test]
fn every_text_is_escaped() {
    let hostile = "</title></svg><script>alert('x')</script>\"&\u{7}";
    let (mut results, _) = full();
    for model in &mut results.models {
        model.name = hostile.to_owned();
        model.backend = hostile.to_owned();
        model.recipe = Some(hostile.to_owned());
        model.sha256 = Some(hostile.to_owned());
    }
    for site in &mut results.models[1].sites {
        site.site.push_str(hostile);
        site.reason = Some(hostile.to_owned());
    }
    let mut extras = extras(&results);
    extras.title = hostile.to_owned();
    extras.calibration.push(hostile.to_owned());
    extras.commands.push(hostile.to_owned());
    extras.histograms.insert(hostile.to_owned(), RangeHistogram { bin_width: 0.1, counts: vec![1, 2] });
    results.notes.push(hostile.to_owned());
    results.environment.cpu = Some(hostile.to_owned());
    results.environment.libraries.insert(hostile.to_owned(), hostile.to_owned());
    results.data.as_mut().unwrap().path = hostile.to_owned();
    let page = html(&results, &extras);
    let counts = check_well_formed(&page);
    assert!(!counts.contains_key("script"));
    assert!(!page.contains("<script") && page.contains("alert(&#39;x&#39;)"));
}

#[test]
fn missing_figures_give_a_smaller_report() {
    let mut results = Results::new(Environment::default());
    let none = ReportExtras::default();
    let counts = check_well_formed(&html(&results, &none));
    assert!(!counts.contains_key("svg"));
    results.models =
        vec![ModelResult::new("a", Precision::Fp32, "cpu"), ModelResult::new("b", Precision::Int8, "cpu")];
    results.models[0].set_latency(1, &common::latency(1.0));
    let page = html(&results, &none);
    assert_eq!(check_well_formed(&page)["svg"], 1);
    assert!(page.contains("no figure in common with the baseline"));
    results.models[1].set_latency(1, &common::latency(2.0));
    for model in &mut results.models {
        (model.images, model.top1_correct, model.top5_correct) = (Some(1), Some(0), Some(0));
    }
    let page = html(&results, &none);
    check_well_formed(&page);
    assert!(!page.contains("NaN"), "{page}");
}
