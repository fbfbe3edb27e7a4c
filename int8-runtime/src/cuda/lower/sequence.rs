//! Which launch computes which steps of the plan: several steps where there is a kernel for them.

use swinq_cuda::CudaError;
use swinq_cuda::ops::StreamType;
use swinq_cuda::ops::attention::HEAD_DIM;
use swinq_cuda::ops::linear::{LinearStore, MOST_HEADS};
use swinq_cuda::ops::norm::DeviceNorm;
use swinq_numerics::Quantizer;
use swinq_plan::{Op, Order, Step, Store, TensorId};

use super::{Lowering, add_in_float};
use crate::cuda::geometry::Gather;
use crate::cuda::mlp::lower_mlp;
use crate::cuda::step::{Codes, DeviceOp, DeviceStep};
use crate::cuda::when::When;
use crate::cuda::window_block::WindowBlock;

/// The launches that compute half of a block.
struct Fused {
    launches: Vec<DeviceStep>,
    /// Steps of the plan that they compute.
    count: usize,
    /// The batches for which they run.
    when: When,
}

impl Lowering<'_> {
    /// Appends the launches for the first of `steps` to `to`. Returns the number of steps that they compute.
    pub(super) fn next(&self, steps: &[Step<'_>], to: &mut Vec<DeviceStep>) -> Result<usize, CudaError> {
        let Some(Fused { launches, count, when }) = self.fused(steps)? else {
            return self.unfused(steps, &When::ANY, to);
        };
        to.extend(launches);
        // Batches that are too small for the launches run the steps one by one.
        let Some(few) = when.few() else { return Ok(count) };
        let mut rest = &steps[..count];
        while !rest.is_empty() {
            let count = self.unfused(rest, &few, to)?;
            rest = &rest[count..];
        }
        Ok(count)
    }

    /// The launches that compute half of a block at the beginning of `steps`, if there is a kernel for it.
    fn fused(&self, steps: &[Step<'_>]) -> Result<Option<Fused>, CudaError> {
        if !self.fuse {
            return Ok(None);
        }
        if let Some(block) = self.attention_half(steps) {
            let launch = block.lower(self.device, &self.plan.own)?;
            let when = launch.when.clone();
            return Ok(Some(Fused { launches: vec![launch], count: block.count(), when }));
        }
        if let Some(mlp) = self.mlp(steps)? {
            return Ok(Some(mlp));
        }
        // The MLP of Swin V2 quantizes the stream itself, so the norm before it stores no codes.
        if !matches!((&steps[0].op, &steps[0].store), (Op::Norm(..), Store::Residual { .. })) {
            return Ok(None);
        }
        let Some(mut mlp) = self.mlp(&steps[1..])? else { return Ok(None) };
        let mut launches = Vec::new();
        let Some(count) = self.norm_and_add(&steps[..1], &mlp.when, &mut launches)? else { return Ok(None) };
        launches.append(&mut mlp.launches);
        Ok(Some(Fused { launches, count: count + mlp.count, when: mlp.when }))
    }

    /// Appends the launches for the first of `steps`, without those that compute half of a block. Returns the number of steps
    /// that they compute.
    fn unfused(&self, steps: &[Step<'_>], when: &When, to: &mut Vec<DeviceStep>) -> Result<usize, CudaError> {
        if let Some(launch) = self.heads(steps, when)? {
            to.push(launch);
            return Ok(2);
        }
        if let Some(count) = self.norm_and_add(steps, when, to)? {
            return Ok(count);
        }
        to.push(self.step(&steps[0], when)?);
        Ok(1)
    }

    /// The attention half at the beginning of `steps`, if one kernel computes it. The kernel rounds as an f16 stream
    /// permits.
    fn attention_half<'b>(&self, steps: &'b [Step<'b>]) -> Option<WindowBlock<'b>> {
        let block = WindowBlock::find(steps).filter(|_| self.fuse && self.stream == StreamType::F16)?;
        block.fits(self.device).then_some(block)
    }

    /// The launch of the MLP that `steps` begins with, if it does and there is a kernel for it. It runs for batches that are
    /// large enough.
    fn mlp(&self, steps: &[Step<'_>]) -> Result<Option<Fused>, CudaError> {
        // A fused attention half quantizes the stream itself.
        let next_codes = self.attention_half(steps.get(4..).unwrap_or_default()).is_none();
        let Some(mlp) = lower_mlp(self.device, steps, self.stream, next_codes)? else { return Ok(None) };
        let (stream, steps) = (steps[0].input, &steps[..mlp.count]);
        let rows = self.plan.tensor(stream).rows;
        let when = When::from_rows(rows, mlp.op.least_rows(), &self.plan.own);
        let mut launches = vec![DeviceStep {
            name: mlp.name,
            when: when.clone(),
            op: DeviceOp::Mlp(mlp.op),
            input: stream,
            output: stream,
            codes: mlp.codes,
            rows,
            macs_per_row: steps.iter().map(|step| step.macs_per_row).sum(),
            weight_bytes: mlp.weight_bytes,
        }];
        if let Some(codes) = mlp.codes {
            launches.extend(self.padded_codes(codes, &steps[steps.len() - 1], &when)?);
        }
        Ok(Some(Fused { launches, count: steps.len(), when }))
    }

    /// Appends the launch for the norm at the beginning of `steps` that adds to the stream, if there is one. The codes of the
    /// stream, which the next linear layer reads, are stored with it. Returns the number of steps that are computed then.
    fn norm_and_add(
        &self,
        steps: &[Step<'_>],
        when: &When,
        to: &mut Vec<DeviceStep>,
    ) -> Result<Option<usize>, CudaError> {
        let [step, after @ ..] = steps else { return Ok(None) };
        let (Op::Norm(norm, order), Store::Residual { branch, shortcut }) = (&step.op, &step.store) else {
            return Ok(None);
        };
        if branch.is_some() || shortcut.is_some() {
            return Err(add_in_float());
        }
        let fused = self.attention_half(after).is_some();
        let next = after.first().filter(|_| !fused).and_then(|next| {
            let (codes, quantizer) = stored_codes(next, step.output)?;
            Some((next, codes, quantizer))
        });
        let (gamma, beta) = (norm.gamma.read(), norm.beta.read());
        let quantizer = next.map(|(.., quantizer)| quantizer);
        let op = DeviceNorm::residual(self.device, (&gamma, &beta), norm.eps, self.stream, quantizer)?;
        to.push(DeviceStep {
            name: step.name.clone(),
            when: when.clone(),
            op: DeviceOp::Norm(op, Gather::Rows(*order)),
            input: step.input,
            output: step.output,
            codes: next.map(|(_, codes, _)| codes),
            rows: self.plan.tensor(step.output).rows,
            macs_per_row: 0,
            weight_bytes: 0,
        });
        let Some((next, codes, _)) = next else { return Ok(Some(1)) };
        to.extend(self.padded_codes(codes, next, when)?);
        Ok(Some(2))
    }

    /// The launch of `step` for images whose windows have padding: a launch that adds to the stream stores no codes then.
    fn padded_codes(
        &self,
        codes: Codes,
        step: &Step<'_>,
        when: &When,
    ) -> Result<Option<DeviceStep>, CudaError> {
        match codes.order {
            Order::Tokens(_) => Ok(None),
            Order::Windows { stage, .. } => self.step(step, &when.with_padding(stage)).map(Some),
        }
    }

    /// The launch of the QKV layer at the beginning of `steps` and of the normalisation after it, if there are these two
    /// steps and one launch computes them: if the results are codes.
    fn heads(&self, steps: &[Step<'_>], when: &When) -> Result<Option<DeviceStep>, CudaError> {
        let [first, second, ..] = steps else { return Ok(None) };
        let (Op::Linear(linear), Op::NormalizeHeads(heads)) = (&first.op, &second.op) else {
            return Ok(None);
        };
        let (Store::F32, Store::Codes(sites)) = (&first.store, &second.store) else { return Ok(None) };
        if !self.fuse
            || second.input != first.output
            || heads.head_dim != HEAD_DIM
            || heads.heads > MOST_HEADS
        {
            return Ok(None);
        }
        let mut two_codes = heads.two_codes.clone();
        two_codes.resize(heads.heads, false);
        let store = LinearStore::Heads { sites: [sites[0], sites[1], sites[2]], two_codes };
        let (op, weight_bytes) = self.stored_linear(linear, store, None)?;
        Ok(Some(DeviceStep {
            name: first.name.clone(),
            when: when.clone(),
            op,
            input: first.input,
            output: second.output,
            codes: None,
            rows: self.plan.tensor(first.input).rows,
            macs_per_row: first.macs_per_row,
            weight_bytes,
        }))
    }
}

/// The codes that `step` computes of `stream`, and their quantizer, if it does nothing else.
pub(in crate::cuda) fn stored_codes(step: &Step<'_>, stream: TensorId) -> Option<(Codes, Quantizer)> {
    let (Op::Quantize(order), Store::Codes(quantizers)) = (&step.op, &step.store) else { return None };
    (step.input == stream).then_some((Codes { tensor: step.output, order: *order }, quantizers[0]))
}
