//! The HTML report as a file.

use std::path::Path;

use swinq::eval::{ReportExtras, Results, html};
use swinq::model::atomic::write_atomic;

/// Writes the report of `results`.
pub fn write(path: &Path, results: &Results, extras: &ReportExtras) -> anyhow::Result<()> {
    let page = html(results, extras);
    write_atomic(path, |out| out.write_all(page.as_bytes()))?;
    Ok(())
}
