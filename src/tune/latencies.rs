//! The table of latencies: the measured time of every variant of every launch.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use swinq_eval::Latency;
use swinq_int8_runtime::{LaunchSteps, Outline};
use swinq_model::atomic::write_atomic;
use swinq_model::text_file::{self, MAX_RESULTS};

use crate::Error;
use crate::hex::hex;

/// Version of the file.
const SCHEMA: u32 = 3;

/// The measured time of every variant of every launch on one machine, for one batch size.
///
/// A variant is the launch with what it reads and writes, such as
/// `layers.0.blocks.0.mlp.fc1: gemm INT8 + bias + GELU, INT8 -> f32`. The predicted latency of a model is the
/// sum of its launches' times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latencies {
    schema: u32,
    /// The engine and the hardware, in words.
    pub(crate) machine: String,
    /// Images per inference.
    pub(crate) batch_size: usize,
    /// Milliseconds of each variant of a launch.
    ms: BTreeMap<String, f64>,
    /// The latency of the start recipe's model at the first measurement. Later measurements are scaled by
    /// what the same model takes then, so that the load of the machine does not favour one of them.
    reference_ms: Option<f64>,
    /// The largest [`spread`] of the models that were measured before the search.
    spread: f64,
    /// Whether these models were all measured, so that the spread stays.
    settled: bool,
    /// The cores that other processes kept busy meanwhile, if they were so many that the times are disturbed.
    disturbed: Option<f64>,
}

/// The times of a model, which were measured in turn with those of the start recipe's model.
pub(crate) struct Measured<'a> {
    /// The launches of the model, and the milliseconds of each.
    pub(crate) launches: (&'a [LaunchSteps], &'a [f64]),
    /// The runs of the whole model.
    pub(crate) whole: Latency,
    /// The runs of the start recipe's model.
    pub(crate) reference: Latency,
}

/// The spread of the times of a model as a fraction of their median: the distance between their quartiles.
/// One half of the times lie within it.
fn spread(latency: &Latency) -> f64 {
    (latency.percentile(75.0) - latency.percentile(25.0)) / latency.median()
}

impl Latencies {
    /// A table without entries.
    pub(crate) fn new(machine: String, batch_size: usize) -> Latencies {
        Latencies {
            schema: SCHEMA,
            machine,
            batch_size,
            ms: BTreeMap::new(),
            reference_ms: None,
            spread: 0.0,
            settled: false,
            disturbed: None,
        }
    }

    /// Reads the table at `path`; a table without entries if there is no file. Times that were measured while
    /// other processes disturbed them are of no use later: [`Latencies::is_disturbed`] is then true.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Argument`] for a file that is no such table, or is of another machine or batch
    /// size.
    pub(crate) fn open(path: &Path, machine: String, batch_size: usize) -> Result<Latencies, Error> {
        let Some(table) = Latencies::read(path)? else { return Ok(Latencies::new(machine, batch_size)) };
        match (&table.machine, table.batch_size) == (&machine, batch_size) {
            true => Ok(table),
            false => Err(table.of_another(path, &machine, batch_size)),
        }
    }

