//! The results of a rung, as a row of the table and as JSON.

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Map, Value, json};
use swinq_eval::Latency;

use crate::check::Check;
use crate::roofline::{Arithmetic, Roofline};

/// The amount of work of a rung.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// The arithmetic of its operations.
    pub arithmetic: Arithmetic,
    /// Operations of a product; 0 if only the memory traffic counts.
    pub operations: f64,
    /// The fewest bytes that it must read and write.
    pub bytes: f64,
}

/// The outcome of a rung.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It does not run on this machine or at this size; the reason.
    Skipped(String),
    /// Its results are wrong, or it could not run; the reason.
    Failed(String, Option<Check>),
    /// Its results are right.
    Right {
        /// The check of its results; `None` if they are the reference.
        check: Option<Check>,
        /// The times of its runs; `None` if nothing is timed.
        latency: Option<Latency>,
        /// The time of the roofline divided by the median; `None` on a CPU and if nothing is timed.
        share: Option<f64>,
        /// A note, such as the chosen kernel.
        detail: String,
    },
}

/// A rung at one size.
#[derive(Clone, Debug)]
pub struct Row {
    /// Name of the rung.
    pub rung: String,
    /// The layer of a model that it runs; empty if there is none.
    pub layer: String,
    /// Names and values of the sizes.
    pub shape: Vec<(&'static str, usize)>,
    /// Its amount of work.
    pub work: Workload,
    /// Its outcome.
    pub outcome: Outcome,
}

impl Workload {
    /// The time of `roofline` divided by the median of `latency`.
    pub fn share(&self, roofline: &Roofline, latency: &Latency) -> f64 {
        roofline.seconds(self.arithmetic, self.operations, self.bytes) / (1e-3 * latency.median())
    }

    /// Operations per second, or bytes per second if there are no operations.
    fn per_second(&self, ms: f64) -> f64 {
        if self.operations > 0.0 { self.operations / (1e-3 * ms) } else { self.bytes / (1e-3 * ms) }
    }

    /// The unit of [`Workload::per_second`].
    pub fn unit(&self) -> &'static str {
        match self.arithmetic {
            _ if self.operations == 0.0 => "B/s",
            Arithmetic::Int8 => "OP/s",
            _ => "FLOP/s",
        }
    }
}

impl Row {
    /// Rung and sizes, for messages.
    pub fn label(&self) -> String {
        let sizes: Vec<String> = self.shape.iter().map(|(name, size)| format!("{name} {size}")).collect();
        format!("{} ({})", self.rung, sizes.join(", "))
    }

    /// Whether the rung failed.
    pub fn failed(&self) -> bool {
        matches!(self.outcome, Outcome::Failed(..))
    }

    /// Median in milliseconds, if it was timed.
    pub fn median(&self) -> Option<f64> {
        match &self.outcome {
            Outcome::Right { latency, .. } => latency.as_ref().map(Latency::median),
            _ => None,
        }
    }

    /// Operations or bytes per second of the median, if it was timed.
    pub fn rate(&self) -> Option<f64> {
        self.median().map(|ms| self.work.per_second(ms))
    }

    /// The row as JSON.
    pub fn to_json(&self) -> Value {
        let mut row = Map::new();
        let mut add = |fields: Value| {
            if let Value::Object(fields) = fields {
                row.extend(fields);
            }
        };
        let Workload { arithmetic, operations, bytes } = self.work;
        add(
            json!({"rung": self.rung, "arithmetic": arithmetic.name(), "operations": operations, "bytes": bytes}),
        );
        if !self.layer.is_empty() {
            add(json!({"layer": self.layer}));
        }
        self.shape.iter().for_each(|(name, size)| add(json!({*name: size})));
        match &self.outcome {
            Outcome::Skipped(why) => add(json!({"check": "skipped", "why": why})),
            Outcome::Failed(why, check) => {
                add(json!({"check": "FAIL", "why": why}));
                add(check.map_or(Value::Null, |check| check_json(&check)));
            }
            Outcome::Right { check, latency, share, detail } => {
                add(json!({"check": if check.is_some() { "PASS" } else { "reference" }}));
                add(check.map_or(Value::Null, |check| check_json(&check)));
                add(latency.as_ref().map_or(Value::Null, |latency| self.latency_json(latency)));
                add(json!({"share_of_roofline": share, "detail": detail}));
            }
        }
        Value::Object(row)
    }

    fn latency_json(&self, latency: &Latency) -> Value {
        json!({
            "median_ms": latency.median(),
            "p20_ms": latency.percentile(20.0),
            "p80_ms": latency.percentile(80.0),
            "runs": latency.runs(),
            "per_second": self.work.per_second(latency.median()),
            "unit": self.work.unit(),
        })
    }

    /// The cells of the table after the rung's name.
    fn cells(&self) -> [String; 9] {
        let cells = |state: &str, check: Option<&Check>, why: &str| {
            let [error, limit] = check.map_or_else(Default::default, check_cells);
            let mut cells = [const { String::new() }; 9];
            (cells[0], cells[1], cells[2], cells[8]) = (state.to_owned(), error, limit, why.to_owned());
            cells
        };
        match &self.outcome {
            Outcome::Skipped(why) => cells("skipped", None, why),
            Outcome::Failed(why, check) => cells("FAIL", check.as_ref(), why),
            Outcome::Right { check, latency, share, detail } => {
                let state = if check.is_some() { "PASS" } else { "reference" };
                let mut cells = cells(state, check.as_ref(), detail);
                if let Some(latency) = latency {
                    cells[3..7].clone_from_slice(&self.time_cells(latency));
                }
                cells[7] = share.map_or(String::new(), |share| format!("{:.1} %", 100.0 * share));
                cells
            }
        }
    }

