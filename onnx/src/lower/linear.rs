//! Linear layers, and codes with a scale and a zero point for each channel.

use swinq_numerics::ColumnQuantizers;
use swinq_plan::{Linear, Values, Weight};

use super::Lowering;
use crate::error::OnnxError;
use crate::graph::Attribute;
use crate::options::Target;

impl Lowering<'_> {
    /// The product of `x` with the weight of `op`, its bias and GELU. The result is named after the layer.
    pub(super) fn linear(&mut self, op: &Linear<'_>, x: &str) -> Result<String, OnnxError> {
        let layer = op.layer.to_string();
        let weight = self.weight(op);
        let mut y = self.graph.node("MatMul", &format!("{layer}.product"), &[x, &weight], &[]);
        let correction = zero_point_sums(op);
        let mut bias = op.bias.map_or_else(|| vec![0.0; op.n], |bias| bias.read().into_owned());
        if let Some(output) = op.output {
            if let Some(sums) = &correction {
                y = self.add_row(&format!("{layer}.zero_points"), &y, sums);
            }
            y = self.quantize(&format!("{layer}.output"), &y, output.scale(), output.scale());
        } else if let Some(sums) = &correction {
            bias.iter_mut().zip(sums).for_each(|(bias, sum)| *bias += sum);
        }
        // The product of a reduction is the residual, which several nodes read. ONNX Runtime gives up the
        // INT8 product if one of them is QuantizeLinear, unless another node comes first.
        let is_residual = op.is_int8() && matches!(op.layer, swinq_model::Linear::Reduction(_));
        if is_residual || bias.iter().any(|bias| *bias != 0.0) {
            y = self.add_row(&layer, &y, &bias);
        }
        Ok(if op.gelu.is_some() { self.gelu(&layer, y) } else { y })
    }

    /// `y` plus a row. The constant is `[1, 1, columns]`: ONNX Runtime makes a float Gemm of a MatMul and an
    /// Add of `[columns]`, and would lose the INT8 product.
    fn add_row(&mut self, name: &str, y: &str, row: &[f32]) -> String {
        let row = self.graph.floats(&format!("{name}.bias"), &[1, 1, row.len()], row);
        self.graph.node("Add", name, &[y, &row], &[])
    }

    /// The weight as `[k, n]`.
    fn weight(&mut self, op: &Linear<'_>) -> String {
        let name = op.layer.weight_name();
        let codes = match &op.weight {
            Weight::Int8 { codes, .. } => *codes,
            Weight::Float(Values::Codes(codes)) => codes,
            Weight::Float(Values::Float(values)) => {
                let transposed = (0..op.k * op.n).map(|at| values[(at % op.n) * op.k + at / op.n]);
                return self.graph.floats(&name, &[op.k, op.n], &transposed.collect::<Vec<_>>());
            }
        };
        let constant = self.graph.codes(&format!("{name}.codes"), &[op.n, op.k], &codes.codes);
        let per_channel = codes.scales.len() > 1;
        let shape = if per_channel { &[op.n][..] } else { &[] };
        let scale = self.graph.scales(&format!("{name}.scale"), shape, &codes.scales);
        // ONNX Runtime makes codes of weights unsigned where INT8 sums would saturate. It changes the zero
        // point with them, and fails where two weights share one.
        let zero = self.graph.codes(&format!("{name}.zero"), shape, &vec![0; codes.scales.len()]);
        let axis: &[Attribute<'_>] = if per_channel { &[Attribute::Int("axis", 0)] } else { &[] };
        let weight = self.graph.node("DequantizeLinear", &name, &[&constant, &scale, &zero], axis);
        self.transpose(&format!("{name}.transposed"), &weight, &[1, 0])
    }

    /// GELU of the result of `layer`.
    fn gelu(&mut self, layer: &str, x: String) -> String {
        if self.options.opset >= 20 {
            return self.graph.node("Gelu", &format!("{layer}.gelu"), &[&x], &[]);
        }
        let name = |part: &str| format!("{layer}.gelu.{part}");
        let half = self.graph.floats("gelu.half", &[], &[0.5]);
        let one = self.graph.floats("gelu.one", &[], &[1.0]);
        let root = self.graph.floats("gelu.sqrt2", &[], &[std::f32::consts::SQRT_2]);
        let t = self.graph.node("Div", &name("div"), &[&x, &root], &[]);
        let t = self.graph.node("Erf", &name("erf"), &[&t], &[]);
        let t = self.graph.node("Add", &name("add"), &[&t, &one], &[]);
        let t = self.graph.node("Mul", &name("mul"), &[&x, &t], &[]);
        self.graph.node("Mul", &format!("{layer}.gelu"), &[&t, &half], &[])
    }

    /// Codes with a scale and a zero point for each channel, for a product that runs in INT8.
    ///
    /// The weight includes the factors `f` of the scales, so the product has one scale `s`. Runtimes have
    /// INT8 products for codes with one scale only, so the graph divides by the factors and adds the zero
    /// points first:
    ///
    /// ```text
    /// code = round(x / (s f) + z) = round((x / f + z s) / s)
    /// ```
    /// The linear layer subtracts the zero points' part of the sums ([`zero_point_sums`]). The values of the
    /// codes are f16 if `half`.
    pub(super) fn channel_codes(
        &mut self,
        site: &str,
        x: &str,
        columns: &ColumnQuantizers,
        half: bool,
    ) -> Result<String, OnnxError> {
        self.refuse_channels(site)?;
        let scale = self.common_scale(site);
        let factors: Vec<f32> = columns.recips().iter().map(|recip| scale * recip).collect();
        let zeros: Vec<f32> = columns.zero_points().iter().map(|zero| scale * zero).collect();
        let factors = self.graph.floats(&format!("{site}.factors"), &[factors.len()], &factors);
        let x = self.graph.node("Mul", &format!("{site}.divided"), &[x, &factors], &[]);
        let zeros = self.graph.floats(&format!("{site}.zero_points"), &[zeros.len()], &zeros);
        let x = self.graph.node("Add", &format!("{site}.shifted"), &[&x, &zeros], &[]);
        Ok(self.quantize_for(site, &x, scale, half))
    }

    /// The scale of the INT8 product whose input is `site`.
    fn common_scale(&self, site: &str) -> f32 {
        let scale = self.plan.steps.iter().find_map(|step| match &step.op {
            swinq_plan::Op::Linear(Linear { layer, weight: Weight::Int8 { input, .. }, .. }) => {
                (format!("{layer}.input") == site).then_some(input.scale())
            }
            _ => None,
        });
        scale.expect("codes with scales of channels are the input of an INT8 product")
    }

    /// The values of codes with a scale and a zero point for each channel, for a product that runs in float,
    /// in f16 if `half`.
    pub(super) fn channel_fake(
        &mut self,
        site: &str,
        x: &str,
        columns: &ColumnQuantizers,
        half: bool,
    ) -> Result<String, OnnxError> {
        self.refuse_channels(site)?;
        let count = columns.len();
        let zeros: Vec<i8> = columns.zero_points().iter().map(|&zero| zero as i8).collect();
        let zeros = self.graph.codes(&format!("{site}.zero_points"), &[count], &zeros);
        let scale = self.graph.scales(&format!("{site}.scale"), &[count], columns.scales());
        let axis = [Attribute::Int("axis", 2)];
        let codes = self.graph.node("QuantizeLinear", &format!("{site}.codes"), &[x, &scale, &zeros], &axis);
        let values = self.graph.node("DequantizeLinear", site, &[&codes, &scale, &zeros], &axis);
        Ok(self.cast(values, half))
    }

    fn refuse_channels(&self, site: &str) -> Result<(), OnnxError> {
        if self.options.target != Target::TensorRt {
            return Ok(());
        }
        let problem = "it has zero points, and TensorRT quantizes symmetrically; calibrate with `--ptq basic`, which \
                       gives the site one scale without a zero point";
        Err(OnnxError::Site { site: site.to_owned(), target: "tensorrt", problem: problem.to_owned() })
    }
}

/// The term of the input's zero points in each column of the product, negated; `None` if there are none.
fn zero_point_sums(op: &Linear<'_>) -> Option<Vec<f32>> {
    let Weight::Int8 { codes, multiplier, zero_points, .. } = &op.weight else { return None };
    if zero_points.is_empty() {
        return None;
    }
    let sum = |row: &[i8]| -> i64 {
        row.iter().zip(*zero_points).map(|(&w, &z)| i64::from(w) * i64::from(z)).sum()
    };
    let rows = codes.codes.chunks_exact(op.k).zip(multiplier);
    Some(rows.map(|(row, &m)| (-(sum(row) as f64) * f64::from(m)) as f32).collect())
}
