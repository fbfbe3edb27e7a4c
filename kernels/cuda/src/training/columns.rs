//! Operations on the values of a layer's columns: bias and GELU, fake quantization with a scale and a zero
//! point for each column, conversion to the type of matrix products, and sums of columns.

use cudarc::driver::{CudaSlice, CudaView};
use swinq_numerics::Quantizer;

use super::{Call, Element, THREADS, Training, uint, vector};
use crate::params::train_columns::Params;
use crate::{CudaError, LaunchConfig, Program};

/// Bytes of the coefficients of GELU.
const TAIL_BYTES: u32 = 4 * 96;

/// Blocks that keep a GPU busy, and the most parts into which rows are divided.
const BLOCKS: usize = 2048;
const MOST_PARTS: usize = 1024;

/// The fake quantization of a layer's columns.
#[derive(Clone, Copy, Debug)]
pub enum FakeColumns<'a> {
    /// None.
    Off,
    /// One scale for all columns.
    Tensor(Quantizer),
    /// A scale and a zero point for each column, `[3, columns]`: reciprocals of the scales, zero points,
    /// scales. The scales are multiples of the common scale of the quantizer.
    Columns(&'a CudaView<'a, f32>, Quantizer),
}

/// The operation on the columns.
#[derive(Clone, Copy, Debug)]
pub struct Columns<'a> {
    /// The bias `[columns]` that is added to the values before GELU; `None` without both.
    pub gelu: Option<&'a CudaView<'a, f32>>,
    /// The fake quantization behind them.
    pub fake: FakeColumns<'a>,
}

/// Constants for which these operations are compiled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ColumnsProgram {
    /// Number of values per access.
    pub vector: usize,
    /// Type of the results, [`Element::OUT`].
    pub out: i64,
    /// Whether bias and GELU come first.
    pub gelu: bool,
    /// The fake quantization: 0 none, 1 one scale, 2 quantizers of columns.
    pub fake: i64,
    /// Whether the gradient of the common scale is computed.
    pub steps: bool,
}

impl ColumnsProgram {
    /// The program of `entry`: `columns_forward` or `columns_backward`.
    pub fn program(self, entry: &'static str) -> Program {
        Program::new("train_columns.cu", entry)
            .define("THREADS", THREADS.into())
            .define("VECTOR", self.vector as i64)
            .define("OUT", self.out)
            .define("GELU", self.gelu.into())
            .define("FAKE", self.fake)
            .define("STEPS", self.steps.into())
    }

    /// Number of rows of a part.
    pub fn rows_of_part(self, rows: usize, columns: usize) -> usize {
        let parts = (BLOCKS / self.blocks(columns)).clamp(1, MOST_PARTS);
        rows.div_ceil(parts).max(8)
    }

    /// Launch configuration for a matrix.
    pub fn launch(self, rows: usize, columns: usize) -> LaunchConfig {
        let parts = rows.div_ceil(self.rows_of_part(rows, columns));
        let shared = TAIL_BYTES + 4 * THREADS * uint(self.vector);
        LaunchConfig {
            grid: [uint(self.blocks(columns)), uint(parts), 1],
            threads: THREADS,
            shared,
            pdl: false,
        }
    }

    fn blocks(self, columns: usize) -> usize {
        columns.div_ceil(32 * self.vector)
    }
}

impl Columns<'_> {
    fn compiled(&self, vector: usize, out: i64, steps: bool) -> ColumnsProgram {
        let fake = match self.fake {
            FakeColumns::Off => 0,
            FakeColumns::Tensor(_) => 1,
            FakeColumns::Columns(..) => 2,
        };
        ColumnsProgram { vector, out, gelu: self.gelu.is_some(), fake, steps }
    }

    /// The common scale.
    fn quantizer(&self) -> Option<Quantizer> {
        match self.fake {
            FakeColumns::Off => None,
            FakeColumns::Tensor(quantizer) | FakeColumns::Columns(_, quantizer) => Some(quantizer),
        }
    }
}

/// The gradients of [`Training::columns`].
pub struct ColumnsGradient<T> {
    /// The gradient of the values, `[rows, columns]`.
    pub x: CudaSlice<T>,
    /// The sums of its columns, before they are rounded, `[columns]`: the gradient of the bias.
    pub sums: CudaSlice<f32>,
    /// The gradient of the common scale, `[1]`, times the factor, if it is learned.
    pub step: Option<CudaSlice<f32>>,
}

