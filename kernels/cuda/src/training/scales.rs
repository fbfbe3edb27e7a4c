//! The scales of weights, computed on the device.

use cudarc::driver::{CudaSlice, CudaView};

use super::{Call, THREADS, Training, uint};
use crate::params::train_scales::Params;
use crate::{CudaError, LaunchConfig, Program};

/// Number of values per block.
const PART: u32 = 16 * THREADS;

/// The programs and launches of scales.
pub struct ScalesProgram;

impl ScalesProgram {
    /// The program of `entry`: `row_maxima` or `scale_table`.
    pub fn program(entry: &'static str) -> Program {
        Program::new("train_scales.cu", entry).define("THREADS", THREADS.into())
    }

    /// Number of parts of a row.
    pub fn parts(columns: usize) -> u32 {
        uint(columns).div_ceil(PART)
    }

    /// Launch configuration of the maxima.
    pub fn maxima_launch(rows: usize, columns: usize) -> LaunchConfig {
        let grid = [ScalesProgram::parts(columns), uint(rows), 1];
        LaunchConfig { grid, threads: THREADS, shared: THREADS / 8, pdl: false }
    }

    /// Launch configuration of the table.
    pub fn table_launch(rows: usize) -> LaunchConfig {
        LaunchConfig::linear(uint(rows).div_ceil(THREADS), THREADS)
    }
}

/// The source of a weight's scales.
#[derive(Clone, Copy, Debug)]
pub enum RowScales<'a> {
    /// The largest magnitude of each of `rows` rows of a weight becomes the largest code.
    Maxima {
        /// The weight.
        weight: &'a CudaView<'a, f32>,
        /// Factors of its columns and their reciprocals, `[2, columns]`.
        factors: Option<&'a CudaView<'a, f32>>,
        /// Number of rows.
        rows: usize,
    },
    /// Initial scales and their learned ratios, `[rows]` each, and the factor of the gradients.
    Learned {
        /// The ratios.
        ratios: &'a CudaView<'a, f32>,
        /// The initial scales.
        base: &'a CudaView<'a, f32>,
        /// Factor of the gradients.
        gradient_scale: f32,
    },
}

impl Training {
    /// The scales of a weight's rows, their reciprocals and the factors of their gradients, `[3, rows]`.
    /// `largest` is the largest code.
    ///
    /// # Errors
    /// The kernel does not compile, or the driver fails.
    ///
    /// # Panics
    /// If lengths do not match, or there are no rows or more than 65535.
    pub fn row_scales(&self, of: RowScales<'_>, largest: f32) -> Result<CudaSlice<f32>, CudaError> {
        match of {
            RowScales::Maxima { weight, factors, rows } => {
                let maxima = self.row_maxima(weight, factors, rows)?;
                let (maxima, mut call) = (maxima.as_view(), Call::new(self));
                let (len, parts) = (maxima.len(), uint(maxima.len() / rows));
                let maxima = call.read("row_scales", &maxima, len);
                self.scale_table(rows, Params { maxima, parts, largest, ..Params::default() })
            }
            RowScales::Learned { ratios, base, gradient_scale } => {
                let rows = ratios.len();
                let mut call = Call::new(self);
                let x = call.read("row_scales", ratios, rows);
                let base = call.read("row_scales: initial scales", base, rows);
                self.scale_table(rows, Params { x, base, largest, gradient_scale, ..Params::default() })
            }
        }
    }

    fn row_maxima(
        &self,
        weight: &CudaView<'_, f32>,
        factors: Option<&CudaView<'_, f32>>,
        rows: usize,
    ) -> Result<CudaSlice<f32>, CudaError> {
        let len = weight.len();
        let fits = (1..=65_535).contains(&rows) && len > 0 && len.is_multiple_of(rows);
        assert!(fits, "row_scales: {len} values in {rows} rows");
        let columns = len / rows;
        let parts = ScalesProgram::parts(columns);
        let mut maxima = self.allocate(rows * parts as usize)?;
        let mut call = Call::new(self);
        let params = Params {
            x: call.read("row_scales", weight, len),
            factors: call.read("row_scales: factors", factors, 2 * columns),
            maxima: call.write(&mut maxima),
            rows: uint(rows),
            columns: uint(columns),
            parts,
            ..Params::default()
        };
        let config = ScalesProgram::maxima_launch(rows, columns);
        // SAFETY: `Params` is the kernel's parameter. The weight has `rows * columns` values, the factors two
        // for each column, and `maxima` has a value for each block.
        unsafe { self.launch(&ScalesProgram::program("row_maxima"), config, &params)? };
        drop(call);
        Ok(maxima)
    }

    fn scale_table(&self, rows: usize, params: Params) -> Result<CudaSlice<f32>, CudaError> {
        let mut table = self.allocate(3 * rows)?;
        let mut call = Call::new(self);
        let params = Params { table: call.write(&mut table), rows: uint(rows), ..params };
        let config = ScalesProgram::table_launch(rows);
        // SAFETY: as above. The caller checked and holds what `params` names: `parts` values or one value for
        // each row.
        unsafe { self.launch(&ScalesProgram::program("scale_table"), config, &params)? };
        drop(call);
        Ok(table)
    }
}
