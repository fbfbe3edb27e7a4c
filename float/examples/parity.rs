//! Compares the float forward with PyTorch on every case that `tests/parity/full.py` wrote.
//!
//! ```text
//! python tests/parity/full.py FOLDER
//! cargo run --release -p swinq-float --example parity -- FOLDER
//! ```
//!
//! Prints the relative L2 distance of the logits and the time of each case. Fails if a distance exceeds 1e-5,
//! or if there is no case.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use candle_core::{Device, Tensor, safetensors};
use serde::Deserialize;
use swinq_float::{Float, Swin};
use swinq_model::{LoadOptions, load_config, load_float};

const TOLERANCE: f64 = 1e-5;

#[derive(Deserialize)]
struct Case {
    /// Checkpoint file or directory, relative to the folder.
    model: PathBuf,
    /// Configuration: a shipped name, or a YAML file relative to the folder.
    cfg: Option<String>,
    /// The safetensors file with `input` and `logits`, relative to the folder.
    expected: PathBuf,
}

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let Some(folder) = std::env::args().nth(1).map(PathBuf::from) else {
        eprintln!("usage: parity FOLDER (made by tests/parity/full.py)");
        return ExitCode::from(2);
    };
    match run(&folder) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn run(folder: &Path) -> Outcome<bool> {
    let cases: Vec<Case> = serde_json::from_slice(&std::fs::read(folder.join("cases.json"))?)?;
    let mut failed = 0;
    for case in &cases {
        match compare(folder, case) {
            Ok((distance, seconds)) => {
                let verdict = if distance <= TOLERANCE { "PASS" } else { "FAIL" };
                println!("{verdict} {:<46} relative L2 {distance:.2e}  {seconds:.2} s", case.model.display());
                failed += usize::from(distance > TOLERANCE);
            }
            Err(e) => {
                println!("FAIL {:<46} {e}", case.model.display());
                failed += 1;
            }
        }
    }
    println!("{} cases, {failed} failed", cases.len());
    Ok(failed == 0 && !cases.is_empty())
}

fn compare(folder: &Path, case: &Case) -> Outcome<(f64, f64)> {
    let mut options = LoadOptions::default();
    if let Some(cfg) = &case.cfg {
        let file = folder.join(cfg);
        let cfg = if file.is_file() { file.display().to_string() } else { cfg.clone() };
        options.cfg = Some(load_config(&cfg, &[])?);
    }
    let model = load_float(&folder.join(&case.model), &options)?;
    let swin = Swin::new(&model.config, &model.tensors, &Device::Cpu)?;
    let expected = safetensors::load(folder.join(&case.expected), &Device::Cpu)?;
    let start = Instant::now();
    let logits = swin.forward(&expected["input"], &mut Float)?;
    let seconds = start.elapsed().as_secs_f64();
    Ok((distance(&logits, &expected["logits"])?, seconds))
}

/// Relative L2 distance; infinite if a value is NaN.
fn distance(got: &Tensor, want: &Tensor) -> Outcome<f64> {
    let (got, want): (Vec<f32>, Vec<f32>) = (got.flatten_all()?.to_vec1()?, want.flatten_all()?.to_vec1()?);
    let square = |x: f32| f64::from(x) * f64::from(x);
    let error: f64 = got.iter().zip(&want).map(|(g, w)| square(g - w)).sum();
    let norm: f64 = want.iter().map(|w| square(*w)).sum();
    let ratio = (error / norm).sqrt();
    Ok(if got.len() == want.len() && ratio.is_finite() { ratio } else { f64::INFINITY })
}
