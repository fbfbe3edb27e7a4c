//! The operators on integers, computed.

use std::rc::Rc;

use super::ops::{Operands, Outcome, broadcast};
use super::{Dim, Value};
use crate::proto::data_type;

impl Value {
    /// Integers of this shape.
    fn integers(shape: Vec<Dim>, integers: Rc<[i64]>) -> Value {
        Value { elements: data_type::INT64, shape, integers: Some(integers) }
    }
}

impl Operands<'_> {
    /// The result of an operator on integers; `None` for an operator on other values.
    pub(super) fn integers(&self) -> Outcome<Option<Value>> {
        let op = self.node.op_type();
        if op == "Shape" {
            return self.shape().map(Some);
        }
        if self.inputs.is_empty() || self.inputs.iter().any(|input| input.integers.is_none()) {
            return Ok(None);
        }
        Ok(Some(match op {
            "Add" => self.of_two(|a, b| a + b)?,
            "Sub" => self.of_two(|a, b| a - b)?,
            "Mul" => self.of_two(|a, b| a * b)?,
            "Max" => self.of_two(i64::max)?,
            "Min" => self.of_two(i64::min)?,
            "Div" => self.divided(|a, b| a / b)?,
            "Mod" => self.divided(|a, b| a % b)?,
            "Less" => Value { elements: data_type::BOOL, ..self.of_two(|a, b| i64::from(a < b))? },
            "Where" => self.chosen()?,
            "Range" => self.range()?,
            "Concat" => self.concatenated()?,
            "Gather" => self.gathered()?,
            "Split" => self.part()?,
            _ => return Ok(None),
        }))
    }

    fn shape(&self) -> Outcome<Value> {
        let shape = &self.operand(0)?.shape;
        let (start, end) = (self.attribute("start")? as usize, self.attribute("end")? as usize);
        let sizes = shape.get(start..end).ok_or("there are not so many sizes")?;
        let sizes = sizes.iter().map(|size| size.map(|size| size as i64)).collect::<Option<Vec<_>>>();
        let sizes = sizes.ok_or("the batch is free, and its size is read")?;
        Ok(Value::integers(vec![Some(sizes.len())], sizes.into()))
    }

    /// The elements of an operand, repeated for the shape `shape`.
    fn spread(&self, operand: usize, shape: &[Dim]) -> Outcome<Vec<i64>> {
        let (integers, own) = (self.list(operand)?, &self.operand(operand)?.shape);
        let sizes: Vec<usize> = shape.iter().flatten().copied().collect();
        let mut strides = vec![0; sizes.len()];
        let mut stride = 1;
        for (at, size) in own.iter().enumerate().rev() {
            let size = size.as_ref().ok_or("the batch is free, and integers depend on it")?;
            strides[sizes.len() - own.len() + at] = if *size == 1 { 0 } else { stride };
            stride *= size;
        }
        let element = |index: usize| {
            let mut rest = index;
            let places = sizes.iter().zip(&strides).rev().map(|(size, stride)| {
                let place = rest % size;
                rest /= size;
                place * stride
            });
            integers[places.sum::<usize>()]
        };
        Ok((0..sizes.iter().product()).map(element).collect())
    }

    fn of_two(&self, compute: impl Fn(i64, i64) -> i64) -> Outcome<Value> {
        let shape = broadcast(&self.operand(0)?.shape, &self.operand(1)?.shape)?;
        let (a, b) = (self.spread(0, &shape)?, self.spread(1, &shape)?);
        Ok(Value::integers(shape, a.into_iter().zip(b).map(|(a, b)| compute(a, b)).collect()))
    }

    fn divided(&self, compute: impl Fn(i64, i64) -> i64) -> Outcome<Value> {
        // Runtimes differ in quotients and remainders of negative numbers.
        match self.list(0)?.iter().any(|&a| a < 0) || self.list(1)?.iter().any(|&b| b <= 0) {
            true => Err("a number is divided by 0, or one of them is negative".to_owned()),
            false => self.of_two(compute),
        }
    }

    fn chosen(&self) -> Outcome<Value> {
        if self.operand(0)?.elements != data_type::BOOL {
            return Err("the condition is no truth value".to_owned());
        }
        let shape = broadcast(&self.operand(1)?.shape, &self.operand(2)?.shape)?;
        let shape = broadcast(&self.operand(0)?.shape, &shape)?;
        let [condition, yes, no] =
            [self.spread(0, &shape)?, self.spread(1, &shape)?, self.spread(2, &shape)?];
        let values = condition.iter().zip(yes.iter().zip(&no));
        Ok(Value::integers(shape, values.map(|(&c, (&y, &n))| if c != 0 { y } else { n }).collect()))
    }

    fn range(&self) -> Outcome<Value> {
        let scalar = |at: usize| match (&self.operand(at)?.shape[..], &self.list(at)?[..]) {
            ([], [number]) => Ok(*number),
            _ => Err(format!("operand {at} is no scalar")),
        };
        let (start, end, step) = (scalar(0)?, scalar(1)?, scalar(2)?);
        if step != 1 {
            return Err("the step is not 1".to_owned());
        }
        let numbers: Rc<[i64]> = (start..end).collect();
        Ok(Value::integers(vec![Some(numbers.len())], numbers))
    }

    fn concatenated(&self) -> Outcome<Value> {
        if self.attribute("axis")? != 0 || self.inputs.iter().any(|input| input.shape.len() != 1) {
            return Err("only lists are put together".to_owned());
        }
        let parts = (0..self.inputs.len()).map(|at| self.list(at)).collect::<Outcome<Vec<_>>>()?;
        let all: Rc<[i64]> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        Ok(Value::integers(vec![Some(all.len())], all))
    }

    fn gathered(&self) -> Outcome<Value> {
        let (x, index) = (self.list(0)?, self.list(1)?);
        if self.attribute("axis")? != 0 || self.operand(0)?.shape.len() != 1 {
            return Err("integers are gathered from lists only".to_owned());
        }
        let element = |&at: &i64| usize::try_from(at).ok().and_then(|at| x.get(at)).copied();
        let found = index.iter().map(element).collect::<Option<Vec<_>>>();
        let found = found.ok_or_else(|| format!("an index is not in 0..{}", x.len()))?;
        Ok(Value::integers(self.operand(1)?.shape.clone(), found.into()))
    }

    /// The only part of a list.
    fn part(&self) -> Outcome<Value> {
        match (&self.operand(0)?.shape[..], &self.list(1)?[..]) {
            ([Some(size)], [part]) if *size as i64 == *part => Ok(self.operand(0)?.clone()),
            (shape, sizes) => {
                Err(format!("{sizes:?} of {shape:?}: the image is beyond the limits of the network"))
            }
        }
    }
}
