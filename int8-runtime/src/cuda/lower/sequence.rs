//! Which launch computes which steps of the plan: several steps where there is a kernel for them.

use std::ops::Range;

use swinq_cuda::CudaError;
use swinq_cuda::ops::StreamType;
use swinq_cuda::ops::attention::HEAD_DIM;
use swinq_cuda::ops::linear::{LinearStore, MOST_HEADS};
use swinq_cuda::ops::norm::{DeviceNorm, rows_of_tokens};
use swinq_numerics::{Quantizer, RowMap};
use swinq_plan::{Op, Order, Step, Store, TensorId};

use super::{Lowering, add_in_float};
use crate::cuda::mlp::lower_mlp;
use crate::cuda::step::{ANY_BATCH, DeviceOp, DeviceStep};
use crate::cuda::window_block::WindowBlock;

impl Lowering<'_> {
    /// Appends the launches for the first of `steps` to `to`. Returns the number of steps that they compute.
    pub(super) fn next(&mut self, steps: &[Step<'_>], to: &mut Vec<DeviceStep>) -> Result<usize, CudaError> {
        let Some((launches, count)) = self.fused(steps)? else { return self.unfused(steps, &ANY_BATCH, to) };
        // Batches that are too small for the launches run the steps one by one.
        let few = 0..launches.last().map_or(0, |launch| launch.images.start);
        to.extend(launches);
        let mut rest = if few.end > 1 { &steps[..count] } else { &[] };
        while !rest.is_empty() {
            let count = self.unfused(rest, &few, to)?;
            rest = &rest[count..];
        }
        Ok(count)
    }

    /// The launches that compute half of a block at the beginning of `steps`, if there is a kernel for it, and the number
    /// of steps that they compute. They run for the same batch sizes.
    fn fused(&mut self, steps: &[Step<'_>]) -> Result<Option<(Vec<DeviceStep>, usize)>, CudaError> {
        if !self.fuse {
            return Ok(None);
        }
        if let Some((block, count)) = self.window_block(steps)? {
            return Ok(Some((vec![block], count)));
        }
        if let Some((mlp, count)) = self.mlp(steps)? {
            return Ok(Some((vec![mlp], count)));
        }
        // The MLP of Swin V2 quantizes the stream itself, so the norm before it stores no codes.
        if !matches!((&steps[0].op, &steps[0].store), (Op::Norm(..), Store::Residual { .. })) {
            return Ok(None);
        }
        let Some((mlp, count)) = self.mlp(&steps[1..])? else { return Ok(None) };
        let norm = self.norm_and_add(&steps[..1], &mlp.images)?;
        Ok(norm.map(|(norm, _)| (vec![norm, mlp], 1 + count)))
    }

    /// Appends the launch for the first of `steps`, without those that compute half of a block, for batches of `images`.
    /// Returns the number of steps that it computes.
    fn unfused(
        &mut self,
        steps: &[Step<'_>],
        images: &Range<usize>,
        to: &mut Vec<DeviceStep>,
    ) -> Result<usize, CudaError> {
        let (launch, count) = match self.heads(steps, images)? {
            Some(launch) => (launch, 2),
            None => match self.norm_and_add(steps, images)? {
                Some((launch, count)) => (launch, count),
                None => (self.step(&steps[0], images.clone())?, 1),
            },
        };
        to.push(launch);
        Ok(count)
    }

    /// The attention half at the beginning of `steps`, if one kernel computes it. The kernel rounds as an f16 stream
    /// permits.
    fn attention_half<'b>(&self, steps: &'b [Step<'b>]) -> Option<WindowBlock<'b>> {
        let block = WindowBlock::find(steps).filter(|_| self.fuse && self.stream == StreamType::F16)?;
        block.fits(self.device).then_some(block)
    }

    /// The launch for the attention half at the beginning of `steps`, if one kernel computes it, and the number of steps
    /// that it computes. Smaller batches than those of the result run the steps one by one.
    fn window_block(&mut self, steps: &[Step<'_>]) -> Result<Option<(DeviceStep, usize)>, CudaError> {
        let Some(block) = self.attention_half(steps) else { return Ok(None) };
        let map = self.device_map(block.map())?;
        let launch = block.lower(self.device, map, self.plan.tensor(steps[0].input).rows)?;
        Ok(Some((launch, block.count())))
    }

    /// The launch of the MLP that `steps` begins with, if it does and there is a kernel for it, and the number of steps that
    /// it computes. It runs for batches that are large enough.
    fn mlp(&self, steps: &[Step<'_>]) -> Result<Option<(DeviceStep, usize)>, CudaError> {
        // A fused attention half quantizes the stream itself.
        let next_codes = self.attention_half(steps.get(4..).unwrap_or_default()).is_none();
        let Some(mlp) = lower_mlp(self.device, steps, self.stream, next_codes)? else { return Ok(None) };
        let stream = steps[0].input;
        let rows = self.plan.tensor(stream).rows;
        let step = DeviceStep {
            name: mlp.name,
            images: mlp.op.least_rows().div_ceil(rows)..usize::MAX,
            op: DeviceOp::Mlp(mlp.op),
            input: stream,
            output: stream,
            codes: mlp.codes,
            rows,
            macs: steps[..mlp.count].iter().map(|step| step.macs).sum(),
            weight_bytes: mlp.weight_bytes,
        };
        Ok(Some((step, mlp.count)))
    }

    /// The launch for the norm at the beginning of `steps` that adds to the stream, if there is one, and the number of
    /// steps that it computes: the codes of the stream, which the next linear layer reads, are stored with it.
    fn norm_and_add(
        &mut self,
        steps: &[Step<'_>],
        images: &Range<usize>,
    ) -> Result<Option<(DeviceStep, usize)>, CudaError> {
        let [step, after @ ..] = steps else { return Ok(None) };
        let (Op::Norm(norm, order), Store::Residual { branch, shortcut }) = (&step.op, &step.store) else {
            return Ok(None);
        };
        if branch.is_some() || shortcut.is_some() {
            return Err(add_in_float());
        }
        let map = self.map_of(order)?;
        let fused = self.attention_half(after).is_some();
        let next = after.first().filter(|_| !fused).and_then(|next| stored_codes(next, step.output));
        let codes = next.map(|(_, quantizer, map)| (quantizer, map));
        let (gamma, beta) = (norm.gamma.read(), norm.beta.read());
        let op = DeviceNorm::residual(self.device, (&gamma, &beta), norm.eps, self.stream, map, codes)?;
        let step = DeviceStep {
            name: step.name.clone(),
            images: images.clone(),
            op: DeviceOp::Norm(op),
            input: step.input,
            output: step.output,
            codes: next.map(|(tensor, ..)| tensor),
            rows: self.plan.tensor(step.output).rows,
            macs: 0,
            weight_bytes: 0,
        };
        Ok(Some((step, 1 + usize::from(next.is_some()))))
    }

    /// The launch of the QKV layer at the beginning of `steps` and of the normalisation after it, if there are these two
    /// steps and one launch computes them: if the results are codes.
    fn heads(&mut self, steps: &[Step<'_>], images: &Range<usize>) -> Result<Option<DeviceStep>, CudaError> {
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
            images: images.clone(),
            op,
            input: first.input,
            output: second.output,
            codes: None,
            rows: self.plan.tensor(first.input).rows,
            macs: first.macs,
            weight_bytes,
        }))
    }
}

/// The tensor, the quantizer and the order of the codes that `step` stores of `stream`, if no row is padding.
pub(in crate::cuda) fn stored_codes<'a>(
    step: &'a Step<'_>,
    stream: TensorId,
) -> Option<(TensorId, Quantizer, Option<&'a RowMap>)> {
    let (Op::Quantize(order), Store::Codes(quantizers)) = (&step.op, &step.store) else { return None };
    let map = match order {
        Order::Tokens => None,
        Order::Windows { map, .. } => Some(&**map),
    };
    let no_padding = map.is_none_or(|map| rows_of_tokens(map).is_some());
    (step.input == stream && no_padding).then_some((step.output, quantizers[0], map))
}
