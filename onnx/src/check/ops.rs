//! The types and shapes that each operator takes and gives, as ONNX defines them.

use std::collections::HashMap;
use std::rc::Rc;

use super::{Dim, Value};
use crate::proto::{NodeProto, TensorProto, data_type};

/// A node with the types of its operands.
pub(super) struct Operands<'a> {
    pub node: &'a NodeProto,
    pub inputs: Vec<Value>,
    pub constants: &'a HashMap<&'a str, &'a TensorProto>,
}

pub(super) type Outcome<T> = Result<T, String>;

impl Operands<'_> {
    /// The types of the node's outputs.
    pub fn outputs(&self) -> Outcome<Vec<Value>> {
        if let Some(value) = self.integers()? {
            return Ok(vec![value]);
        }
        let one = match self.node.op_type() {
            "Add" | "Sub" | "Mul" | "Div" | "Max" => self.elementwise()?,
            "Exp" | "Erf" | "Gelu" | "Softmax" => self.float(0)?.clone(),
            "Cast" => Value::of(self.attribute("to")? as i32, self.operand(0)?.shape.clone()),
            "LayerNormalization" => self.layer_norm()?,
            "MatMul" => self.matmul()?,
            "Reshape" => self.reshape()?,
            "Transpose" => self.transpose()?,
            "Gather" => self.gather()?,
            "Pad" => self.pad()?,
            "Slice" => self.slice()?,
            "ReduceMax" | "ReduceSum" | "ReduceMean" | "ReduceL2" => self.reduce()?,
            "QuantizeLinear" => self.quantize()?,
            "DequantizeLinear" => self.dequantize()?,
            "Split" => return self.split(),
            _ => return Err("the operator is not expected".to_owned()),
        };
        Ok(vec![one])
    }

    pub(super) fn operand(&self, index: usize) -> Outcome<&Value> {
        self.inputs.get(index).ok_or_else(|| format!("operand {index} is missing"))
    }

    fn float(&self, index: usize) -> Outcome<&Value> {
        let value = self.operand(index)?;
        let float = [data_type::FLOAT, data_type::FLOAT16].contains(&value.elements);
        float.then_some(value).ok_or_else(|| format!("operand {index} is not float"))
    }

    /// The integers of an operand.
    pub(super) fn list(&self, index: usize) -> Outcome<Rc<[i64]>> {
        let found = self.operand(index)?.integers.clone();
        found.ok_or_else(|| format!("operand {index} is no integers that are known"))
    }

    pub(super) fn attribute(&self, name: &str) -> Outcome<i64> {
        let found = self.node.attribute.iter().find(|a| a.name() == name).and_then(|a| a.i);
        found.ok_or_else(|| format!("the attribute {name} is missing"))
    }

    /// The axis `axis` of a value of `rank` dimensions.
    fn axis(axis: i64, rank: usize) -> Outcome<usize> {
        let at = if axis < 0 { axis + rank as i64 } else { axis };
        let at = usize::try_from(at).ok().filter(|&at| at < rank);
        at.ok_or_else(|| format!("axis {axis} of {rank} dimensions"))
    }

    fn elementwise(&self) -> Outcome<Value> {
        let (a, b) = (self.float(0)?, self.float(1)?);
        if a.elements != b.elements {
            return Err("operands of two types".to_owned());
        }
        Ok(Value::of(a.elements, broadcast(&a.shape, &b.shape)?))
    }

    fn layer_norm(&self) -> Outcome<Value> {
        let x = self.float(0)?;
        let row = &x.shape[x.shape.len() - 1..];
        let fits = |value: &Value| value.elements == x.elements && value.shape == row;
        match fits(self.operand(1)?) && fits(self.operand(2)?) && self.attribute("axis")? == -1 {
            true => Ok(x.clone()),
            false => Err("scale and bias do not fit the rows".to_owned()),
        }
    }

    fn matmul(&self) -> Outcome<Value> {
        let (a, b) = (self.float(0)?, self.float(1)?);
        let (Some((a_rest, [m, k])), Some((b_rest, [rows, n]))) =
            (a.shape.split_last_chunk(), b.shape.split_last_chunk())
        else {
            return Err("operands are no matrices".to_owned());
        };
        if k != rows || k.is_none() || a.elements != b.elements {
            return Err(format!("the product of {:?} and {:?}", a.shape, b.shape));
        }
        let mut shape = broadcast(a_rest, b_rest)?;
        shape.extend([m, n]);
        Ok(Value::of(a.elements, shape))
    }

    fn reshape(&self) -> Outcome<Value> {
        let (x, sizes) = (self.operand(0)?, self.list(1)?);
        let mut shape = Vec::new();
        for (at, &size) in sizes.iter().enumerate() {
            shape.push(match size {
                0 => *x.shape.get(at).ok_or("0 stands for a size that is not there")?,
                -1 => Some(1),
                _ => Some(usize::try_from(size).map_err(|_| "negative size".to_owned())?),
            });
        }
        let count = |shape: &[Dim]| -> (usize, usize) {
            let free = shape.iter().filter(|size| size.is_none()).count();
            (free, shape.iter().flatten().product())
        };
        if let Some(rest) = sizes.iter().position(|&size| size == -1) {
            shape[rest] = Some(count(&x.shape).1 / count(&shape).1.max(1));
        }
        match count(&x.shape) == count(&shape) {
            true => Ok(Value { elements: x.elements, shape, integers: x.integers.clone() }),
            false => Err(format!("{:?} has not as many elements as {shape:?}", x.shape)),
        }
    }

    fn transpose(&self) -> Outcome<Value> {
        let x = self.operand(0)?;
        let order = self.node.attribute.iter().find(|a| a.name() == "perm");
        let order = &order.ok_or("the attribute perm is missing")?.ints;
        let mut sorted = order.clone();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..x.shape.len() as i64) {
            return Err(format!("{order:?} is no order of {} dimensions", x.shape.len()));
        }
        let shape = order.iter().map(|&axis| x.shape[axis as usize]).collect();
        Ok(Value::of(x.elements, shape))
    }

    fn gather(&self) -> Outcome<Value> {
        let (x, index) = (self.operand(0)?, self.list(1)?);
        let axis = Self::axis(self.attribute("axis")?, x.shape.len())?;
        let size = x.shape[axis].ok_or("rows of the batch cannot be gathered")?;
        if index.iter().any(|&row| usize::try_from(row).is_ok_and(|row| row >= size) || row < 0) {
            return Err(format!("an index is not in 0..{size}"));
        }
        let (before, after) = (&x.shape[..axis], &x.shape[axis + 1..]);
        Ok(Value::of(x.elements, [before, &self.operand(1)?.shape, after].concat()))
    }

    fn slice(&self) -> Outcome<Value> {
        let x = self.operand(0)?;
        let (starts, ends, axes) = (self.list(1)?, self.list(2)?, self.list(3)?);
        let mut shape = x.shape.clone();
        for ((&start, &end), &axis) in starts.iter().zip(&ends[..]).zip(&axes[..]) {
            let axis = Self::axis(axis, x.shape.len())?;
            let inside = x.shape[axis].is_some_and(|size| start >= 0 && start <= end && end as usize <= size);
            shape[axis] = inside.then_some((end - start) as usize);
            if !inside {
                return Err(format!("{start}..{end} of {:?}", x.shape[axis]));
            }
        }
        Ok(Value::of(x.elements, shape))
    }

    fn pad(&self) -> Outcome<Value> {
        let (x, pads) = (self.operand(0)?, self.list(1)?);
        if pads.len() != 2 * x.shape.len() {
            return Err("pads do not fit the dimensions".to_owned());
        }
        let (before, after) = pads.split_at(x.shape.len());
        let sizes = x.shape.iter().zip(before.iter().zip(after));
        let shape = sizes.map(|(size, (b, a))| match size {
            None if b + a == 0 => Ok(None),
            Some(size) if *b >= 0 && *a >= 0 => Ok(Some(size + (b + a) as usize)),
            _ => Err("pads of the batch, or negative pads".to_owned()),
        });
        Ok(Value::of(x.elements, shape.collect::<Outcome<_>>()?))
    }

    fn reduce(&self) -> Outcome<Value> {
        let x = self.float(0)?;
        if self.attribute("keepdims")? != 1 {
            return Err("reduced dimensions are expected to stay".to_owned());
        }
        let mut shape = x.shape.clone();
        for &axis in &self.list(1)?[..] {
            shape[Self::axis(axis, x.shape.len())?] = Some(1);
        }
        Ok(Value::of(x.elements, shape))
    }

    fn quantize(&self) -> Outcome<Value> {
        let (x, zero) = (self.float(0)?, self.operand(2)?);
        self.check_scale(x)?;
        match self.operand(1)?.elements == x.elements {
            true => Ok(Value::of(zero.elements, x.shape.clone())),
            false => Err("the scale has another type than the value".to_owned()),
        }
    }

    fn dequantize(&self) -> Outcome<Value> {
        let x = self.operand(0)?;
        self.check_scale(x)?;
        match x.elements == self.operand(2)?.elements {
            true => Ok(Value::of(self.float(1)?.elements, x.shape.clone())),
            false => Err("the zero point has another type than the codes".to_owned()),
        }
    }

    /// Checks that scale and zero point are constants: one, or one for each size of the axis.
    fn check_scale(&self, x: &Value) -> Outcome<()> {
        let (scale, zero) = (self.operand(1)?, self.operand(2)?);
        let constant = |at: usize| self.constants.contains_key(&self.node.input[at][..]);
        let codes = [data_type::INT8, data_type::UINT8].contains(&zero.elements);
        let shape = match scale.shape.is_empty() {
            true => vec![],
            false => vec![x.shape[Self::axis(self.attribute("axis")?, x.shape.len())?]],
        };
        match codes && constant(1) && constant(2) && scale.shape == shape && zero.shape == shape {
            true => Ok(()),
            false => Err("scale and zero point do not fit".to_owned()),
        }
    }

    fn split(&self) -> Outcome<Vec<Value>> {
        let (x, sizes) = (self.operand(0)?, self.list(1)?);
        let axis = Self::axis(self.attribute("axis")?, x.shape.len())?;
        if x.shape[axis] != usize::try_from(sizes.iter().sum::<i64>()).ok() {
            return Err(format!("{sizes:?} of {:?}", x.shape[axis]));
        }
        let part = |&size: &i64| {
            let mut shape = x.shape.clone();
            shape[axis] = Some(size as usize);
            Value::of(x.elements, shape)
        };
        Ok(sizes.iter().map(part).collect())
    }
}

/// The shape of two operands of an elementwise operator.
pub(super) fn broadcast(a: &[Dim], b: &[Dim]) -> Outcome<Vec<Dim>> {
    let rank = a.len().max(b.len());
    let size = |shape: &[Dim], at: usize| match (at + shape.len()).checked_sub(rank) {
        Some(at) => shape[at],
        None => Some(1),
    };
    let common = |at| match (size(a, at), size(b, at)) {
        (a, b) if a == b => Ok(a),
        (Some(1), other) | (other, Some(1)) => Ok(other),
        _ => Err(format!("{a:?} and {b:?} do not fit")),
    };
    (0..rank).map(common).collect()
}
