//! `swinq bench`.

use std::path::{Path, PathBuf};

use swinq_eval::{Environment, LatencyOptions, Results};
use swinq_int8_runtime::CpuOptions;
use swinq_model::QuantizedModel;

use crate::args::BenchArgs;
use crate::backend::Target;
use crate::model_arg::{self, Model};
use crate::out::say;
use crate::paths::check_outputs;
use crate::profile;
use crate::runner::{self, Subject};

/// Runs the command.
pub fn run(args: &BenchArgs) -> anyhow::Result<()> {
    check_outputs(&args.json, args.models.iter().map(PathBuf::as_path))?;
    let largest = args.batch_size.iter().copied().max().unwrap_or(1);
    let targets = Target::all(&args.backend, args.threads, largest)?;
    say!("{}", targets[0].describe()?);
    let mut subjects = subjects(args, &targets)?;
    let latency = LatencyOptions { min_ms: 1000.0 * args.seconds, ..LatencyOptions::default() };
    runner::measure(&mut subjects, &args.batch_size, &latency, &mut |subject, batch, latency| {
        say!("\n{}", swinq_eval::performance_summary(&subject.result.label(), batch, latency));
    })?;
    if args.profile {
        for subject in &subjects {
            for &batch_size in &args.batch_size {
                profile::print(subject, batch_size)?;
            }
        }
    }
    let threads = swinq_kernels::Pool::new(args.threads).threads();
    let isa = CpuOptions::detect()?.cpu.name();
    let mut results = Results::new(Environment::detect(Some(isa), threads, Default::default()));
    results.models = subjects.into_iter().map(|subject| subject.result).collect();
    say!("\n{}", swinq_eval::table(&results));
    if let Some(path) = &args.json {
        swinq_eval::write_results(path, &results)?;
        say!("wrote {}", path.display());
    }
    Ok(())
}

/// Every model on every target. Only the engines stay in memory.
fn subjects(args: &BenchArgs, targets: &[Target]) -> anyhow::Result<Vec<Subject>> {
    let mut subjects = Vec::new();
    let mut add = |name: &Path, model: QuantizedModel| -> anyhow::Result<()> {
        for &target in targets {
            subjects.push(Subject::engine(name, &model, target)?);
        }
        Ok(())
    };
    if let Some(seed) = args.random_weights {
        let model = model_arg::random_model(seed, &args.float)?;
        let name = format!("{} (random)", model.config.name);
        add(Path::new(&name), QuantizedModel::from_float(&model)?)?;
    }
    let mut any_float = args.random_weights.is_some();
    for path in &args.models {
        let model = Model::load(path, &args.float)?;
        any_float |= model.is_float();
        add(path, model.into_quantized()?)?;
    }
    args.float.check_used(any_float)?;
    Ok(subjects)
}