    /// The cells from the median to the rate.
    fn time_cells(&self, latency: &Latency) -> [String; 4] {
        [
            time(latency.median()),
            format!("{} - {}", time(latency.percentile(20.0)), time(latency.percentile(80.0))),
            latency.runs().to_string(),
            prefixed(self.work.per_second(latency.median()), self.work.unit()),
        ]
    }
}

fn check_json(check: &Check) -> Value {
    json!({"max_abs_error": check.max_abs_error, "tolerance": check.tolerance, "wrong": check.wrong})
}

/// The largest error and the limit.
fn check_cells(check: &Check) -> [String; 2] {
    [check.max_abs_error, check.tolerance]
        .map(|value| if value == 0.0 { "0".to_owned() } else { format!("{value:.2e}") })
}

/// A time in microseconds, milliseconds or seconds, whichever fits.
pub fn time(ms: f64) -> String {
    match ms {
        _ if ms < 1.0 => format!("{:.1} us", 1e3 * ms),
        _ if ms < 1e3 => format!("{ms:.2} ms"),
        _ => format!("{:.2} s", 1e-3 * ms),
    }
}

/// `value` with a decimal prefix and three digits.
pub fn prefixed(value: f64, unit: &str) -> String {
    let (scaled, prefix) = match value {
        _ if value >= 1e12 => (value / 1e12, "T"),
        _ if value >= 1e9 => (value / 1e9, "G"),
        _ => (value / 1e6, "M"),
    };
    let decimals = if scaled >= 100.0 {
        0
    } else if scaled >= 10.0 {
        1
    } else {
        2
    };
    format!("{scaled:.decimals$} {prefix}{unit}")
}

/// Headers of the table, and the alignment of the columns.
const COLUMNS: [(&str, CellAlignment); 10] = [
    ("rung", CellAlignment::Left),
    ("check", CellAlignment::Left),
    ("max error", CellAlignment::Right),
    ("limit", CellAlignment::Right),
    ("median", CellAlignment::Right),
    ("20 - 80 %", CellAlignment::Right),
    ("runs", CellAlignment::Right),
    ("rate", CellAlignment::Right),
    ("roofline", CellAlignment::Right),
    ("note", CellAlignment::Left),
];

/// The rows as a table, without the columns that have no value.
pub fn table(rows: &[Row]) -> Table {
    let cells = |row: &Row| [vec![row.rung.clone()], row.cells().to_vec()].concat();
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    let shown: Vec<usize> =
        (0..COLUMNS.len()).filter(|&i| rows.iter().any(|row| !row[i].is_empty())).collect();
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(shown.iter().map(|&i| COLUMNS[i].0));
    for (column, &i) in table.column_iter_mut().zip(&shown) {
        column.set_cell_alignment(COLUMNS[i].1);
    }
    for row in &rows {
        table.add_row(shown.iter().map(|&i| &row[i]));
    }
    table
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A row whose median is `ms`.
    pub fn measured(rung: &str, size: usize, ms: f64) -> Row {
        let work = Workload { arithmetic: Arithmetic::Fp32, operations: 2e9, bytes: 1e6 };
        let check = Some(Check::against(&[1.0], &[1.0], 0.0));
        let latency = Some(Latency::from_samples(vec![ms; 3]).unwrap());
        let outcome = Outcome::Right { check, latency, share: Some(0.5), detail: "as told".into() };
        let shape = vec![("m", size), ("n", size), ("k", size)];
        Row { rung: rung.into(), layer: String::new(), shape, work, outcome }
    }

    #[test]
    fn rows_as_json_and_as_cells() {
        let row = measured("loop", 64, 2.0);
        let value = row.to_json();
        assert_eq!((&value["check"], &value["m"], &value["runs"]), (&json!("PASS"), &json!(64), &json!(3)));
        assert_eq!((&value["per_second"], &value["unit"]), (&json!(1e12), &json!("FLOP/s")));
        let text = table(std::slice::from_ref(&row)).to_string();
        for word in ["loop", "PASS", "2.00 ms", "1.00 TFLOP/s", "50.0 %", "as told"] {
            assert!(text.contains(word), "`{word}` is not in\n{text}");
        }
        let check = Check::against(&[1.0], &[2.0], 0.5);
        let failed = Row { outcome: Outcome::Failed(check.complaint(), Some(check)), ..row.clone() };
        assert!(failed.failed() && failed.median().is_none() && failed.label() == "loop (m 64, n 64, k 64)");
        assert_eq!(failed.to_json()["check"], "FAIL");
        let text = table(std::slice::from_ref(&failed)).to_string();
        assert!(
            text.contains("FAIL") && text.contains("1.00e0 | 5.00e-1") && !text.contains("median"),
            "{text}"
        );
        assert!(table(&[failed, row]).to_string().contains("median"));
    }

    #[test]
    fn units() {
        assert_eq!([time(0.0123), time(12.3), time(1234.0)], ["12.3 us", "12.30 ms", "1.23 s"]);
        assert_eq!(prefixed(1.234e12, "OP/s"), "1.23 TOP/s");
        assert_eq!(prefixed(98.76e9, "B/s"), "98.8 GB/s");
        assert_eq!(prefixed(456.7e6, "FLOP/s"), "457 MFLOP/s");
    }
}
