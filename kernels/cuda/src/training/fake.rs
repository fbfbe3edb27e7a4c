//! Fake quantization and its gradients.

use cudarc::driver::{CudaSlice, CudaView};
use swinq_numerics::Quantizer;

use super::{Call, Element, THREADS, Training, uint, vector};
use crate::params::train_fake::Params;
use crate::{CudaError, LaunchConfig, Program};

/// Number of values per block.
const PART: u32 = 16 * THREADS;

/// Maximum number of rows with their own scales.
const MOST_ROWS: usize = 65_535;

/// The scales of fake quantization.
#[derive(Clone, Copy, Debug)]
pub enum FakeSteps<'a> {
    /// One scale, of an activation, and the factor of its gradient. A NaN becomes 0.
    One(Quantizer, f32),
    /// One scale per row of a weight, `[3, rows]`: scales, their reciprocals, and the factors of their
    /// gradients. A NaN stays a NaN.
    Rows(&'a CudaView<'a, f32>),
}

impl FakeSteps<'_> {
    fn rows(&self) -> usize {
        match self {
            FakeSteps::One(..) => 1,
            FakeSteps::Rows(table) => table.len() / 3,
        }
    }
}

/// Constants for which fake quantization is compiled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FakeProgram {
    /// Number of values per access.
    pub vector: usize,
    /// Whether each row has its own scale.
    pub table: bool,
    /// Whether the columns have factors.
    pub factors: bool,
    /// Whether the gradients of scales are computed.
    pub steps: bool,
    /// Type of the results of the forward pass, [`Element::OUT`].
    pub out: i64,
}

impl FakeProgram {
    /// The program of `entry`: `fake_forward`, `fake_backward` or `fake_steps`.
    pub fn program(self, entry: &'static str) -> Program {
        Program::new("train_fake.cu", entry)
            .define("THREADS", THREADS.into())
            .define("VECTOR", self.vector as i64)
            .define("TABLE", self.table.into())
            .define("FACTORS", self.factors.into())
            .define("STEPS", self.steps.into())
            .define("OUT", self.out)
    }

    /// Launch configuration for a matrix.
    pub fn launch(rows: usize, columns: usize) -> LaunchConfig {
        let grid = [uint(columns).div_ceil(PART), uint(rows), 1];
        LaunchConfig { grid, threads: THREADS, shared: THREADS / 8, pdl: false }
    }

    /// Launch configuration of the sum over the parts of the scales' gradients.
    pub fn launch_steps(rows: usize) -> LaunchConfig {
        LaunchConfig { shared: 8 * THREADS, ..LaunchConfig::linear(uint(rows), THREADS) }
    }
}

impl Training {
    /// Fake-quantizes `x` with codes from `low` to `high`. `factors` `[2, columns]` are factors of the
    /// columns, which are multiplied before and divided out behind it, and their reciprocals.
    ///
    /// # Errors
    /// The kernel does not compile, or the driver fails.
    ///
    /// # Panics
    /// If the number of rows does not divide the number of values or exceeds 65535, or there are no values;
    /// if `factors` has another length.
    pub fn fake_quantize<T: Element>(
        &self,
        x: &CudaView<'_, f32>,
        steps: FakeSteps<'_>,
        factors: Option<&CudaView<'_, f32>>,
        range: (f32, f32),
    ) -> Result<CudaSlice<T>, CudaError> {
        let (rows, mut params) = (steps.rows(), prepared(x.len(), steps, range));
        let columns = params.columns as usize;
        let mut out = self.allocate_as::<T>(x.len())?;
        let mut call = Call::new(self);
        params.x = call.read("fake_quantize", x, x.len());
        params.table = call.read("fake_quantize: steps", table(steps), 3 * rows);
        params.factors = call.read("fake_quantize: factors", factors, 2 * columns);
        params.out = call.write(&mut out);
        let vector = vector(columns, &[params.x, params.out, params.factors]);
        let (table, factors) = (table(steps).is_some(), factors.is_some());
        let program =
            FakeProgram { vector, table, factors, steps: false, out: T::OUT }.program("fake_forward");
        let config = FakeProgram::launch(rows, columns);
        // SAFETY: `Params` is the kernel's parameter. Both matrices have `rows * columns` values, the
        // table three values per row, and the factors two per column.
        unsafe { self.launch(&program, config, &params)? };
        drop(call);
        Ok(out)
    }

