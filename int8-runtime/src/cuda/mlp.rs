//! Lowers the MLP branch of a block (LayerNorm, fc1, fc2; for Swin V2 the codes of the residual, fc1, fc2,
//! LayerNorm) to one launch where there is a kernel for it.

use swinq_cuda::ops::ResidualType;
use swinq_cuda::ops::mlp::{DeviceMlp, MlpConfig, MlpNorm, MlpSpec};
use swinq_cuda::{CudaError, Device};
use swinq_numerics::{ColumnQuantizers, Gelu};
use swinq_plan::{Linear, Norm, Op, Order, Step, Store, TensorId};

use super::int8::{int8_linear, is_int8, is_plain};
use super::lower::stored_codes;
use super::step::Codes;

/// The plan's steps of the MLP branch of a block, in INT8 without `.output` and residual sites. The hidden
/// columns alone may have zero points.
struct Mlp<'a> {
    norm: &'a Norm<'a>,
    of: MlpNorm,
    fc1: &'a Linear<'a>,
    fc2: &'a Linear<'a>,
    gelu: Gelu,
    /// The quantizers of the results of fc1, if each column has its own.
    channels: Option<&'a ColumnQuantizers>,
    /// The codes of the new residual.
    codes: Option<Codes>,
    /// Steps of the plan that the launch computes.
    count: usize,
}

impl<'a> Mlp<'a> {
    /// The MLP that `steps` begins with, if it does. With `next_codes` it stores the codes of the new
    /// residual that the step after it computes.
    fn of(steps: &'a [Step<'a>], next_codes: bool) -> Option<Mlp<'a>> {
        let [first, second, third, after @ ..] = steps else { return None };
        let (Op::Linear(fc1), Op::Linear(fc2)) = (&second.op, &third.op) else { return None };
        let (Store::Codes(_), Some(channels)) = (&first.store, hidden_codes(&second.store)) else {
            return None;
        };
        let chain = second.input == first.output && third.input == second.output;
        let tokens = matches!((fc1.order, fc2.order), (Order::Tokens(_), Order::Tokens(_)));
        let (Some(gelu), None) = (fc1.gelu, fc2.gelu) else { return None };
        let plain = is_plain(fc1) && (if channels.is_some() { is_int8(fc2) } else { is_plain(fc2) });
        if !(chain && tokens && plain) {
            return None;
        }
        match &first.op {
            Op::Norm(norm, Order::Tokens(_)) if adds(third, first.input) => {
                Some(Mlp { norm, of: MlpNorm::Residual, fc1, fc2, gelu, channels, codes: None, count: 3 })
            }
            Op::Quantize(Order::Tokens(_)) if matches!(third.store, Store::F32) => {
                let [fourth, after @ ..] = after else { return None };
                let Op::Norm(norm, Order::Tokens(_)) = &fourth.op else { return None };
                let next =
                    after.first().filter(|_| next_codes).and_then(|next| stored_codes(next, fourth.output));
                let of = MlpNorm::Branch { codes: next.map(|(_, quantizer)| quantizer) };
                let (codes, count) = (next.map(|(codes, _)| codes), 4 + usize::from(next.is_some()));
                let whole = fourth.input == third.output && adds(fourth, first.input);
                whole.then_some(Mlp { norm, of, fc1, fc2, gelu, channels, codes, count })
            }
            _ => None,
        }
    }

    /// Calls `f` with the MLP in the words of the op.
    fn with_spec<T>(&self, residual: ResidualType, f: impl FnOnce(&MlpSpec<'_>) -> T) -> T {
        let (gamma, beta) = (self.norm.gamma.read(), self.norm.beta.read());
        let biases = [self.fc1, self.fc2].map(|linear| linear.bias.map(|bias| bias.read()));
        f(&MlpSpec {
            norm: (&gamma, &beta),
            of: self.of,
            epsilon: self.norm.eps,
            fc1: int8_linear(self.fc1, biases[0].as_deref()),
            gelu: self.gelu,
            fc2: int8_linear(self.fc2, biases[1].as_deref()),
            channels: self.channels,
            residual,
        })
    }
}