impl Training {
    /// The values of `x` `[rows, columns]` after bias, GELU and fake quantization.
    ///
    /// # Errors
    /// The kernel does not compile, or the driver fails.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn columns<T: Element>(
        &self,
        x: &CudaView<'_, f32>,
        width: usize,
        of: Columns<'_>,
    ) -> Result<CudaSlice<T>, CudaError> {
        let mut out = self.allocate_as::<T>(x.len())?;
        let mut call = Call::new(self);
        let mut params = prepared(&mut call, x.len(), width, of);
        (params.x, params.out) = (call.read("columns", x, x.len()), call.write(&mut out));
        let addresses = [params.x, params.out, params.bias, params.table];
        let compiled = of.compiled(vector(width, &addresses), T::OUT, false);
        let rows = params.rows as usize;
        params.rows_of_part = uint(compiled.rows_of_part(rows, width));
        let config = compiled.launch(rows, width);
        // SAFETY: `Params` is the kernel's parameter. Both matrices have `rows * columns` values, and the
        // operands of the columns are checked.
        unsafe { self.launch(&compiled.program("columns_forward"), config, &params)? };
        drop(call);
        Ok(out)
    }

    /// The gradients of [`Training::columns`] given that of its results, `grad`. `x` may be `None` if nothing
    /// but the sums and the conversion is asked for. `learned` is the factor of the gradient of the common
    /// scale.
    ///
    /// # Errors
    /// The kernel does not compile, or the driver fails.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn columns_gradient<T: Element>(
        &self,
        x: Option<&CudaView<'_, f32>>,
        width: usize,
        of: Columns<'_>,
        grad: &CudaView<'_, f32>,
        learned: Option<f32>,
    ) -> Result<ColumnsGradient<T>, CudaError> {
        let compiled_without_x = of.gelu.is_none() && matches!(of.fake, FakeColumns::Off);
        assert!(x.is_some() || compiled_without_x, "columns_gradient: the values are needed");
        let mut out = self.allocate_as::<T>(grad.len())?;
        let mut call = Call::new(self);
        let mut params = prepared(&mut call, grad.len(), width, of);
        params.x = call.read("columns_gradient: values", x, grad.len());
        params.grad = call.read("columns_gradient", grad, grad.len());
        params.out = call.write(&mut out);
        let addresses = [params.x, params.grad, params.out, params.bias, params.table];
        let compiled = of.compiled(vector(width, &addresses), T::OUT, learned.is_some());
        let rows = params.rows as usize;
        params.rows_of_part = uint(compiled.rows_of_part(rows, width));
        let config = compiled.launch(rows, width);
        let mut sums = self.allocate(config.grid[1] as usize * width)?;
        let mut steps = self.allocate((config.grid[0] * config.grid[1]) as usize)?;
        let mut partial = Call::new(self);
        (params.sums, params.steps) = (partial.write(&mut sums), partial.write(&mut steps));
        // SAFETY: as in `columns`; `sums` has a row for each part, and `steps` a value for each block.
        unsafe { self.launch(&compiled.program("columns_backward"), config, &params)? };
        drop((call, partial));
        let step = learned.map(|factor| self.sum_of_steps(&steps, factor)).transpose()?;
        Ok(ColumnsGradient { x: out, sums: self.column_sums(&sums.as_view(), width)?, step })
    }
}

/// The parameters for `len` values in rows of `width`, without the matrices.
fn prepared<'a>(call: &mut Call<'a>, len: usize, width: usize, of: Columns<'a>) -> Params {
    assert!(width > 0 && len > 0 && len.is_multiple_of(width), "columns: {len} values in rows of {width}");
    let (recip, scale) = of.quantizer().map_or((1.0, 1.0), |q| (q.recip(), q.scale()));
    let table = match of.fake {
        FakeColumns::Columns(table, _) => Some(table),
        _ => None,
    };
    Params {
        bias: call.read("columns: bias", of.gelu, width),
        table: call.read("columns: quantizers", table, 3 * width),
        rows: uint(len / width),
        columns: uint(width),
        recip,
        scale,
        ..Params::default()
    }
}
