//! Gathers of rows and column sums.

use cudarc::driver::{CudaSlice, CudaView};

use super::{Call, THREADS, Training, uint, vector};
use crate::error::failed;
use crate::params::train_rows::{GatherParams, SumParams};
use crate::params::train_table;
use crate::{CudaError, LaunchConfig, Program};

/// Maximum number of rows that are summed in one stage.
const ROWS_OF_STAGE: usize = 1024;
/// Maximum number of parts of longer columns, and minimum rows per part.
const PARTS: usize = 256;
const ROWS_OF_PART: usize = 64;

/// Threads per block of the table's gradient; a block sums one value.
const TABLE_THREADS: u32 = 128;

/// The program of a table's gradient.
pub fn table_program() -> Program {
    Program::new("train_table.cu", "table_gradient").define("THREADS", TABLE_THREADS.into())
}

/// Launch configuration of the gradient of a table `[rows, heads]`.
pub fn table_launch(rows: usize, heads: usize) -> LaunchConfig {
    LaunchConfig {
        grid: [uint(rows), uint(heads), 1],
        threads: TABLE_THREADS,
        shared: TABLE_THREADS / 8,
        pdl: false,
    }
}

/// The program of `entry`, `gather` or `add_bias`, with `vector` values per access.
pub fn gather_program(entry: &'static str, vector: usize) -> Program {
    let program = Program::new("train_rows.cu", entry).define("THREADS", THREADS.into());
    program.define("VECTOR", vector as i64)
}

/// Launch configuration of an operation with `pieces` times `vector` results.
pub fn gather_launch(pieces: usize) -> LaunchConfig {
    LaunchConfig::linear(uint(pieces).div_ceil(THREADS), THREADS)
}

/// The program of column sums.
pub fn column_sums_program() -> Program {
    Program::new("train_rows.cu", "column_sums").define("THREADS", THREADS.into())
}

/// Launch configuration of the sums of `columns` columns, with the rows divided into `parts` parts.
pub fn column_sums_launch(columns: usize, parts: usize) -> LaunchConfig {
    let grid = [uint(columns).div_ceil(32), uint(parts), 1];
    LaunchConfig { grid, threads: THREADS, shared: 4 * THREADS, pdl: false }
}