    /// Refuses the table at `path`, if there is one, where no run on `hardware` could use it, whatever its
    /// images are.
    ///
    /// # Errors
    /// Those of [`Latencies::open`].
    pub(crate) fn check(path: &Path, hardware: &str, batch_size: usize) -> Result<(), Error> {
        let Some(table) = Latencies::read(path)? else { return Ok(()) };
        // The size of the images and the type of the residual follow.
        let rest = table.machine.strip_prefix(hardware);
        let fits = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(", "));
        match fits && table.batch_size == batch_size {
            true => Ok(()),
            false => Err(table.of_another(path, hardware, batch_size)),
        }
    }

    /// The error for a table of another machine or batch size.
    fn of_another(&self, path: &Path, machine: &str, batch_size: usize) -> Error {
        let problem = format!(
            "holds times of {} at batch {}, and this run is for {machine} at batch {batch_size}",
            self.machine, self.batch_size
        );
        refused(path, &problem)
    }

    /// The table at `path`; `None` if there is no file.
    fn read(path: &Path) -> Result<Option<Latencies>, Error> {
        let text = match text_file::read(path, MAX_RESULTS) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io(path)(error)),
        };
        let refuse = |problem: String| Err(refused(path, &problem));
        let table: Latencies = match serde_json::from_str(&text) {
            Ok(table) => table,
            Err(error) => return refuse(error.to_string()),
        };
        if table.schema != SCHEMA {
            return refuse(format!("schema {}, but this program reads {SCHEMA}", table.schema));
        }
        if let Some((key, ms)) = table.ms.iter().find(|(_, ms)| !(ms.is_finite() && **ms >= 0.0)) {
            return refuse(format!("{key}: {ms} is not a time"));
        }
        if !(table.spread.is_finite() && table.spread >= 0.0) {
            return refuse(format!("spread: {} is not a share of a time", table.spread));
        }
        Ok(Some(table))
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

    /// The predicted latency of a model with the plan `plan` and its `launches` in milliseconds; `None` if a
    /// launch was not measured.
    pub(crate) fn predict(&self, plan: &Outline, launches: &[LaunchSteps]) -> Option<f64> {
        launches.iter().map(|launch| self.ms.get(&key(launch, plan))).sum()
    }

    /// Adds a measurement of a model with the plan `plan`. The times of its launches are scaled so that their
    /// sum is the latency of the model. Variants that the table holds stay as they are.
    pub(crate) fn add(&mut self, plan: &Outline, measured: &Measured<'_>) {
        let (launches, times) = measured.launches;
        assert_eq!(launches.len(), times.len(), "a time for each launch");
        let (whole, reference) = (measured.whole.median(), measured.reference.median());
        let first = *self.reference_ms.get_or_insert(reference);
        let scale = whole / times.iter().sum::<f64>() * first / reference;
        for (launch, ms) in launches.iter().zip(times) {
            self.ms.entry(key(launch, plan)).or_insert(ms * scale);
        }
        if !self.settled {
            let own = spread(&measured.whole).max(spread(&measured.reference));
            self.spread = self.spread.max(own);
        }
    }

    /// Says that all models were measured that are measured before a search. The spread stays from now on, so
    /// that a search with this table makes the same decisions again.
    pub(crate) fn settle(&mut self) {
        self.settled = true;
    }

    /// The spread of a latency as a fraction of it: the largest distance between the quartiles of a model's
    /// times.
    pub(crate) fn spread(&self) -> f64 {
        self.spread
    }

    /// Notes the cores that other processes kept busy while times were measured, if they disturbed them.
    pub(crate) fn set_disturbance(&mut self, busy: Option<f64>) {
        self.disturbed = busy;
    }

    /// Whether other processes disturbed the times.
    pub(crate) fn is_disturbed(&self) -> bool {
        self.disturbed.is_some()
    }
}

/// The error for a table that cannot be used.
fn refused(path: &Path, problem: &str) -> Error {
    let next = "name another file, or remove it to measure again";
    Error::argument("latencies", format!("{}: {problem}; {next}", path.display()))
}

/// The variant of `launch` in a model with the plan `plan`: its name, and what each of its steps reads and
/// writes.
fn key(launch: &LaunchSteps, plan: &Outline) -> String {
    let text = plan.steps[launch.steps.clone()].iter().map(|step| {
        let reads = plan.tensor(step.input).element.name();
        // The scale does not change the time.
        let writes = step.store.split(" (scale").next().unwrap_or_default();
        format!("{}, {reads} -> {writes}", step.op)
    });
    format!("{}: {}", launch.name, text.collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_is_the_distance_between_the_quartiles() {
        let of = |times: &[f64]| spread(&Latency::from_samples(times.to_vec()).unwrap());
        assert_eq!(of(&[10.0, 10.0, 10.0, 10.0]), 0.0);
        // One slow run of many does not count.
        assert_eq!(of(&[8.0, 9.0, 10.0, 11.0, 90.0]), 0.2);
    }

    #[test]
    fn a_table_says_whether_other_processes_disturbed_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("latencies.json");
        let open = || Latencies::open(&path, "a processor".to_owned(), 1);
        let mut table = open().unwrap();
        assert!(!table.is_disturbed());
        for (busy, is_disturbed) in [(Some(1.5), true), (None, false)] {
            table.set_disturbance(busy);
            table.save(&path).unwrap();
            assert_eq!(open().unwrap().is_disturbed(), is_disturbed);
        }
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("\"spread\": 0.0", "\"spread\": -1.0")).unwrap();
        let error = open().unwrap_err().to_string();
        assert!(error.contains("spread: -1 is not a share"), "{error}");
    }
    #[test]
    fn a_table_is_checked_against_the_hardware_before_images_are_known() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("latencies.json");
        Latencies::check(&path, "kernels a, 2 threads", 1).unwrap();
        Latencies::new("kernels a, 2 threads, images of 64x96".to_owned(), 1).save(&path).unwrap();
        Latencies::check(&path, "kernels a, 2 threads", 1).unwrap();
        for (hardware, batch) in
            [("kernels a, 2", 1), ("kernels b, 2 threads", 1), ("kernels a, 2 threads", 2)]
        {
            let error = Latencies::check(&path, hardware, batch).unwrap_err().to_string();
            assert!(
                error.contains("holds times of kernels a, 2 threads, images of 64x96 at batch 1"),
                "{error}"
            );
            assert!(error.contains("name another file, or remove it"), "{error}");
        }
    }
}
