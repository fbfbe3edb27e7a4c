//! The comparison matrix: a row for every figure, a column for every model.

use crate::interval::{Interval, of_share};
use crate::results::{ModelResult, Results};
use crate::text::{cosine, decibels, mebibytes, relative, thousands};

/// A cell: the figure, and its comparison with the baseline.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell {
    pub value: String,
    pub note: String,
}

/// A row of the matrix.
pub struct MatrixRow {
    pub name: String,
    pub cells: Vec<Cell>,
}

/// Rows under a common heading.
pub struct Group {
    pub name: &'static str,
    pub rows: Vec<MatrixRow>,
}

/// The groups of rows. A figure that no model has is left out, and so is a group without rows.
pub fn groups(results: &Results) -> Vec<Group> {
    let Some(base) = results.models.first() else { return Vec::new() };
    let table = Table { results, base };
    let groups = [
        Group { name: "Model", rows: table.model() },
        Group { name: "Accuracy", rows: table.accuracy() },
        Group { name: "Speed", rows: table.speed() },
        Group { name: "Size", rows: table.size() },
    ];
    groups.into_iter().filter(|group| !group.rows.is_empty()).collect()
}

struct Table<'a> {
    results: &'a Results,
    base: &'a ModelResult,
}

impl Table<'_> {
    /// A row with the cells of all models; `None` if every cell is empty.
    fn row(&self, name: impl Into<String>, cell: impl Fn(&ModelResult) -> Option<Cell>) -> Option<MatrixRow> {
        let cells: Vec<Option<Cell>> = self.results.models.iter().map(cell).collect();
        let any = cells.iter().any(Option::is_some);
        let absent = || Cell { value: "-".to_owned(), note: String::new() };
        let cells = cells.into_iter().map(|cell| cell.unwrap_or_else(absent)).collect();
        any.then(|| MatrixRow { name: name.into(), cells })
    }

    fn is_base(&self, model: &ModelResult) -> bool {
        std::ptr::eq(self.base, model)
    }

    fn model(&self) -> Vec<MatrixRow> {
        let rows = [
            self.row("arithmetic", |m| plain(format!("{}, {}", m.precision, m.backend))),
            self.row("recipe", |m| plain(m.recipe.clone()?)),
            self.row("sites quantized", |m| {
                let on = m.sites.iter().filter(|site| site.enabled).count();
                (!m.sites.is_empty())
                    .then(|| Cell { value: on.to_string(), note: format!("of {}", m.sites.len()) })
            }),
            self.row("INT8 multiply-adds", |m| plain(format!("{:.1} %", 100.0 * m.int8_share?))),
        ];
        rows.into_iter().flatten().collect()
    }

    fn accuracy(&self) -> Vec<MatrixRow> {
        let rows = [
            self.row("top-1", |m| self.points(m, ModelResult::top1_percent)),
            self.row("95 % interval of top-1", |m| {
                let [low, high] = of_share(m.top1_correct?, m.images?);
                plain(format!("{:.2} to {:.2} %", 100.0 * low, 100.0 * high))
            }),
            self.row("95 % interval of the difference", |m| {
                let Interval { low, high, .. } = m.top1_difference?;
                plain(format!("{:+.2} to {:+.2}", 100.0 * low, 100.0 * high))
            }),
            self.row("top-5", |m| self.points(m, ModelResult::top5_percent)),
            self.row("images", |m| plain(thousands(m.images?))),
            self.row("class changed", |m| {
                let flips = m.flips?;
                let known = m.top1_correct.is_some();
                let note = if known {
                    format!("{} lost, {} gained", flips.lost, flips.gained)
                } else {
                    String::new()
                };
                Some(Cell { value: thousands(flips.total()), note })
            }),
            self.row("agreement", |m| plain(format!("{:.2} %", 100.0 * m.agreement?))),
            self.row("SQNR of the logits", |m| plain(decibels(of_logits(m, m.sqnr_db)?))),
            self.row("cosine of the logits", |m| plain(cosine(of_logits(m, m.cosine)?))),
        ];
        let outputs = self.results.outputs().into_iter().map(|name| {
            self.row(format!("SQNR of {name}"), |m| {
                let output = m.outputs.iter().find(|output| output.name == name)?;
                let note = output.relative_error.map(|error| format!("error {}", relative(error)));
                Some(Cell { value: decibels(output.sqnr_db), note: note.unwrap_or_default() })
            })
        });
        rows.into_iter().chain(outputs).flatten().collect()
    }

    fn speed(&self) -> Vec<MatrixRow> {
        let mut rows = Vec::new();
        for batch in self.results.batch_sizes() {
            let sizes = self.results.timed_sizes();
            for [height, width] in sizes.into_iter().skip(1) {
                rows.push(self.row(format!("median ms, batch {batch} of {height}x{width}"), |m| {
                    self.time(m, |m| Some(m.at_size([height, width])?.latency_ms.get(&batch)?.median))
                }));
            }
            let size = self.results.timed_size();
            let of_size = size.map_or(String::new(), |[height, width]| format!(" of {height}x{width}"));
            rows.push(self.row(format!("median ms, batch {batch}{of_size}"), |m| {
                self.time(m, |m| Some(m.latency_ms.get(&batch)?.median))
            }));
            rows.push(self.row(format!("GPU ms, batch {batch}"), |m| {
                self.time(m, |m| Some(m.compute_ms.get(&batch)?.median))
            }));
            rows.push(self.row(format!("images/s of a stream of batches of {batch}"), |m| {
                let images_per_second = m.stream_ips.get(&batch)?;
                Some(Cell { value: format!("{images_per_second:.0}"), note: String::new() })
            }));
        }
        rows.push(self.row("best images/s", |m| {
            let best = m.throughput_ips.iter().max_by(|a, b| a.1.total_cmp(b.1))?;
            Some(Cell { value: format!("{:.1}", best.1), note: format!("batch {}", best.0) })
        }));
        rows.into_iter().flatten().collect()
    }

    fn size(&self) -> Vec<MatrixRow> {
        let rows = [
            self.row("parameters", |m| {
                let bytes = m.size_bytes?;
                let base = self.base.size_bytes.filter(|&base| base > 0 && !self.is_base(m));
                let note = base.map_or(String::new(), |base| format!("{:.2}x", bytes as f64 / base as f64));
                Some(Cell { value: mebibytes(bytes), note })
            }),
            self.row("file", |m| plain(mebibytes(m.file_bytes?))),
        ];
        rows.into_iter().flatten().collect()
    }

    /// An accuracy in percent, with its difference from the baseline.
    fn points(&self, model: &ModelResult, value: impl Fn(&ModelResult) -> Option<f64>) -> Option<Cell> {
        let own = value(model)?;
        let base = value(self.base).filter(|_| !self.is_base(model));
        let note = base.map_or(String::new(), |base| format!("{:+.2}", own - base));
        Some(Cell { value: format!("{own:.2} %"), note })
    }

    /// A time with the speed-up over the baseline.
    fn time(&self, model: &ModelResult, median: impl Fn(&ModelResult) -> Option<f64>) -> Option<Cell> {
        let own = median(model)?;
        let base = median(self.base).filter(|_| !self.is_base(model) && own > 0.0);
        let note = base.map_or(String::new(), |base| format!("{:.2}x", base / own));
        Some(Cell { value: format!("{own:.3}"), note })
    }
}

/// A figure of `model`, if it is that of logits.
fn of_logits(model: &ModelResult, figure: Option<f64>) -> Option<f64> {
    figure.filter(|_| model.outputs.is_empty())
}

fn plain(value: String) -> Option<Cell> {
    Some(Cell { value, note: String::new() })
}