/// The quantizers of the columns of codes; `Some(None)` if all columns have the same, `None` if no codes are
/// stored.
fn hidden_codes(store: &Store) -> Option<Option<&ColumnQuantizers>> {
    match store {
        Store::Codes(_) => Some(None),
        Store::ChannelCodes(columns) => Some(Some(columns)),
        _ => None,
    }
}

/// Whether `step` adds its results to `residual`, without residual sites.
fn adds(step: &Step<'_>, residual: TensorId) -> bool {
    step.output == residual && matches!(step.store, Store::Residual { branch: None, shortcut: None })
}

/// An MLP that one launch computes.
pub(super) struct FusedMlp<'a> {
    /// The name of the launch.
    pub(super) name: String,
    mlp: Mlp<'a>,
    residual: ResidualType,
    config: MlpConfig,
}

impl<'a> FusedMlp<'a> {
    /// The MLP that `steps` begins with. `None` if `steps` does not begin with an MLP, or there is no kernel
    /// for it. With `next_codes` it also computes the step after the MLP, if that step computes codes of the
    /// new residual.
    pub(super) fn find(
        device: &Device,
        steps: &'a [Step<'a>],
        residual: ResidualType,
        next_codes: bool,
    ) -> Option<FusedMlp<'a>> {
        let mlp = Mlp::of(steps, next_codes)?;
        let config = mlp.with_spec(residual, |spec| DeviceMlp::config(device, spec))?;
        Some(FusedMlp { name: steps[1].name.trim_end_matches(".fc1").to_owned(), mlp, residual, config })
    }

    /// Steps of the plan that the launch computes.
    pub(super) fn count(&self) -> usize {
        self.mlp.count
    }

    /// The codes of the new residual.
    pub(super) fn codes(&self) -> Option<Codes> {
        self.mlp.codes
    }

    /// The least number of rows for which the launch is faster than one for each step.
    pub(super) fn least_rows(&self, device: &Device) -> usize {
        self.config.least_rows(device.multiprocessors())
    }

    /// The op, with its weights on the device, and their bytes.
    pub(super) fn lower(self, device: &Device) -> Result<(DeviceMlp, u64), CudaError> {
        let config = self.config;
        self.mlp.with_spec(self.residual, |spec| {
            let bytes = (spec.fc1.codes.len() + spec.fc2.codes.len()) as u64;
            Ok((DeviceMlp::new(device, config, spec)?, bytes))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use swinq_calib::quantize;
    use swinq_model::site::all_sites;
    use swinq_model::{Ptq, Recipe, Size, SwinConfig, SwinVersion, WindowPolicy};
    use swinq_plan::Plan;
    use swinq_testing::model::{random, small};

    use super::*;

    /// The MLPs of a Swin V2 for images of `size`: their first step, their steps, and their codes.
    fn mlps(size: Size) -> Vec<(usize, usize, Option<Codes>)> {
        let config = SwinConfig {
            version: SwinVersion::V2,
            image_size: size,
            window_policy: WindowPolicy::Detection,
            ..small()
        };
        let float = random(config, 5);
        let ranges: BTreeMap<_, _> = all_sites(&float.config).into_iter().map(|site| (site, 3.0)).collect();
        let recipe = Recipe::shipped("default").unwrap().with_ptq(Ptq::Basic);
        let model = quantize(&float, &recipe, &ranges).unwrap();
        let plan = Plan::new(&model).unwrap();
        let at = |first| Mlp::of(&plan.steps[first..], true).map(|mlp| (first, mlp.count, mlp.codes));
        (0..plan.steps.len()).filter_map(at).collect()
    }

    #[test]
    fn an_mlp_has_the_codes_that_the_next_block_reads_with_and_without_padding() {
        let whole = mlps(Size::square(32));
        assert_eq!(mlps(Size::new(28, 44)), whole, "7 x 11 tokens in windows of 4 x 4");
        let codes = whole.iter().map(|(_, count, codes)| (*count, codes.map(|codes| codes.order)));
        let order = |stage| Some(Order::Windows { stage, shifted: true });
        assert_eq!(codes.collect::<Vec<_>>(), [(5, order(0)), (4, None), (5, order(1)), (4, None)]);
    }
}
