//! `bench gemm`, `bench softmax` and `bench elementwise` on the CPU, and the files that they write.

use std::path::Path;

use crate::common::{files, refused, stdout, swinq};
use serde_json::Value;

/// `swinq bench` with `args`, the first of which names the ladder, on the CPU and with the shortest
/// measurement.
fn bench(args: &[&str]) -> assert_cmd::Command {
    let mut command = swinq(["bench", args[0], "--backend", "cpu", "--seconds", "0.001"]);
    command.args(&args[1..]);
    command
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Panics unless every tag of `svg` is closed in order and every `&` begins an entity.
fn assert_well_formed(svg: &str) {
    let mut open: Vec<&str> = Vec::new();
    for tag in svg.split('<').skip(1) {
        let (tag, text) = tag.split_once('>').expect("every tag ends");
        assert!(!text.contains('>'), "a bare `>` in {text:?}");
        assert!(text.split('&').skip(1).all(|entity| entity.contains(';')), "a bare `&` in {text:?}");
        let name = tag.split([' ', '/']).find(|name| !name.is_empty()).unwrap();
        assert_eq!(tag.matches('"').count() % 2, 0, "quotes of <{tag}>");
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "</{name}>");
        } else if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "not closed: {open:?}");
    assert!(svg.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"") && !svg.contains("NaN"));
}

const CPU_RUNGS: [&str; 3] = ["CPU f32, scalar loop", "CPU f32, SIMD", "CPU INT8, SIMD"];

#[test]
fn products_of_odd_sizes_pass() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.json");
    for (m, n, k) in [("1", "1", "1"), ("3", "5", "7"), ("33", "17", "65"), ("70", "131", "301")] {
        let mut command = bench(&["gemm", "--m", m, "--n", n, "--k", k, "--json"]);
        let text = stdout(&command.arg(&path).assert().success());
        assert!(text.contains("no GPU rungs: --backend cpu"), "{text}");
        assert_eq!(text.matches("PASS").count(), 3, "{text}");
        let results = json(&path);
        assert_eq!((&results["schema"], &results["kind"]), (&1.into(), &"swinq-ladder".into()));
        let rows = results["rows"].as_array().unwrap();
        for (row, name) in rows.iter().zip(CPU_RUNGS) {
            assert_eq!((&row["rung"], &row["check"]), (&name.into(), &"PASS".into()));
            assert_eq!(row["m"].to_string(), m);
            assert!(row["median_ms"].as_f64().unwrap() > 0.0 && row["runs"].as_u64().unwrap() >= 3, "{row}");
            let ordered = ["p20_ms", "median_ms", "p80_ms"].map(|key| row[key].as_f64().unwrap());
            assert!(ordered.is_sorted(), "{row}");
        }
        assert_eq!((rows.len(), &rows[2]["max_abs_error"]), (3, &0.0.into()));
    }
}

#[test]
fn every_ladder_passes_at_its_default_sizes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.json");
    for (ladder, size, references, passes) in
        [("gemm", 1024, 0, 3), ("softmax", 524_288, 0, 4), ("elementwise", 1 << 26, 5, 3)]
    {
        swinq(["bench", ladder, "--backend", "cpu", "--check", "--json"]).arg(&path).assert().success();
        let rows = json(&path)["rows"].as_array().unwrap().clone();
        let number = |check: &str| rows.iter().filter(|row| row["check"] == check).count();
        assert_eq!((number("reference"), number("PASS")), (references, passes), "{rows:#?}");
        assert_eq!(rows.len(), references + passes, "{rows:#?}");
        let sizes = ["m", "rows", "elements"];
        assert!(rows.iter().all(|row| sizes.iter().any(|name| row[*name] == size)), "{rows:#?}");
        assert!(rows.iter().all(|row| row.get("median_ms").is_none()), "{rows:#?}");
    }
}

#[test]
fn a_sweep_is_drawn_with_every_rung() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sweep.svg");
    let mut command = bench(&["gemm", "--sweep", "--largest", "300", "--threads", "1", "--plot"]);
    let text = stdout(&command.arg(&path).assert().success());
    assert!(text.contains("256 x 256 x 256") && !text.contains("512 x") && !text.contains("FAIL"), "{text}");
    let svg = std::fs::read_to_string(&path).unwrap();
    assert_well_formed(&svg);
    assert!(CPU_RUNGS.iter().all(|name| svg.contains(name)), "{svg}");
    assert_eq!(svg.matches("<polyline").count(), 2 * CPU_RUNGS.len());
    let path = folder.path().join("bars.svg");
    bench(&["gemm", "--m", "40", "--n", "40", "--k", "40", "--plot"]).arg(&path).assert().success();
    let svg = std::fs::read_to_string(&path).unwrap();
    assert_well_formed(&svg);
    assert!(CPU_RUNGS.iter().all(|name| svg.contains(name)) && svg.contains("m 40, n 40, k 40"), "{svg}");
}

