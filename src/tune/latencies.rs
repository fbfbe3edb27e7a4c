//! The table of latencies: the measured time of every variant of every launch.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use swinq_int8_runtime::{LaunchSteps, Outline};
use swinq_model::atomic::write_atomic;
use swinq_model::text_file::{self, MAX_RESULTS};

use crate::Error;
use crate::hex::hex;

/// Version of the file.
const SCHEMA: u32 = 2;

/// The measured time of every variant of every launch on one machine, for one batch size.
///
/// A variant is the launch with what it reads and writes, such as `layers.0.blocks.0.mlp.fc1: gemm INT8 + bias +
/// GELU, INT8 -> f32`. The predicted latency of a model is the sum of its launches' times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latencies {
    schema: u32,
    /// The engine and the hardware, in words.
    pub(crate) machine: String,
    /// Images per inference.
    pub(crate) batch_size: usize,
    /// Milliseconds of each variant of a launch.
    ms: BTreeMap<String, f64>,
    /// The latency of the start recipe's model at the first measurement. Later measurements are scaled by what the
    /// same model takes then, so that the load of the machine does not favour one of them.
    reference_ms: Option<f64>,
}

impl Latencies {
    /// A table without entries.
    pub(crate) fn new(machine: String, batch_size: usize) -> Latencies {
        Latencies { schema: SCHEMA, machine, batch_size, ms: BTreeMap::new(), reference_ms: None }
    }

    /// Reads the table at `path`; a table without entries if there is no file.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Argument`] for a file that is no such table, or is of another machine or batch size.
    pub(crate) fn open(path: &Path, machine: String, batch_size: usize) -> Result<Latencies, Error> {
        let text = match text_file::read(path, MAX_RESULTS) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Latencies::new(machine, batch_size));
            }
            Err(error) => return Err(Error::io(path)(error)),
        };
        let refuse = |problem: String| {
            let next = "name another file, or remove it to measure again";
            Error::argument("latencies", format!("{}: {problem}; {next}", path.display()))
        };
        let table: Latencies = serde_json::from_str(&text).map_err(|error| refuse(error.to_string()))?;
        let found = (&table.machine, table.batch_size);
        if table.schema != SCHEMA {
            return Err(refuse(format!("schema {}, but this program reads {SCHEMA}", table.schema)));
        }
        if found != (&machine, batch_size) {
            return Err(refuse(format!(
                "holds times of {} at batch {}, and this run is for {machine} at batch {batch_size}",
                found.0, found.1
            )));
        }
        if let Some((key, ms)) = table.ms.iter().find(|(_, ms)| !(ms.is_finite() && **ms >= 0.0)) {
            return Err(refuse(format!("{key}: {ms} is not a time")));
        }
        Ok(table)
    }

    /// Writes the table.
    ///
    /// # Errors
    /// An error if `path` cannot be written.
    pub(crate) fn save(&self, path: &Path) -> Result<(), Error> {
        Ok(write_atomic(path, |out| {
            serde_json::to_writer_pretty(&mut *out, self)?;
            writeln!(out)
        })?)
    }

    /// The SHA-256 of the entries, hexadecimal.
    pub(crate) fn sha256(&self) -> String {
        let text = serde_json::to_string(&self.ms).expect("a map of numbers");
        hex(Sha256::digest(text))
    }

    /// The predicted latency of a model with the plan `plan` and its `launches` in milliseconds; `None` if a launch was not
    /// measured.
    pub(crate) fn predict(&self, plan: &Outline, launches: &[LaunchSteps]) -> Option<f64> {
        launches.iter().map(|launch| self.ms.get(&key(launch, plan))).sum()
    }

    /// Adds a measurement of a model with the plan `plan`: `times` holds the milliseconds of each of its `launches`,
    /// `whole_ms` the latency of the model, and `reference_ms` that of the start recipe's model measured in turn.
    /// The times are scaled so that their sum is the latency. Variants that the table holds stay as they are.
    pub(crate) fn add(
        &mut self,
        plan: &Outline,
        (launches, times): (&[LaunchSteps], &[f64]),
        whole_ms: f64,
        reference_ms: f64,
    ) {
        assert_eq!(launches.len(), times.len(), "a time for each launch");
        let first = *self.reference_ms.get_or_insert(reference_ms);
        let scale = whole_ms / times.iter().sum::<f64>() * first / reference_ms;
        for (launch, ms) in launches.iter().zip(times) {
            self.ms.entry(key(launch, plan)).or_insert(ms * scale);
        }
    }
}

/// The variant of `launch` in a model with the plan `plan`: its name, and what each of its steps reads and writes.
fn key(launch: &LaunchSteps, plan: &Outline) -> String {
    let text = plan.steps[launch.steps.clone()].iter().map(|step| {
        let reads = plan.tensor(step.input).element.name();
        // The scale does not change the time.
        let writes = step.store.split(" (scale").next().unwrap_or_default();
        format!("{}, {reads} -> {writes}", step.op)
    });
    format!("{}: {}", launch.name, text.collect::<Vec<_>>().join("; "))
}
