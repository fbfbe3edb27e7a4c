//! The GPU rungs of `bench gemm`.

use std::rc::Rc;

use swinq_cuda::ladder::{Col32, Elements, FloatGemm, FloatRung, Matrix, spread, to_half};
use swinq_cuda::ops::linear::{DeviceLinear, DeviceLinearSpec, DeviceWeight, LinearStore, OwnLinear, Target};
use swinq_cuda::ops::{DeviceStore, ResidualType, row_stride};
use swinq_cuda::{CudaError, DeviceBuf, DeviceSlice, FloatKind, LtPlan, Output, Plain, Program, Stream};

use crate::clock;
use crate::machine::Gpu;
use crate::measure::Prepared;
use crate::operands::Operands;
use crate::rung::Rung;
use crate::shape::Shape;

/// Prepares the rungs of one product.
pub struct OnGpu<'a> {
    /// The GPU.
    pub gpu: &'a Gpu,
    /// The operands.
    pub operands: &'a Operands,
    /// How many of swinq's kernels to measure; `None` for all.
    pub tiles: Option<usize>,
}

impl OnGpu<'_> {
    /// Uploads the operands of a rung and chooses its fastest kernel.
    ///
    /// # Errors
    /// The GPU or a library cannot run the rung.
    ///
    /// # Panics
    /// If `rung` runs on the CPU.
    pub fn prepare(&self, rung: Rung) -> Result<Prepared, CudaError> {
        match rung {
            Rung::Float(rung) => self.float(rung),
            Rung::OwnInt8 | Rung::OwnCodes | Rung::OwnHalf => self.own(rung),
            Rung::LtFloat(kind) => self.lt_float(kind),
            Rung::LtInt8(output) => self.lt_int8(output),
            Rung::LtCol32 => self.lt_col32(),
            Rung::CpuScalar | Rung::CpuFloat | Rung::CpuInt8 => {
                unreachable!("{} is no GPU rung", rung.name())
            }
        }
    }

    fn upload<T: Plain>(&self, values: &[T]) -> Result<DeviceSlice, CudaError> {
        Ok(DeviceBuf::from_slice(&self.gpu.device, values)?.all())
    }

    /// The output matrix, whose rows are `stride` elements apart.
    fn out(&self, elements: Elements, stride: usize) -> Result<Matrix, CudaError> {
        let Shape { m, n, .. } = self.operands.shape;
        Matrix::new(&self.gpu.device, elements, (m, n), stride)
    }

    fn float(&self, rung: FloatRung) -> Result<Prepared, CudaError> {
        let Shape { m, n, k } = self.operands.shape;
        let gemm = FloatGemm::new(&self.gpu.device, rung)?;
        let (a, w) = (self.upload(&self.operands.a)?, self.upload(&self.operands.w)?);
        let out = self.out(Elements::F32, n)?;
        let to = out.slice().clone();
        Ok(Prepared::new(move |stream| gemm.run(stream, (m, n, k), &a, &w, &to), vec![out]))
    }

    fn own(&self, rung: Rung) -> Result<Prepared, CudaError> {
        let Shape { m, n, k } = self.operands.shape;
        let (a, elements) = match rung {
            Rung::OwnHalf => {
                let halves = spread(&to_half(&self.operands.a), k, row_stride(k, 2));
                (self.upload(&halves)?, Elements::F16)
            }
            _ => {
                let codes = spread(&self.operands.a_codes, k, row_stride(k, 1));
                (self.upload(&codes)?, if rung.has_codes() { Elements::S8 } else { Elements::F32 })
            }
        };
        let stride = if elements == Elements::F32 { n } else { row_stride(n, elements.bytes()) };
        let out = self.out(elements, stride)?;
        let to = out.slice().clone();
        let product = self.product(rung)?;
        let kernels = self.kernels_of(&product)?;
        let count = kernels.len();
        let run = move |own: &OwnLinear, stream: &Stream| {
            own.run(&product, stream, m, &a, Target { slice: &to, map: None })
        };
        let best = self.fastest(kernels, &run)?;
        let detail = format!("{}, of {count} kernels", best.tile());
        Ok(Prepared { detail, ..Prepared::new(move |stream| run(&best, stream), vec![out]) })
    }

    /// swinq's linear layer, with the weight on the GPU.
    fn product(&self, rung: Rung) -> Result<DeviceLinear, CudaError> {
        let Shape { n, k, .. } = self.operands.shape;
        let multiplier = vec![1.0; n];
        let codes =
            DeviceWeight::Codes { codes: &self.operands.w_codes, multiplier: &multiplier, zero_points: &[] };
        let (weight, store) = match rung {
            Rung::OwnHalf => (DeviceWeight::Half(&self.operands.w), LinearStore::Plain(DeviceStore::Half)),
            Rung::OwnCodes => (codes, LinearStore::Codes(vec![self.operands.code_factor(); n])),
            _ => (codes, LinearStore::Plain(DeviceStore::Float)),
        };
        let residual = ResidualType::F32;
        let spec = DeviceLinearSpec { n, k, weight, bias: None, output: None, gelu: None, store, residual };
        DeviceLinear::new(&self.gpu.device, &spec)
    }

    /// swinq's kernels for a linear layer, compiled on all cores.
    fn kernels_of(&self, product: &DeviceLinear) -> Result<Vec<OwnLinear>, CudaError> {
        let tiles = product.tiles(self.operands.shape.m);
        let tiles = &tiles[..self.tiles.map_or(tiles.len(), |most| most.min(tiles.len()))];
        let programs: Vec<Program> = tiles.iter().map(|&tile| product.kind().program(tile)).collect();
        self.gpu.device.kernels(&programs)?;
        tiles.iter().map(|&tile| product.own(tile)).collect()
    }

    /// The fastest of `candidates`. Candidates that the GPU refuses to launch are passed over.
    fn fastest<T>(
        &self,
        candidates: Vec<T>,
        run: &impl Fn(&T, &Stream) -> Result<(), CudaError>,
    ) -> Result<T, CudaError> {
        let mut best: Option<(f64, T)> = None;
        let mut refusal = None;
        for candidate in candidates {
            match clock::quick(&self.gpu.timer, &|stream| run(&candidate, stream)) {
                Ok(time) if best.as_ref().is_none_or(|(least, _)| time < *least) => {
                    best = Some((time, candidate))
                }
                Ok(_) => {}
                Err(error @ (CudaError::Launch { .. } | CudaError::CublasLt { .. })) => refusal = Some(error),
                Err(error) => return Err(error),
            }
        }
        let none = || refusal.unwrap_or_else(|| CudaError::Unsupported("there is no kernel for it".into()));
        best.map(|(_, best)| best).ok_or_else(none)
    }

    fn lt_float(&self, kind: FloatKind) -> Result<Prepared, CudaError> {
        let Shape { m, n, k } = self.operands.shape;
        let plans = LtPlan::float(&*self.gpu.lt()?, m, n, k, kind)?;
        let (a, w) = match kind {
            FloatKind::F32 | FloatKind::Tf32 => {
                (self.upload(&self.operands.a)?, self.upload(&self.operands.w)?)
            }
            FloatKind::F16 | FloatKind::F16ToF32 => {
                (self.upload(&to_half(&self.operands.a))?, self.upload(&to_half(&self.operands.w))?)
            }
        };
        let elements = if kind == FloatKind::F16 { Elements::F16 } else { Elements::F32 };
        self.library(plans, (a, w), None, self.out(elements, n)?)
    }

    fn lt_int8(&self, output: Output) -> Result<Prepared, CudaError> {
        let Shape { m, n, k } = self.operands.shape;
        let plans = LtPlan::new(&*self.gpu.lt()?, m, n, k, output)?;
        let (a, w) = (self.upload(&self.operands.a_codes)?, self.upload(&self.operands.w_codes)?);
        let (alpha, elements) = match output {
            Output::S32 => (None, Elements::S32),
            Output::S8 => (Some(self.upload(&vec![self.operands.code_factor(); n])?), Elements::S8),
        };
        self.library(plans, (a, w), alpha, self.out(elements, n)?)
    }

    /// The fastest algorithm of cuBLASLt.
    fn library(
        &self,
        plans: Vec<LtPlan>,
        (a, w): (DeviceSlice, DeviceSlice),
        alpha: Option<DeviceSlice>,
        out: Matrix,
    ) -> Result<Prepared, CudaError> {
        let (lt, to, count) = (self.gpu.lt()?, out.slice().clone(), plans.len());
        let run = move |plan: &LtPlan, stream: &Stream| plan.run(&lt, stream, &a, &w, alpha.as_ref(), &to);
        let best = self.fastest(plans, &run)?;
        let (algorithm, tile, stages) = (best.algo_id(), best.tile_id(), best.stages_id());
        let detail = format!("algorithm {algorithm}, tile {tile}, stages {stages}, of {count}");
        Ok(Prepared { detail, ..Prepared::new(move |stream| run(&best, stream), vec![out]) })
    }

    fn lt_col32(&self) -> Result<Prepared, CudaError> {
        let Shape { m, n, k } = self.operands.shape;
        let (a, w) = (self.upload(&self.operands.a_codes)?, self.upload(&self.operands.w_codes)?);
        let (device, stream) = (&self.gpu.device, self.gpu.timer.stream());
        let product = Rc::new(Col32::new(device, stream, (m, n, k), &a, &w)?);
        let out = self.out(Elements::S32, n)?;
        let (to, finished) = (out.slice().clone(), Rc::clone(&product));
        let finish = move |stream: &Stream| finished.sums(stream, &to);
        let detail = "operands brought into COL32 before".to_owned();
        let prepared = Prepared::new(move |stream| product.run(stream), vec![out]);
        Ok(Prepared { finish: Some(Box::new(finish)), detail, ..prepared })
    }
}
