//! Tables, comparisons and reports of backbones: outputs stand where classifiers have classes.

use crate::common;
use swinq_eval::compare::{Limits, exceeded};
use swinq_eval::{
    DataInfo, Environment, MapErrors, ModelResult, Precision, ReportExtras, Results, SizeResult, compare,
    html, markdown, table,
};
use swinq_model::Size;

const SIZES: [[usize; 2]; 2] = [[512, 640], [800, 1344]];

/// The distances of four images with two outputs; `noise` is the relative error of the second, the first has
/// a tenth of it.
fn errors(noise: f32) -> MapErrors {
    let mut errors = MapErrors::of_outputs(vec!["stage3".to_owned(), "stage4".to_owned()]);
    for id in 0..4 {
        let reference = vec![vec![1.0; 100], vec![2.0; 50]];
        let own = noise * (1.0 + id as f32 / 4.0);
        let other = [vec![1.0 + 0.1 * own; 100], vec![2.0 + 2.0 * own; 50]];
        let [height, width] = SIZES[id % 2];
        errors.add(&[id], Size::new(height, width), &reference, &other).unwrap();
    }
    errors
}

/// A float backbone and an INT8 one, timed at two sizes.
pub fn results(noise: f32) -> Results {
    let mut results = Results::new(Environment::default());
    let of = |name: &str, precision, factor: f64| {
        let mut model = ModelResult::new(name, precision, "cpu");
        let of_size = |(index, &size): (usize, &[usize; 2])| SizeResult {
            size,
            latency_ms: [(1, common::latency(factor * (index + 1) as f64).stats())].into(),
            compute_ms: Default::default(),
        };
        model.sizes = SIZES.iter().enumerate().map(of_size).collect();
        model.set_latency(1, &common::latency(factor));
        model.images = Some(4);
        model
    };
    let mut int8 = of("swin_t.int8.safetensors", Precision::Int8, 40.0);
    int8.set_maps_against(&errors(noise), &|id| format!("street <{id}>.jpg")).unwrap();
    results.models = vec![of("swin_t.pth", Precision::Fp32, 100.0), int8];
    results.data = Some(DataInfo { sizing: Some("keep".to_owned()), ..DataInfo::default() });
    results
}

#[test]
fn the_table_shows_outputs_sizes_and_the_worst_images() {
    let text = table(&results(0.01));
    // The relative errors of the images are 0.01, 0.0125, 0.015 and 0.0175 at the second output.
    let mean: f64 = [0.01f64, 0.0125, 0.015, 0.0175].iter().map(|error| error * error / 4.0).sum();
    let db = format!("{:.2} dB", -10.0 * mean.log10());
    for words in ["SQNR stage3", "SQNR stage4", "cosine stage4", "error stage4", &db, "0.0140", "1.000000"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let columns = ["median ms @ 1", "median ms 512x640 @ 1", "median ms 800x1344 @ 1", "(2.50x)"];
    assert!(columns.iter().all(|words| text.contains(words)), "{text}");
    let worst: Vec<&str> = text.lines().filter(|line| line.contains("street")).collect();
    assert!(worst[0].starts_with("  street <3>.jpg (800x1344): stage3 55."), "{worst:?}");
    assert_eq!(worst.len(), 3, "{worst:?}");
    assert!(text.contains("images of 512x640 pixels"), "{text}");
    assert!(!text.contains("| SQNR |") && !text.contains("Acc@1"), "{text}");
}

#[test]
fn runs_are_compared_by_output_and_by_size() {
    let (a, mut b) = (results(0.01), results(0.02));
    b.models[1].sizes[1].latency_ms.get_mut(&1).unwrap().median *= 1.5;
    b.models[1].sizes[1].latency_ms.get_mut(&1).unwrap().median_interval = None;
    let text = compare(&a, &b).unwrap();
    let int8 = &text[text.find("swin_t.int8").unwrap()..];
    let row = |start: &str| {
        let line = int8.lines().find(|line| line.starts_with(&format!("| {start}")));
        line.unwrap_or_else(|| panic!("{start}: {text}")).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert!(row("SQNR dB stage4").ends_with("| -6.02 |"), "{text}");
    assert!(row("error stage4").ends_with("| +0.0140 |"), "{text}");
    assert!(row("median ms @ 1 of 800x1344").ends_with("+50.0 % |"), "{text}");
    assert!(row("median ms @ 1 of 512x640").ends_with("| 0 |"), "{text}");

    let limits = |db: f64| Limits { max_sqnr_drop: Some(db), ..Limits::default() };
    let found = exceeded(&a, &b, &limits(6.0)).unwrap();
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[1].contains("stage4 drops by 6.02 dB; the limit is 6 dB"), "{found:?}");
    assert_eq!(exceeded(&a, &b, &limits(6.1)).unwrap(), Vec::<String>::new());
    let slow = exceeded(&a, &b, &Limits { max_slowdown: Some(40.0), ..Limits::default() }).unwrap();
    assert_eq!(slow.len(), 1, "{slow:?}");
    assert!(slow[0].contains("batch 1 of 800x1344 is 50.0 % slower"), "{slow:?}");

    let refused = |a: &Results, limits: Limits| exceeded(a, a, &limits).unwrap_err().to_string();
    let error = refused(&b, Limits { max_drop: Some(1.0), ..Limits::default() });
    assert!(error.contains("has no accuracy"), "{error}");
    assert!(refused(&common::results(), limits(1.0)).contains("no model of the first run is a backbone"));
    b.data = Some(DataInfo { sizing: Some("512x640".to_owned()), ..DataInfo::default() });
    assert!(compare(&a, &b).unwrap().contains("sizes differs: keep -> 512x640"));
    assert!(exceeded(&a, &b, &limits(9.0)).unwrap_err().to_string().contains("SQNRs cannot be compared"));
}

#[test]
fn reports_show_outputs_and_images() {
    let results = results(0.01);
    let page = html(&results, &ReportExtras::default());
    crate::html::check(&page);
    let expected = [
        "<h2>Outputs and images: swin_t.int8 against the baseline</h2>",
        "SQNR of stage4",
        "<small>error 0.0140</small>",
        "2.5x faster, the lowest SQNR of an output is 37.06 dB (stage4) on 4 images",
        "800x1344, street &lt;3&gt;.jpg",
        "median ms, batch 1 of 800x1344",
    ];
    for words in expected {
        assert!(
            page.contains(words) || page.contains(&words.replace("&lt;", "&#60;").replace("&gt;", "&#62;")),
            "{words}"
        );
    }
    assert!(!page.contains("Classes and images") && !page.contains("SQNR of the logits"));
    let text = markdown(&results, &ReportExtras::default());
    assert!(
        text.contains("## Outputs and images") && text.contains("| image | size | SQNR of stage3 |"),
        "{text}"
    );

    // Equal maps have no worst image, and an infinite SQNR.
    let equal = self::results(0.0);
    let page = html(&equal, &ReportExtras::default());
    crate::html::check(&page);
    assert!(page.contains("equal feature maps on 4 images") && !page.contains("farthest from the baseline"));
}
