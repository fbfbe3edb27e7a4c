//! A whole program in a report. The sample is what `gain.save` in Python writes; `test_torch_gain.py`
//! compares the two.

use std::path::{Path, PathBuf};

use swinq_eval::{
    Environment, EvalError, GainTimes, ProgramGain, ProgramTimes, Results, html, markdown, read_program_gain,
    read_results, write_results,
};

use crate::html::{check, check_tables};

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/program_gain.json")
}

/// The program of the sample.
pub fn sample() -> ProgramGain {
    read_program_gain(&path()).unwrap()
}

fn results(program: ProgramGain) -> Results {
    Results { program: Some(program), ..Results::new(Environment::default()) }
}

#[test]
fn the_file_of_python_is_read_and_written_in_its_order() {
    let gain = sample();
    let int8 = ProgramTimes { program_ms: 16.5, swin_ms: 8.25, share: 0.5 };
    let GainTimes { float, int8: found } = gain.times;
    assert_eq!((found, float.swin_ms, gain.batches), (int8, 33.0, 8));
    let outputs = [("output.maps[2]".to_owned(), 31.5), ("output.maps[10]".to_owned(), f64::INFINITY)];
    assert_eq!(gain.outputs, outputs, "in the program's order, which is not that of the names");
    let text = std::fs::read_to_string(path()).unwrap();
    assert_eq!(serde_json::to_string_pretty(&gain).unwrap() + "\n", text);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("results.json");
    let results = results(gain);
    write_results(&file, &results).unwrap();
    assert_eq!(read_results(&file).unwrap(), results);
}

#[test]
fn a_program_is_shown() {
    let results = results(sample());
    let (page, text) = (html(&results, &Default::default()), markdown(&results, &Default::default()));
    check(&page);
    check_tables(&text);
    for words in [
        "With its Swin in INT8 a call of the program (Segmenter, SwinBackbone) takes 0.40x of its time in float.",
        "The Swin takes 80 % of the time in float and 50 % in INT8.",
        "mean IoU: 0.4412 in float and 0.4409 in INT8 (-3.000e-4).",
        "Medians of 8 batches on cpu, in turn, without torch.compile. PyTorch 2.15.0 with 2 threads.",
    ] {
        assert!(page.contains(words) && text.contains(words), "{words} in {text}");
    }
    for words in [
        "<a href=\"#program\">Whole program</a>",
        "<td>16.50 (0.40x)</td><td class=\"extra\">8.250 (0.25x)</td><td class=\"extra\">8.250 (1.00x)</td><td>50 %</td>",
        "<rect class=\"off\" x=\"800\" y=\"1\" width=\"200\" height=\"8\"/>",
        "<tr><td>output.maps[10]</td><td>inf dB</td></tr>",
        "<td>output.boxes</td><td>float and INT8 give different shapes",
    ] {
        assert!(page.contains(words), "{words} in {page}");
    }
    for words in
        ["## Whole program", "| float | 41.25 | 33.00 | 8.250 | 80 % |", "| output.classes | 99.22 % of"]
    {
        assert!(text.contains(words), "{words} in {text}");
    }
}

#[test]
fn a_program_without_a_metric_and_without_outputs_is_shown() {
    let mut gain = sample();
    (gain.metric, gain.batches) = (None, 1);
    (gain.outputs, gain.equal, gain.incomparable) = Default::default();
    gain.times.float = ProgramTimes { program_ms: 2.0, swin_ms: 0.0, share: 0.0 };
    let page = html(&results(gain), &Default::default());
    check(&page);
    assert!(page.contains("Medians of 1 batch on") && !page.contains("INT8 against float"));
    assert!(page.contains("<td class=\"extra\">8.250</td>"), "no ratio to a time of 0");
}

#[test]
fn other_files_and_impossible_figures_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gain.json");
    let text = std::fs::read_to_string(path()).unwrap();
    for (found, problem) in [
        ("not JSON".to_owned(), "give a file that `swinq.torch.measure_gain(...).save` wrote"),
        ("{\"schema\": 1}".to_owned(), "has no program_gain version, but this program reads program_gain 1"),
        (text.replace("\"program_gain\": 1", "\"program_gain\": 2"), "has program_gain 2, but"),
        (text.replace("\"batches\": 8", "\"batches\": -8"), "gain.json: invalid value"),
        (
            text.replace("\"swin_ms\": 33.0", "\"swin_ms\": 43.0"),
            "program.times.float.swin_ms: 43 is outside",
        ),
        (text.replace("31.5", "\"loud\""), "`loud` is neither a number nor"),
        (text.replace("0.9921875", "99.2"), "program.equal[output.classes]: 99.2 is outside"),
    ] {
        std::fs::write(&file, found).unwrap();
        let error = read_program_gain(&file).unwrap_err();
        assert!(matches!(error, EvalError::File { .. }), "{error:?}");
        assert!(error.to_string().contains("gain.json") && error.to_string().contains(problem), "{error}");
    }
    assert!(matches!(read_program_gain(&folder.path().join("none")), Err(EvalError::Io { .. })));
}
