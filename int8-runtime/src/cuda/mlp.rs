//! Lowers the MLP half of a block (LayerNorm, fc1, fc2) to one launch where there is a kernel for it.

use swinq_kernels::cuda::ops::StreamType;
use swinq_kernels::cuda::ops::mlp::{DeviceMlp, MlpSpec};
use swinq_kernels::cuda::{CudaError, Device};
use swinq_plan::{Linear, Norm, Op, Order, Step, Store};

use super::int8::{int8_linear, is_plain};

/// The plan's steps of the MLP half of a block, in INT8 without `.output` and residual sites.
struct Mlp<'a> {
    norm: &'a Norm<'a>,
    fc1: &'a Linear<'a>,
    fc2: &'a Linear<'a>,
}

impl<'a> Mlp<'a> {
    /// The MLP that `steps` begins with, if it does.
    fn of(steps: &'a [Step<'a>]) -> Option<Mlp<'a>> {
        let [first, second, third, ..] = steps else { return None };
        let (Op::Norm(norm, Order::Tokens), Op::Linear(fc1), Op::Linear(fc2)) =
            (&first.op, &second.op, &third.op)
        else {
            return None;
        };
        let codes = [first, second].iter().all(|step| matches!(step.store, Store::Codes(_)));
        let adds = matches!(third.store, Store::Residual { branch: None, shortcut: None });
        let chain =
            second.input == first.output && third.input == second.output && third.output == first.input;
        let tokens = matches!((&fc1.order, &fc2.order), (Order::Tokens, Order::Tokens));
        let plain = is_plain(fc1) && is_plain(fc2) && fc1.gelu && !fc2.gelu;
        (codes && adds && chain && tokens && plain).then_some(Mlp { norm, fc1, fc2 })
    }
}

/// The launch of the MLP that `steps` begins with: its name, its op and the bytes of its weights. `None` if
/// `steps` does not begin with an MLP, or there is no kernel for it.
pub(super) fn lower_mlp(
    device: &Device,
    steps: &[Step<'_>],
    stream: StreamType,
) -> Result<Option<(String, DeviceMlp, u64)>, CudaError> {
    let Some(mlp) = Mlp::of(steps) else { return Ok(None) };
    let (gamma, beta) = (mlp.norm.gamma.read(), mlp.norm.beta.read());
    let biases = [mlp.fc1, mlp.fc2].map(|linear| linear.bias.map(|bias| bias.read()));
    let spec = MlpSpec {
        norm: (&gamma, &beta),
        epsilon: mlp.norm.eps,
        fc1: int8_linear(mlp.fc1, biases[0].as_deref()),
        fc2: int8_linear(mlp.fc2, biases[1].as_deref()),
        stream,
    };
    let Some(config) = DeviceMlp::config(device, &spec) else { return Ok(None) };
    let name = steps[1].name.trim_end_matches(".fc1").to_owned();
    let bytes = (spec.fc1.codes.len() + spec.fc2.codes.len()) as u64;
    Ok(Some((name, DeviceMlp::new(device, config, &spec)?, bytes)))
}
