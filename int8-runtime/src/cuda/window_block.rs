//! The attention branch of a transformer block as one launch: LayerNorm, QKV, window attention, projection
//! and residual addition, in the order of Swin V1 or V2.

use swinq_cuda::ops::window_block::{DeviceWindowBlock, WindowBlockConfig, WindowBlockSpec};
use swinq_cuda::{CudaError, Device};
use swinq_numerics::RowStore;
use swinq_plan::{Attention, Geometry, Linear, Norm, Op, Order, Rows, Step, Store};

use super::int8::{int8_linear, is_plain};
use super::step::{DeviceOp, DeviceStep};
use super::when::When;

/// The steps of a plan that the launch computes, all with INT8 products.
pub(super) struct WindowBlock<'a> {
    steps: &'a [Step<'a>],
    /// Whether the norm follows the projection (Swin V2).
    post_norm: bool,
    norm: &'a Norm<'a>,
    stage: usize,
    /// Whether the windows are those of an odd block.
    shifted: bool,
    qkv: &'a Linear<'a>,
    attention: &'a Attention<'a>,
    proj: &'a Linear<'a>,
}

impl<'a> WindowBlock<'a> {
    /// The attention branch at the beginning of `steps`, if there is one and the kernel computes its stores.
    pub(super) fn find(steps: &'a [Step<'a>]) -> Option<WindowBlock<'a>> {
        let block = match &steps.first()?.op {
            Op::Norm(..) => WindowBlock::pre_norm(steps),
            Op::Quantize(_) => WindowBlock::post_norm(steps),
            _ => None,
        }?;
        let added = block.steps.last()?;
        let adds = matches!(added.store, Store::Residual { branch: None, shortcut: None });
        let chain = added.output == steps[0].input
            && block.steps.windows(2).all(|pair| pair[0].output == pair[1].input);
        (adds && chain && is_plain(block.qkv) && is_plain(block.proj)).then_some(block)
    }

    /// LayerNorm, QKV, attention, projection.
    fn pre_norm(steps: &'a [Step<'a>]) -> Option<WindowBlock<'a>> {
        let [norm, qkv, attend, add, ..] = steps else { return None };
        let (&Op::Norm(ref norm_op, Order::Windows { stage, shifted }), Op::Linear(qkv_op)) =
            (&norm.op, &qkv.op)
        else {
            return None;
        };
        let (Op::Attention(attention), Op::Linear(proj)) = (&attend.op, &add.op) else { return None };
        let codes = [norm, qkv, attend].iter().all(|step| matches!(step.store, Store::Codes(_)));
        let steps = &steps[..4];
        codes.then_some(WindowBlock {
            steps,
            post_norm: false,
            norm: norm_op,
            stage,
            shifted,
            qkv: qkv_op,
            attention,
            proj,
        })
    }

    /// Codes of the residual, QKV, normalisation of queries and keys, attention, projection, LayerNorm.
    fn post_norm(steps: &'a [Step<'a>]) -> Option<WindowBlock<'a>> {
        let [codes, qkv, heads, attend, project, add, ..] = steps else { return None };
        let (&Op::Quantize(order @ Order::Windows { stage, shifted }), Op::Linear(qkv_op)) =
            (&codes.op, &qkv.op)
        else {
            return None;
        };
        let (Op::QkNorm(_), Op::Attention(attention)) = (&heads.op, &attend.op) else { return None };
        let (Op::Linear(proj), Op::Norm(norm, back)) = (&project.op, &add.op) else { return None };
        let coded = [codes, heads, attend].iter().all(|step| matches!(step.store, Store::Codes(_)));
        let float = [qkv, project].iter().all(|step| matches!(step.store, Store::F32));
        let steps = &steps[..6];
        (coded && float && order == *back).then_some(WindowBlock {
            steps,
            post_norm: true,
            norm,
            stage,
            shifted,
            qkv: qkv_op,
            attention,
            proj,
        })
    }

    /// Number of steps that the launch computes.
    pub(super) fn count(&self) -> usize {
        self.steps.len()
    }

    /// Whether the kernel computes this attention on `device`.
    pub(super) fn fits(&self, device: &Device) -> bool {
        self.config(device).is_some()
    }

    fn config(&self, device: &Device) -> Option<WindowBlockConfig> {
        // The values of the bias decide nothing.
        DeviceWindowBlock::config(device, self.post_norm, &self.attention.spec(&[], RowStore::F32))
    }

    /// The name of the launch: that of attention.
    pub(super) fn name(&self) -> &'a str {
        let attend = self.steps.iter().find(|step| matches!(step.op, Op::Attention(_)));
        &attend.expect("attention is one of the steps").name
    }

    /// The batches for which the launch, which [fits](Self::fits) `device`, is faster than one for each step.
    /// `own` is the geometry of the network's own size.
    pub(super) fn when(&self, device: &Device, own: &Geometry) -> When {
        let config = self.config(device).expect("the kernel fits");
        let least = config.least_windows(device.multiprocessors()) * self.attention.tokens;
        When::from_rows(Rows::Windows(self.stage), least, own)
    }

    /// Prepares the launch, which [fits](Self::fits) `device`.
    pub(super) fn lower(&self, device: &Device, name: String, when: When) -> Result<DeviceStep, CudaError> {
        let bias = self.attention.bias.expand();
        let (gamma, beta) = (self.norm.gamma.read(), self.norm.beta.read());
        let biases = [self.qkv, self.proj].map(|linear| linear.bias.map(|bias| bias.read()));
        let spec = WindowBlockSpec {
            post_norm: self.post_norm,
            norm: (&gamma, &beta),
            epsilon: self.norm.eps,
            qkv: int8_linear(self.qkv, biases[0].as_deref()),
            attention: self.attention.spec(&bias, RowStore::F32),
            proj: int8_linear(self.proj, biases[1].as_deref()),
        };
        let op = DeviceWindowBlock::new(device, &spec)?;
        let (stage, shifted) = (self.stage, self.shifted);
        let (residual, rows, order) =
            (self.steps[0].input, Rows::Windows(stage), Order::Windows { stage, shifted });
        Ok(DeviceStep {
            name,
            when,
            op: DeviceOp::WindowBlock(op, order),
            input: residual,
            output: residual,
            codes: None,
            rows,
            macs_per_row: self.steps.iter().map(|step| step.macs_per_row).sum(),
            weight_bytes: (spec.qkv.codes.len() + spec.proj.codes.len() + 2 * bias.len()) as u64,
        })
    }
}
