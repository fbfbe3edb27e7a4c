//! Summary lines and tables, character for character, and the comparison of two runs.

use crate::common;
use swinq_eval::compare::{Limits, exceeded};
use swinq_eval::{Accuracy, Latency, ModelResult, acc_line, compare, performance_summary, table};

#[test]
fn the_accuracy_line_has_microsofts_format() {
    let line =
        |top1_correct, top5_correct| acc_line(&Accuracy { images: 50_000, top1_correct, top5_correct });
    assert_eq!(line(40_591, 47_761), " * Acc@1 81.182 Acc@5 95.522");
    assert_eq!(line(0, 50_000), " * Acc@1 0.000 Acc@5 100.000");
}

#[test]
fn the_performance_summary_has_trtexecs_format() {
    let latency = Latency::from_samples((1..=11).map(|i| f64::from(i) * 2.0).collect()).unwrap();
    let expected = "\
=== Performance summary ===
Model: swin_t (int8, cpu), batch size 8, 11 runs
Throughput: 83.3333 qps
Latency: min = 2.000000 ms, max = 22.000000 ms, mean = 12.000000 ms, median = 12.000000 ms, percentile(90%) = 20.000000 ms, percentile(95%) = 21.000000 ms, percentile(99%) = 21.800000 ms
Total Host Walltime: 0.13200 s
Images per second: 666.67
";
    assert_eq!(performance_summary("swin_t (int8, cpu)", 8, &latency), expected);
}

#[test]
fn without_labels_a_report_does_not_say_which_class_is_right() {
    let mut results = common::results();
    results.models.truncate(2);
    let own = &mut results.models[1];
    (own.images, own.flips) = (Some(1200), Some(swinq_eval::Flips { gained: 0, lost: 0, other: 3 }));
    let text = |results: &swinq_eval::Results| swinq_eval::markdown(results, &Default::default());
    assert!(text(&results).contains("3 from one wrong class to another."));
    for model in &mut results.models {
        (model.top1_correct, model.top5_correct, model.top1_difference) = (None, None, None);
        model.classes.clear();
    }
    let text = text(&results);
    assert!(text.contains("3 of 1,200 images change their class.") && !text.contains(" lost"), "{text}");
}

