//! The attention half of a transformer block as one launch: LayerNorm, QKV, window attention, projection and
//! residual addition.

use std::sync::Arc;

use swinq_kernels::cuda::ops::DeviceMap;
use swinq_kernels::cuda::ops::window_block::{DeviceWindowBlock, WindowBlockSpec};
use swinq_kernels::cuda::{CudaError, Device};
use swinq_kernels::{RowMap, RowStore};
use swinq_plan::{Attention, Linear, Norm, Op, Order, Step, Store};

use super::int8::{int8_linear, is_plain};
use super::step::{DeviceOp, DeviceStep};

/// The four steps of a plan that the launch computes, all with INT8 products.
pub(super) struct WindowBlock<'a> {
    steps: [&'a Step<'a>; 4],
    norm: &'a Norm<'a>,
    map: &'a Arc<RowMap>,
    qkv: &'a Linear<'a>,
    attention: &'a Attention<'a>,
    proj: &'a Linear<'a>,
}

impl<'a> WindowBlock<'a> {
    /// The attention half at the beginning of `steps`, if there is one and the kernel computes its stores.
    pub(super) fn find(steps: &'a [Step<'a>]) -> Option<WindowBlock<'a>> {
        let [first, second, third, fourth, ..] = steps else { return None };
        let (Op::Norm(norm, Order::Windows { map, .. }), Op::Linear(qkv)) = (&first.op, &second.op) else {
            return None;
        };
        let (Op::Attention(attention), Op::Linear(proj)) = (&third.op, &fourth.op) else { return None };
        let codes = [first, second, third].iter().all(|step| matches!(step.store, Store::Codes(_)));
        let adds = matches!(fourth.store, Store::Residual { branch: None, shortcut: None });
        let plain = [qkv, proj].iter().all(|linear| is_plain(linear));
        let steps = [first, second, third, fourth];
        (codes && adds && plain).then_some(WindowBlock { steps, norm, map, qkv, attention, proj })
    }

    /// The order of the rows.
    pub(super) fn map(&self) -> &'a Arc<RowMap> {
        self.map
    }

    /// Prepares the launch for tokens in the order of `map`; `None` if the kernel does not compute this
    /// attention on `device`. `rows` is the number of tokens of an image.
    pub(super) fn lower(
        &self,
        device: &Device,
        map: DeviceMap,
        rows: usize,
    ) -> Result<Option<DeviceStep>, CudaError> {
        let bias = self.attention.bias.expand();
        let attention = self.attention.spec(&bias, RowStore::F32);
        if DeviceWindowBlock::config(device, &attention).is_none() {
            return Ok(None);
        }
        let (gamma, beta) = (self.norm.gamma.read(), self.norm.beta.read());
        let biases = [self.qkv, self.proj].map(|linear| linear.bias.map(|bias| bias.read()));
        let spec = WindowBlockSpec {
            norm: (&gamma, &beta),
            epsilon: self.norm.eps,
            qkv: int8_linear(self.qkv, biases[0].as_deref()),
            attention,
            proj: int8_linear(self.proj, biases[1].as_deref()),
        };
        let op = DeviceWindowBlock::new(device, &spec, map)?;
        let [norm, _, attend, add] = self.steps;
        Ok(Some(DeviceStep {
            name: attend.name.clone(),
            images: op.least_windows().div_ceil(self.attention.windows)..usize::MAX,
            op: DeviceOp::WindowBlock(op),
            input: norm.input,
            output: add.output,
            codes: None,
            rows,
            macs: self.steps.iter().map(|step| step.macs).sum(),
            weight_bytes: (spec.qkv.codes.len() + spec.proj.codes.len() + 2 * bias.len()) as u64,
        }))
    }
}