#[test]
fn the_products_of_a_swin_have_a_row_each() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("swin.json");
    let mut command = bench(&["gemm", "--swin", "tiny", "--batch", "1", "--json"]);
    let text = stdout(&command.arg(&path).assert().success());
    for word in ["stage 1 qkv", "stage 3 reduction", "stage 4 fc2", "fastest", "all of a forward"] {
        assert!(text.contains(word), "`{word}` is not in {text}");
    }
    let rows = json(&path)["rows"].as_array().unwrap().clone();
    assert_eq!(rows.len(), 19 * 2);
    assert!(rows.iter().all(|row| row["check"] == "PASS"), "{rows:?}");
    assert_eq!((&rows[0]["layer"], &rows[0]["count"]), (&"stage 1 qkv".into(), &2.into()));
}

#[test]
fn softmax_and_elementwise_run() {
    let folder = tempfile::tempdir().unwrap();
    let [path, plot] = ["r.json", "r.svg"].map(|name| folder.path().join(name));
    for columns in ["1", "49", "333"] {
        let mut command = bench(&["softmax", "--rows", "37", "--columns", columns]);
        let text = stdout(&command.arg("--json").arg(&path).arg("--plot").arg(&plot).assert().success());
        assert_eq!(text.matches("PASS").count(), 4, "{text}");
        assert!(json(&path)["rows"].as_array().unwrap().iter().all(|row| row["unit"] == "B/s"));
        assert_well_formed(&std::fs::read_to_string(&plot).unwrap());
    }
    let mut command = bench(&["elementwise", "--elements", "1003", "--json"]);
    let text = stdout(&command.arg(&path).assert().success());
    // The vector code of copy, scale + add and GELU is compared with the scalar code.
    assert_eq!(text.matches("PASS").count(), 3, "{text}");
    for word in
        ["CPU copy f32", "CPU scale + add f32", "CPU GELU f32", "CPU quantize f32 to s8", "CPU add f16"]
    {
        assert!(text.contains(word), "`{word}` is not in {text}");
    }
    assert_eq!(json(&path)["bench"], "elementwise");
    assert_eq!(files(folder.path()), ["r.json", "r.svg"]);
}

#[test]
fn bad_arguments_are_refused() {
    for args in [
        &["gemm", "--m", "0"][..],
        &["gemm", "--k", "-3"],
        &["gemm", "--n", "many"],
        &["gemm", "--swin", "huge"],
        &["gemm", "--swin", "tiny", "--m", "3"],
        &["gemm", "--swin", "tiny", "--sweep"],
        &["gemm", "--sweep", "--n", "3"],
        &["gemm", "--batch", "3"],
        &["gemm", "--largest", "300"],
        &["gemm", "--tiles", "0"],
        &["gemm", "extra"],
        &["softmax", "--rows", "0"],
        &["elementwise", "--elements", "0"],
        &["elementwise", "--seconds", "0"],
        &["elementwise", "--check", "--seconds", "1"],
        &["softmax", "--check", "--plot", "r.svg"],
    ] {
        refused(swinq(["bench"]).args(args).assert(), 2, &["error:"]);
    }
    refused(bench(&["gemm", "--m", "1000000", "--n", "1000000"]).assert(), 2, &["GiB", "at most 16 GiB"]);
    refused(bench(&["gemm", "--sweep", "--largest", "99999"]).assert(), 2, &["32768 x 32768", "GiB"]);
    refused(bench(&["gemm", "--k", "65794"]).assert(), 2, &["65793"]);
    refused(bench(&["softmax", "--rows", "99999999999"]).assert(), 2, &["GiB"]);
    refused(bench(&["elementwise", "--elements", "99999999999"]).assert(), 2, &["GiB"]);
}

#[test]
fn outputs_are_checked_before_the_work() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("none").join("r.json");
    refused(bench(&["gemm", "--json"]).arg(&nowhere).assert(), 1, &["none", "does not exist"]);
    let both = folder.path().join("r");
    let mut command = bench(&["softmax", "--rows", "3", "--json"]);
    refused(command.arg(&both).arg("--plot").arg(&both).assert(), 1, &["two outputs"]);
    assert!(files(folder.path()).is_empty());
}

#[test]
fn models_are_still_timed() {
    refused(swinq(["bench"]).assert(), 2, &["MODEL"]);
    refused(swinq(["bench", "no-such-file"]).assert(), 1, &["no-such-file"]);
    // After a model, the word `gemm` is taken for another model.
    refused(swinq(["bench", "no-such-file", "gemm"]).assert(), 1, &["no-such-file"]);
    refused(swinq(["bench", "./gemm"]).assert(), 1, &["./gemm"]);
}
