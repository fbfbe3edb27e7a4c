//! Which launch computes which steps of the plan: several steps where there is a kernel for them.

use swinq_cuda::CudaError;
use swinq_cuda::ops::ResidualType;
use swinq_cuda::ops::attention::HEAD_DIM;
use swinq_cuda::ops::linear::{LinearStore, MOST_HEADS};
use swinq_cuda::ops::norm::DeviceNorm;
use swinq_numerics::Quantizer;
use swinq_plan::{Op, Order, Step, Store, TensorId};

use super::planned::{Planned, Span};
use super::{Lowering, add_in_float};
use crate::cuda::geometry::Gather;
use crate::cuda::mlp::FusedMlp;
use crate::cuda::step::{Codes, DeviceOp, DeviceStep};
use crate::cuda::when::When;
use crate::cuda::window_block::WindowBlock;

/// The launches that compute one branch of a block.
struct Fused<'a> {
    launches: Vec<Planned<'a>>,
    /// Steps of the plan that they compute.
    count: usize,
    /// The batches for which they run.
    when: When,
}

impl Lowering<'_> {
    /// Appends the launches for the first of the steps of `span` to `to`. Returns the number of steps that
    /// they compute.
    pub(super) fn next<'b>(&'b self, span: Span<'b>, to: &mut Vec<Planned<'b>>) -> Result<usize, CudaError> {
        let Some(Fused { launches, count, when }) = self.fused(span)? else {
            return self.unfused(span, &When::ANY, to);
        };
        to.extend(launches);
        // Batches that are too small for the launches run the steps one by one.
        let Some(few) = when.few() else { return Ok(count) };
        let mut rest = span.cut(count);
        while !rest.steps.is_empty() {
            rest = rest.after(self.unfused(rest, &few, to)?);
        }
        Ok(count)
    }

    /// The launches that compute one branch of a block at the beginning of `span`, if there is a kernel for
    /// it.
    fn fused<'b>(&'b self, span: Span<'b>) -> Result<Option<Fused<'b>>, CudaError> {
        if !self.fuse {
            return Ok(None);
        }
        if let Some(block) = self.attention_half(span.steps) {
            let (count, when) = (block.count(), block.when(self.device, &self.plan.own));
            let name = block.name().to_owned();
            let build = move |name, when| block.lower(self.device, name, when);
            let launch = Planned::new(&name, &when, (span, count), build);
            return Ok(Some(Fused { launches: vec![launch], count, when }));
        }
        if let Some(mlp) = self.mlp(span) {
            return Ok(Some(mlp));
        }
        // The MLP of Swin V2 quantizes the residual itself, so the norm before it stores no codes.
        if !matches!((&span.steps[0].op, &span.steps[0].store), (Op::Norm(..), Store::Residual { .. })) {
            return Ok(None);
        }
        let Some(mut mlp) = self.mlp(span.after(1)) else { return Ok(None) };
        let mut launches = Vec::new();
        let Some(count) = self.norm_and_add(span.cut(1), &mlp.when, &mut launches)? else { return Ok(None) };
        launches.append(&mut mlp.launches);
        Ok(Some(Fused { launches, count: count + mlp.count, when: mlp.when }))
    }

    /// Appends the launches for the first of the steps of `span`, but no launch for a whole branch of a
    /// block. Returns the number of steps that they compute.
    fn unfused<'b>(
        &'b self,
        span: Span<'b>,
        when: &When,
        to: &mut Vec<Planned<'b>>,
    ) -> Result<usize, CudaError> {
        if let Some(launch) = self.heads(span, when) {
            to.push(launch);
            return Ok(2);
        }
        if let Some(count) = self.norm_and_add(span, when, to)? {
            return Ok(count);
        }
        to.push(self.step(span, when));
        Ok(1)
    }

    /// The attention branch at the beginning of `steps`, if one kernel computes it. The kernel rounds as an
    /// f16 residual permits.
    fn attention_half<'b>(&self, steps: &'b [Step<'b>]) -> Option<WindowBlock<'b>> {
        let block = WindowBlock::find(steps).filter(|_| self.fuse && self.residual == ResidualType::F16)?;
        block.fits(self.device).then_some(block)
    }

    /// The launch of the MLP that `span` begins with, if it does and there is a kernel for it. It runs for
    /// batches that are large enough.
    fn mlp<'b>(&'b self, span: Span<'b>) -> Option<Fused<'b>> {
        // A fused attention branch quantizes the residual itself.
        let next_codes = self.attention_half(span.steps.get(4..).unwrap_or_default()).is_none();
        let mlp = FusedMlp::find(self.device, span.steps, self.residual, next_codes)?;
        let (name, codes, count) = (mlp.name.clone(), mlp.codes(), mlp.count());
        let (residual, steps) = (span.steps[0].input, &span.steps[..count]);
        let rows = self.plan.tensor(residual).rows;
        let when = When::from_rows(rows, mlp.least_rows(self.device), &self.plan.own);
        let build = move |name, when| {
            let (op, weight_bytes) = mlp.lower(self.device)?;
            Ok(DeviceStep {
                name,
                when,
                op: DeviceOp::Mlp(op),
                input: residual,
                output: residual,
                codes,
                rows,
                macs_per_row: steps.iter().map(|step| step.macs_per_row).sum(),
                weight_bytes,
            })
        };
        let mut launches = vec![Planned::new(&name, &when, (span, count), build)];
        let padded = codes.and_then(|codes| self.padded_codes(codes, span.after(count - 1), &when));
        launches.extend(padded);
        Some(Fused { launches, count, when })
    }

    /// Appends the launch for the norm at the beginning of `span` that adds to the residual, if there is one.
    /// The codes of the residual, which the next linear layer reads, are stored with it. Returns the number
    /// of steps that are computed then.
    fn norm_and_add<'b>(
        &'b self,
        span: Span<'b>,
        when: &When,
        to: &mut Vec<Planned<'b>>,
    ) -> Result<Option<usize>, CudaError> {
        let [step, after @ ..] = span.steps else { return Ok(None) };
        let (Op::Norm(norm, order), Store::Residual { branch, shortcut }) = (&step.op, &step.store) else {
            return Ok(None);
        };
        if branch.is_some() || shortcut.is_some() {
            return Err(add_in_float());
        }
        let fused = self.attention_half(after).is_some();
        let next = after.first().filter(|_| !fused).and_then(|next| stored_codes(next, step.output));
        let codes = next.map(|(codes, _)| codes);
        let build = move |name, when| {
            let (gamma, beta) = (norm.gamma.read(), norm.beta.read());
            let quantizer = next.map(|(_, quantizer)| quantizer);
            let op = DeviceNorm::residual(self.device, (&gamma, &beta), norm.eps, self.residual, quantizer)?;
            Ok(DeviceStep {
                name,
                when,
                op: DeviceOp::Norm(op, Gather::Rows(*order)),
                input: step.input,
                output: step.output,
                codes,
                rows: self.plan.tensor(step.output).rows,
                macs_per_row: 0,
                weight_bytes: 0,
            })
        };
        let count = 1 + usize::from(codes.is_some());
        to.push(Planned::new(&step.name, when, (span, count), build));
        to.extend(codes.and_then(|codes| self.padded_codes(codes, span.after(1), when)));
        Ok(Some(count))
    }

    /// The launch of the first step of `span` for images whose windows have padding: a launch that adds to
    /// the residual stores no codes then.
    fn padded_codes<'b>(&'b self, codes: Codes, span: Span<'b>, when: &When) -> Option<Planned<'b>> {
        match codes.order {
            Order::Tokens(_) => None,
            Order::Windows { stage, .. } => Some(self.step(span, &when.with_padding(stage))),
        }
    }

    /// The launch of the QKV layer at the beginning of `span` and of the normalisation after it, if there are
    /// these two steps and one launch computes them: if the results are codes.
    fn heads<'b>(&'b self, span: Span<'b>, when: &When) -> Option<Planned<'b>> {
        let [first, second, ..] = span.steps else { return None };
        let (Op::Linear(linear), Op::QkNorm(heads)) = (&first.op, &second.op) else { return None };
        let (Store::F32, Store::Codes(sites)) = (&first.store, &second.store) else { return None };
        if !self.fuse || second.input != first.output || heads.head_dim > HEAD_DIM || heads.heads > MOST_HEADS
        {
            return None;
        }
        let build = move |name, when| {
            let mut hi_lo = heads.hi_lo.clone();
            hi_lo.resize(heads.heads, false);
            let store = LinearStore::Heads { sites: [sites[0], sites[1], sites[2]], hi_lo };
            let (op, weight_bytes) = self.stored_linear((first, linear), store, None)?;
            Ok(DeviceStep {
                name,
                when,
                op,
                input: first.input,
                output: second.output,
                codes: None,
                rows: self.plan.tensor(first.input).rows,
                macs_per_row: first.macs_per_row,
                weight_bytes,
            })
        };
        Some(Planned::new(&first.name, when, (span, 2), build))
    }
}

/// The codes that `step` computes of `residual`, and their quantizer, if it does nothing else.
pub(in crate::cuda) fn stored_codes(step: &Step<'_>, residual: TensorId) -> Option<(Codes, Quantizer)> {
    let (Op::Quantize(order), Store::Codes(quantizers)) = (&step.op, &step.store) else { return None };
    (step.input == residual).then_some((Codes { tensor: step.output, order: *order }, quantizers[0]))
}
