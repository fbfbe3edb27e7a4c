//! The relative position bias of Swin V2 in training, and the bias of its queries and values.

use candle_core::{Result, Tensor};

use crate::ops::Ops;
use crate::ops::candle::{bounded, hidden_positions};
use crate::weights::PositionMlp;

/// The table of relative position biases, `[rows, heads]`, for the relative positions `[rows, 2]`:
/// `16 sigmoid(MLP)`. The table is small, so every implementation uses candle's operations, in f32.
pub(crate) fn position_table(ops: &Ops, coordinates: &Tensor, mlp: &PositionMlp) -> Result<Tensor> {
    let hidden = hidden_positions(coordinates, mlp)?;
    let table = bounded(&hidden.matmul(&mlp.output.t()?.contiguous()?)?)?;
    let (coordinates, result) = (coordinates.clone(), table.clone());
    let [weight, bias, output] = [&mlp.weight, &mlp.bias, &mlp.output].map(Tensor::clone);
    ops.record(&[&mlp.weight, &mlp.bias, &mlp.output], &table, move |grad, sink| {
        // 16 sigmoid(z) has the derivative t (1 - t / 16), where t is its value.
        let slope = (&result * ((&result * (-1.0 / 16.0))? + 1.0)?)?;
        let dz = (grad.tensor() * slope)?;
        sink.add(&output, dz.t()?.contiguous()?.matmul(&hidden)?)?;
        let active = hidden.gt(0f32)?.to_dtype(hidden.dtype())?;
        let dhidden = (dz.matmul(&output)? * active)?;
        sink.add(&bias, dhidden.sum(0)?)?;
        sink.add(&weight, dhidden.t()?.contiguous()?.matmul(&coordinates)?)
    });
    Ok(table)
}

/// `bias` `[3 * c]` of queries, keys and values, whose part of the keys is not trained: a Swin V2 has none.
pub(crate) fn without_key_gradient(ops: &Ops, bias: &Tensor) -> Result<Tensor> {
    let out = bias.copy()?;
    let bias = bias.clone();
    ops.record(&[&bias.clone()], &out, move |grad, sink| {
        let c = bias.elem_count() / 3;
        let part = |which: usize| grad.tensor().narrow(0, which * c, c);
        sink.add(&bias, Tensor::cat(&[part(0)?, part(1)?.zeros_like()?, part(2)?], 0)?)
    });
    Ok(out)
}