impl Training {
    /// Gathers rows by an index map that is the same for every image: from `x` `[images * source_rows,
    /// columns]` to `[images * index.len(), columns]`. A row of [`PAD`](swinq_numerics::PAD) becomes zeros.
    ///
    /// # Errors
    /// The kernel does not compile, or the driver fails.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn gather(
        &self,
        x: &CudaView<'_, f32>,
        index: &RowIndex,
        columns: usize,
    ) -> Result<CudaSlice<f32>, CudaError> {
        let source = index.source_rows * columns;
        assert!(source > 0 && x.len().is_multiple_of(source), "gather: images of {source} values");
        let images = x.len() / source;
        let rows = index.len;
        let mut out = self.allocate(images * rows * columns)?;
        let map = index.map.as_view();
        let mut call = Call::new(self);
        let (x, to) = (call.read("gather", x, images * source), call.write(&mut out));
        let vector = vector(columns, &[x, to]);
        let total = images * rows * columns / vector;
        let params = GatherParams {
            x,
            index: call.read("gather: index", &map, rows),
            out: to,
            rows: uint(rows),
            source_rows: uint(index.source_rows),
            columns: uint(columns),
            total: uint(total),
            ..GatherParams::default()
        };
        // SAFETY: `GatherParams` is the kernel's parameter. The kernel reads rows below `source_rows` of each
        // image (`RowIndex::new`) and writes `total` pieces, within the lengths above.
        unsafe { self.launch(&gather_program("gather", vector), gather_launch(total), &params)? };
        drop(call);
        Ok(out)
    }

    /// Adds `bias` to every row of `x`.
    ///
    /// # Errors
    /// The kernel does not compile, or the driver fails.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn add_bias(
        &self,
        x: &CudaView<'_, f32>,
        bias: &CudaView<'_, f32>,
    ) -> Result<CudaSlice<f32>, CudaError> {
        let columns = bias.len();
        assert!(columns > 0 && x.len().is_multiple_of(columns), "add_bias: {columns} columns");
        let mut out = self.allocate(x.len())?;
        let mut call = Call::new(self);
        let (from, to) = (call.read("add_bias", x, x.len()), call.write(&mut out));
        let bias = call.read("add_bias: bias", bias, columns);
        let vector = vector(columns, &[from, bias, to]);
        let total = x.len() / vector;
        let params = GatherParams {
            x: from,
            bias,
            out: to,
            columns: uint(columns),
            total: uint(total),
            ..GatherParams::default()
        };
        // SAFETY: `GatherParams` is the kernel's parameter. The kernel reads and writes `total` pieces of
        // rows, and reads the bias.
        unsafe { self.launch(&gather_program("add_bias", vector), gather_launch(total), &params)? };
        drop(call);
        Ok(out)
    }

    /// The sum of each column of `x` `[rows, columns]`.
    ///
    /// # Errors
    /// The kernel does not compile, or the driver fails.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn column_sums(&self, x: &CudaView<'_, f32>, columns: usize) -> Result<CudaSlice<f32>, CudaError> {
        assert!(columns > 0 && x.len().is_multiple_of(columns), "column_sums: {columns} columns");
        let rows = x.len() / columns;
        if rows <= ROWS_OF_STAGE {
            return self.stage(x, (rows, columns), rows);
        }
        let part = rows.div_ceil(PARTS).max(ROWS_OF_PART);
        let parts = self.stage(x, (rows, columns), part)?;
        self.stage(&parts.as_view(), (rows.div_ceil(part), columns), PARTS)
    }

    /// The gradient of a table `[rows, heads]` that was read at rows `index`, given the gradient of the
    /// values read, `[heads, index.len()]`.
    ///
    /// # Errors
    /// The kernel does not compile, or the driver fails.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn table_gradient(
        &self,
        grad: &CudaView<'_, f32>,
        index: &CudaView<'_, u32>,
        rows: usize,
    ) -> Result<CudaSlice<f32>, CudaError> {
        let pairs = index.len();
        assert!(rows > 0 && pairs > 0 && grad.len().is_multiple_of(pairs), "table_gradient: {pairs} pairs");
        let heads = grad.len() / pairs;
        let mut out = self.allocate(rows * heads)?;
        let mut call = Call::new(self);
        let params = train_table::Params {
            grad: call.read("table_gradient", grad, heads * pairs),
            index: call.read("table_gradient: index", index, pairs),
            out: call.write(&mut out),
            pairs: uint(pairs),
            heads: uint(heads),
        };
        // SAFETY: The parameter is the kernel's, which only compares indexes and does not use
        // them as addresses; a block writes one value.
        unsafe { self.launch(&table_program(), table_launch(rows, heads), &params)? };
        drop(call);
        Ok(out)
    }

    /// Sums the columns over each part of `part` rows.
    fn stage(
        &self,
        x: &CudaView<'_, f32>,
        (rows, columns): (usize, usize),
        part: usize,
    ) -> Result<CudaSlice<f32>, CudaError> {
        let part = part.max(1);
        let parts = rows.div_ceil(part).max(1);
        let mut out = self.allocate(parts * columns)?;
        let mut call = Call::new(self);
        let params = SumParams {
            x: call.read("column_sums", x, rows * columns),
            out: call.write(&mut out),
            rows: uint(rows),
            columns: uint(columns),
            rows_of_part: uint(part),
        };
        // SAFETY: `SumParams` is the kernel's parameter. The kernel reads `rows` rows and writes a row for
        // each part.
        unsafe { self.launch(&column_sums_program(), column_sums_launch(columns, parts), &params)? };
        drop(call);
        Ok(out)
    }
}

/// An index map of rows on the device: the source row of each row of an image.
pub struct RowIndex {
    map: CudaSlice<u32>,
    len: usize,
    source_rows: usize,
}

impl RowIndex {
    /// Copies `index` to the device of `training`; [`PAD`](swinq_numerics::PAD) stands for a row of zeros.
    ///
    /// # Errors
    /// The driver fails.
    ///
    /// # Panics
    /// If a row is not below `source_rows`, or there are no rows.
    pub fn new(training: &Training, index: &[u32], source_rows: usize) -> Result<RowIndex, CudaError> {
        let inside = |&row: &u32| row == swinq_numerics::PAD || (row as usize) < source_rows;
        assert!(!index.is_empty() && index.iter().all(inside), "a row outside 0..{source_rows}");
        let map = training.cuda.clone_htod(index);
        let map = map.map_err(|error| failed("cuMemcpyHtoDAsync", error))?;
        Ok(RowIndex { map, len: index.len(), source_rows })
    }
}

impl std::fmt::Debug for RowIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RowIndex({} rows of {})", self.len, self.source_rows)
    }
}