    /// The gradient of `x` given the gradient of its fake quantization, `grad`. If `learned`, also the
    /// gradient of each scale, multiplied by its factor.
    ///
    /// # Errors
    /// The kernel does not compile, or the driver fails.
    ///
    /// # Panics
    /// As [`Training::fake_quantize`]; or if `grad` has another length.
    pub fn fake_quantize_gradient(
        &self,
        x: &CudaView<'_, f32>,
        grad: &CudaView<'_, f32>,
        steps: FakeSteps<'_>,
        factors: Option<&CudaView<'_, f32>>,
        range: (f32, f32),
        learned: bool,
    ) -> Result<(CudaSlice<f32>, Option<CudaSlice<f32>>), CudaError> {
        let mut params = prepared(x.len(), steps, range);
        let (rows, columns) = (steps.rows(), params.columns as usize);
        let mut out = self.allocate(x.len())?;
        let mut partial = self.allocate(rows * params.parts as usize)?;
        let mut call = Call::new(self);
        params.x = call.read("fake_quantize_gradient", x, x.len());
        params.grad = call.read("fake_quantize_gradient: gradient", grad, x.len());
        params.table = call.read("fake_quantize_gradient: steps", table(steps), 3 * rows);
        params.factors = call.read("fake_quantize_gradient: factors", factors, 2 * columns);
        params.out = call.write(&mut out);
        params.partial = call.write(&mut partial);
        let vector = vector(columns, &[params.x, params.grad, params.out, params.factors]);
        let (table, factors) = (table(steps).is_some(), factors.is_some());
        let compiled = FakeProgram { vector, table, factors, steps: learned, out: f32::OUT };
        // SAFETY: as in `fake_quantize`; `partial` has a value for each block.
        unsafe {
            self.launch(&compiled.program("fake_backward"), FakeProgram::launch(rows, columns), &params)?
        };
        drop(call);
        if !learned {
            return Ok((out, None));
        }
        let mut gradients = self.allocate(rows)?;
        let mut call = Call::new(self);
        params.out = call.write(&mut gradients);
        // SAFETY: as above; a block reads the parts of its row and writes one value.
        unsafe { self.launch(&compiled.program("fake_steps"), FakeProgram::launch_steps(rows), &params)? };
        drop(call);
        Ok((out, Some(gradients)))
    }

    /// The sum of the parts of a scale's gradient, times `factor`, `[1]`.
    pub(super) fn sum_of_steps(
        &self,
        partial: &CudaSlice<f32>,
        factor: f32,
    ) -> Result<CudaSlice<f32>, CudaError> {
        let mut out = self.allocate(1)?;
        let partial = partial.as_view();
        let mut call = Call::new(self);
        let params = Params {
            out: call.write(&mut out),
            partial: call.read("steps", &partial, partial.len()),
            parts: uint(partial.len()),
            factor,
            ..Params::default()
        };
        let compiled = FakeProgram { vector: 1, table: false, factors: false, steps: true, out: f32::OUT };
        // SAFETY: `Params` is the kernel's parameter. The one block reads `parts` values and writes one.
        unsafe { self.launch(&compiled.program("fake_steps"), FakeProgram::launch_steps(1), &params)? };
        drop(call);
        Ok(out)
    }
}

fn table<'a>(steps: FakeSteps<'a>) -> Option<&'a CudaView<'a, f32>> {
    match steps {
        FakeSteps::One(..) => None,
        FakeSteps::Rows(table) => Some(table),
    }
}

/// The parameters for `len` values, without addresses.
fn prepared(len: usize, steps: FakeSteps<'_>, (low, high): (f32, f32)) -> Params {
    let rows = steps.rows();
    assert!(
        len > 0 && (1..=MOST_ROWS).contains(&rows) && len.is_multiple_of(rows),
        "fake_quantize: {len} values in {rows} rows"
    );
    if let FakeSteps::Rows(table) = steps {
        assert_eq!(table.len(), 3 * rows, "fake_quantize: three values for each row");
    }
    let columns = uint(len / rows);
    let (scale, recip, factor) = match steps {
        FakeSteps::One(quantizer, factor) => (quantizer.scale(), quantizer.recip(), factor),
        FakeSteps::Rows(_) => (1.0, 1.0, 1.0),
    };
    Params {
        rows: uint(rows),
        columns,
        parts: columns.div_ceil(PART),
        low,
        high,
        scale,
        recip,
        factor,
        ..Params::default()
    }
}