/// The words of a line, with one space between them.
fn words(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_table_shows_differences_from_the_first_model() {
    let mut results = common::results();
    let text = table(&results);
    let lines: Vec<String> = text.lines().map(words).collect();
    // One matrix: a model has one column, with one name.
    assert_eq!(lines.iter().filter(|line| line.contains("(int8, cpu)")).count(), 2, "{text}");
    assert!(
        lines[0].starts_with("| | swin_t.pth (fp32, cpu) | swin_t-default.safetensors (int8, cpu) |"),
        "{text}"
    );
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let row = |start: &str| {
        let line = lines.iter().find(|line| line.starts_with(&format!("| {start} |"))).unwrap();
        line.split('|').map(|cell| cell.trim().to_owned()).skip(2).take(2).collect::<Vec<_>>()
    };
    assert_eq!(row("Acc@1"), ["81.182", "80.748(-0.434)"]);
    assert_eq!(row("95 % interval"), ["-", "[-0.612, -0.256]"]);
    assert_eq!(row("Acc@5"), ["95.522", "95.522(+0.000)"]);
    assert_eq!(row("agreement"), ["-", "95.330 %"]);
    assert_eq!(row("SQNR"), ["-", "31.27 dB"]);
    assert_eq!(row("parameters")[0], "113.0 MiB");
    assert_eq!(row("file")[0], "30.0 MiB");
    assert!(row("median ms @ 1")[1].ends_with("(2.36x)"), "{text}");

    // Models that make the table too wide stand in a further one, with the same rows.
    let mut wide = results.clone();
    let more = wide.models.clone();
    wide.models.extend(more);
    let text = table(&wide);
    assert!(
        text.matches("| Acc@1 ").count() >= 2 && text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );

    // A figure that no model has gives no row. An infinite ratio is shown as such.
    for model in &mut results.models {
        (model.agreement, model.sqnr_db) = (None, Some(f64::INFINITY));
        model.latency_ms.clear();
    }
    let text = table(&results);
    assert!(!text.contains("agreement") && !text.contains("median ms") && text.contains("inf dB"), "{text}");
    results.models.clear();
    assert_eq!(table(&results), "");
}

/// A speed-up relates times of images of one size.
#[test]
fn models_at_another_size_have_their_own_baseline() {
    let mut results = common::results();
    results.models.truncate(2);
    let larger = results.models.clone().into_iter();
    results.models.extend(larger.map(|model| ModelResult { input_size: Some([320, 480]), ..model }));
    for model in &mut results.models[2..] {
        model.latency_ms.values_mut().for_each(|stats| stats.median *= 3.0);
    }
    let text = table(&results);
    assert!(text.contains("at 320x480 (int8, cpu)"), "{text}");
    // Both baselines have a time without a speed-up, and both others the same one.
    assert_eq!(text.matches("(2.36x)").count() % 2, 0, "{text}");
    assert!(text.contains("(2.36x)") && !text.contains("(0.33x)"), "{text}");
}

#[test]
fn the_table_says_which_latencies_other_processes_disturbed() {
    let mut results = common::results();
    let load = |other_cores| swinq_eval::Load { other_cores: Some(other_cores), ..Default::default() };
    results.environment.cores = Some(2);
    results.load = [(1, load(0.1)), (8, load(0.9))].into();
    let text = table(&results);
    let warning = "other processes used up to 0.9 of 2 cores while batch 8 was measured";
    assert!(text.contains(warning), "{text}");
    results.load = [(1, load(0.1)), (8, load(0.1))].into();
    assert!(!table(&results).contains("other processes"));
}

#[test]
fn comparing_a_run_with_itself_finds_no_difference() {
    let results = common::results();
    let text = compare(&results, &results).unwrap();
    assert!(!text.contains("differs") && !text.contains("differ:") && !text.contains("only in"), "{text}");
    for line in text.lines().filter(|line| line.starts_with("| ") && !line.contains("| change")) {
        assert!(line.ends_with(" 0 |"), "{line}");
    }
    assert!(text.contains("Acc@1") && text.contains("median ms @ 32"));
}

#[test]
fn comparing_names_the_changes() {
    let a = common::results();
    let mut b = a.clone();
    b.environment.cpu = Some("another".to_owned());
    b.models[0].name = "renamed.pth".to_owned();
    b.models[1].top1_correct = Some(40_474);
    let stats = b.models[1].latency_ms.get_mut(&8).unwrap();
    stats.median /= 2.0;
    stats.median_interval = stats.median_interval.map(|interval| interval.map(|end| end / 2.0));
    b.models[1].sqnr_db = Some(f64::INFINITY);
    let site = b.models[1].sites.iter_mut().find(|site| site.scale.is_some()).unwrap();
    site.enabled = false;
    site.scale = None;
    let name = site.site.clone();
    for site in &mut b.models[2].sites {
        site.sqnr_db = None;
    }
    let text = compare(&a, &b).unwrap();
    let row = |start: &str| {
        let line =
            text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start}: {text}"));
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert!(
        text.contains("processor differs: ") && text.contains("-> another; latencies cannot be compared")
    );
    assert!(text.contains("swin_t.pth (fp32, cpu): only in the first run"), "{text}");
    assert!(text.contains("renamed.pth (fp32, cpu): only in the second run"), "{text}");
    assert_eq!(row("| Acc@1"), "| Acc@1 | 80.748 | 80.948 | +0.200 |");
    assert!(row("| median ms @ 8").ends_with("| -50.0 % |"));
    assert_eq!(row("| SQNR dB"), "| SQNR dB | 31.27 | inf | +inf |");
    assert!(text.contains("1 site differs:\n"), "{text}");
    assert!(row(&format!("  {name}:")).contains("on -> off, scale 0.0"), "{text}");
    assert!(text.contains("\n  and ") && text.contains(" more\n"), "{text}");

    let mut other_data = a.clone();
    other_data.data = Some(swinq_eval::DataInfo { sha256: Some("ab".to_owned()), ..Default::default() });
    assert!(compare(&a, &other_data).unwrap().contains("accuracies cannot be compared"));
}

#[test]
fn noise_is_counted_and_not_listed() {
    let a = common::results();
    let mut b = a.clone();
    let at = |b: &mut swinq_eval::Results, batch: usize, factor: f64| {
        let stats = b.models[1].latency_ms.get_mut(&batch).unwrap();
        (stats.median, stats.p99) = (factor * stats.median, factor * stats.p99);
        stats.median_interval = stats.median_interval.map(|interval| interval.map(|end| factor * end));
    };
    at(&mut b, 8, 1.015);
    at(&mut b, 32, 1.5);
    let text = compare(&a, &b).unwrap();
    assert!(text.contains("2 figures of time and memory differ no more than repeated runs do"), "{text}");
    let models: Vec<&str> = text.split("\n\n").collect();
    let model = models.iter().find(|part| part.contains("default")).unwrap();
    assert!(!model.contains("ms @ 8 ") && model.contains("median ms @ 32"), "{model}");
    let site = b.models[1].sites.iter_mut().find(|site| site.sqnr_db.is_some()).unwrap();
    site.sqnr_db = site.sqnr_db.map(|db| db + 0.004);
    assert!(!compare(&a, &b).unwrap().contains("sites differ"));
}

#[test]
fn limits_name_what_exceeds_them_and_refuse_other_conditions() {
    let a = common::results();
    let mut b = a.clone();
    b.models[1].top1_correct = Some(40_274);
    b.models[1].latency_ms.get_mut(&8).unwrap().median *= 1.1;
    let limits = |max_drop, max_slowdown| Limits { max_drop, max_slowdown, ..Limits::default() };
    let found = exceeded(&a, &b, &limits(Some(0.1), Some(5.0))).unwrap();
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("drops by 0.200 points") && found[0].contains("limit is 0.1"), "{found:?}");
    assert!(found[1].contains("batch 8 is 10.0 % slower"), "{found:?}");
    assert_eq!(exceeded(&a, &b, &limits(Some(0.21), Some(11.0))).unwrap(), Vec::<String>::new());
    assert_eq!(
        exceeded(&b, &a, &limits(Some(0.0), Some(0.0))).unwrap(),
        Vec::<String>::new(),
        "it got better"
    );
    b.environment.threads += 1;
    let error = exceeded(&a, &b, &limits(None, Some(5.0))).unwrap_err().to_string();
    assert!(error.contains("latencies cannot be compared"), "{error}");
    b.data = Some(swinq_eval::DataInfo { sha256: Some("ab".to_owned()), ..Default::default() });
    assert!(exceeded(&a, &b, &limits(Some(1.0), None)).unwrap_err().to_string().contains("accuracies"));
    let mut c = a.clone();
    c.models.remove(0);
    assert!(exceeded(&a, &c, &limits(Some(1.0), None)).unwrap_err().to_string().contains("first run only"));
    c.models.clear();
    assert!(compare(&a, &c).unwrap_err().to_string().contains("no model has a figure in both"));
}
