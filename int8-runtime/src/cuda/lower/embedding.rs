//! The launch that reads the images: the patch embedding, or that of tokens.

use std::borrow::Cow;

use swinq_cuda::CudaError;
use swinq_cuda::ops::patch::{DevicePatchEmbed, InputSite, PatchSpec};
use swinq_cuda::ops::tokens::DeviceTokens;
use swinq_plan::{Linear, Norm, Op, Patches, Step, Store, Values, Weight};

use super::Lowering;
use crate::cuda::step::{DeviceOp, DeviceStep};
use crate::cuda::when::When;

/// The plan's steps of the patch embedding, which one launch computes.
pub(super) struct Embedding<'a> {
    patches: &'a Patches,
    /// How the patches are stored.
    store: &'a Store,
    /// The linear layer, and its step.
    linear: &'a Linear<'a>,
    step: &'a Step<'a>,
    norm: Option<&'a Norm<'a>>,
    position: Option<&'a Values<'a>>,
}

impl<'a> Embedding<'a> {
    /// The patch embedding at the beginning of `steps`, and the number of its steps; `None` for a network of
    /// tokens.
    pub(super) fn find(steps: &'a [Step<'a>]) -> Option<(Embedding<'a>, usize)> {
        let [first, step, rest @ ..] = steps else { return None };
        let (Op::Patches(patches), Op::Linear(linear)) = (&first.op, &step.op) else { return None };
        let store = &first.store;
        let mut embedding = Embedding { patches, store, linear, step, norm: None, position: None };
        let mut count = 2;
        for step in rest {
            match &step.op {
                Op::NormInPlace(norm) => embedding.norm = Some(norm),
                Op::PositionEmbedding(table) => embedding.position = Some(table),
                _ => break,
            }
            count += 1;
        }
        Some((embedding, count))
    }

    /// The site of the input.
    fn input(&self) -> InputSite {
        match self.store {
            Store::Codes(q) => InputSite::Codes(q[0]),
            Store::Fake(q) => InputSite::Fake(*q),
            _ => InputSite::Float,
        }
    }

    /// The value for each byte of each channel.
    fn lookup(&self) -> Vec<[f32; 256]> {
        let tables = self.patches.lookup.iter();
        match self.store {
            Store::Codes(q) => tables.map(|table| table.map(|x| f32::from(q[0].code(x)))).collect(),
            Store::Fake(q) => tables.map(|table| table.map(|x| q.fake(x))).collect(),
            _ => tables.copied().collect(),
        }
    }
}

impl Lowering<'_> {
    pub(super) fn patch_embed(
        &self,
        embedding: &Embedding<'_>,
        name: String,
        when: When,
    ) -> Result<DeviceStep, CudaError> {
        let Embedding { patches, linear, step, norm, position, .. } = embedding;
        // The kernel multiplies codes as floats.
        let (multiplier, weight) = match &linear.weight {
            Weight::Int8 { codes, multiplier, .. } => {
                let codes: Vec<f32> = codes.codes.iter().map(|&c| f32::from(c)).collect();
                (Some(multiplier.as_slice()), Cow::Owned(codes))
            }
            Weight::Float(values) => (None, values.read()),
        };
        let bias = linear.bias.map_or_else(|| vec![0.0; linear.n].into(), |bias| bias.read());
        let params = norm.map(|norm| (norm.gamma.read(), norm.beta.read()));
        let position = position.map(|table| table.read());
        let spec = PatchSpec {
            patch: patches.patch,
            edge: patches.edge,
            lookup: &embedding.lookup(),
            input: embedding.input(),
            weight: &weight,
            bias: &bias,
            multiplier,
            output: linear.output,
            norm: params.as_ref().map(|(gamma, beta)| (&gamma[..], &beta[..])),
            epsilon: norm.map_or(0.0, |norm| norm.eps),
            position: position.as_deref(),
            residual: self.residual,
        };
        self.check_width(linear.n)?;
        Ok(DeviceStep {
            name,
            when,
            op: DeviceOp::PatchEmbed(DevicePatchEmbed::new(self.device, &spec)?),
            input: self.plan.image(),
            output: step.output,
            codes: None,
            rows: self.plan.tensor(step.output).rows,
            macs_per_row: step.macs_per_row,
            weight_bytes: 4 * weight.len() as u64,
        })
    }

    /// The launch of `step`, which reads the tokens of a network that begins with blocks.
    pub(super) fn tokens(&self, step: &Step<'_>, name: String, when: When) -> Result<DeviceStep, CudaError> {
        let Op::Patches(patches) = &step.op else { unreachable!("a plan begins with patches") };
        self.check_width(patches.lookup.len())?;
        Ok(DeviceStep {
            name,
            when,
            op: DeviceOp::Tokens(DeviceTokens::new(self.device, &patches.lookup, self.residual)?),
            input: step.input,
            output: step.output,
            codes: None,
            rows: self.plan.tensor(step.output).rows,
            macs_per_row: 0,
            weight_bytes: 0,
        })
    }

    /// Checks that rows of the residual consist of full groups of the columns that kernels read and write at
    /// once.
    fn check_width(&self, columns: usize) -> Result<(), CudaError> {
        let group = self.residual.columns_at_once();
        if columns.is_multiple_of(group) {
            return Ok(());
        }
        let other = if columns.is_multiple_of(4) { "--residual f32 runs them; " } else { "" };
        Err(CudaError::Unsupported(format!(
            "{columns} channels: the CUDA kernels for this type of the residual need a multiple of {group}; {other}the CPU backend \
             runs any"
        )))
    }
}
