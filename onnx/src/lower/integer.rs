//! Integers of the size of the image: numbers where the size is known, values of the graph where it is free.

use super::Lowering;
use crate::graph::{Attribute, Dim};

/// An integer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Integer {
    /// A number.
    Known(i64),
    /// The scalar of i64 with this name.
    Value(String),
}

impl Integer {
    /// The integer as a size of an output, which is called `name` if it is free.
    pub(super) fn dim(&self, name: &str) -> Dim {
        match self {
            Integer::Known(number) => Dim::Fixed(*number as usize),
            Integer::Value(_) => Dim::Free(name.to_owned()),
        }
    }
}

impl From<i64> for Integer {
    fn from(number: i64) -> Integer {
        Integer::Known(number)
    }
}

impl From<usize> for Integer {
    fn from(number: usize) -> Integer {
        Integer::Known(number as i64)
    }
}

impl Lowering<'_> {
    /// The scalar `x` as a value of the graph.
    pub(super) fn scalar(&mut self, x: &Integer) -> String {
        match x {
            Integer::Known(number) => self.graph.ints(&format!("int.{number}"), &[], &[*number]),
            Integer::Value(name) => name.clone(),
        }
    }

    /// `x op y`, a scalar named `name`. Add, Sub, Mul, Div, Mod and Max of numbers are numbers; Div and Mod
    /// round down.
    pub(super) fn arithmetic(&mut self, op: &str, name: &str, x: &Integer, y: &Integer) -> Integer {
        let (&Integer::Known(a), &Integer::Known(b)) = (x, y) else {
            let (x, y) = (self.scalar(x), self.scalar(y));
            return Integer::Value(self.graph.shared(op, name, &[&x, &y], &[]));
        };
        Integer::Known(match op {
            "Add" => a + b,
            "Sub" => a - b,
            "Mul" => a * b,
            "Div" => a.div_euclid(b),
            "Mod" => a.rem_euclid(b),
            "Max" => a.max(b),
            "Min" => a.min(b),
            _ => unreachable!("no arithmetic of integers has the operator {op}"),
        })
    }

    /// `x / y`, rounded up.
    pub(super) fn divided_up(&mut self, name: &str, x: &Integer, y: i64) -> Integer {
        let sum = self.arithmetic("Add", &format!("{name}.rounded_up"), x, &Integer::Known(y - 1));
        self.arithmetic("Div", name, &sum, &Integer::Known(y))
    }

    /// The list `parts`: a constant if all are numbers, else a value named `name`.
    pub(super) fn sizes(&mut self, name: &str, parts: &[Integer]) -> String {
        let known = |part: &Integer| match part {
            Integer::Known(number) => Some(*number),
            Integer::Value(_) => None,
        };
        if let Some(numbers) = parts.iter().map(known).collect::<Option<Vec<i64>>>() {
            return self.graph.list(&numbers);
        }
        let mut lists = Vec::new();
        for run in parts.chunk_by(|a, b| known(a).is_some() && known(b).is_some()) {
            lists.push(match run {
                [Integer::Value(value)] => self.reshaped(&format!("{value}.list"), value, &[1]),
                numbers => self.graph.list(&numbers.iter().filter_map(known).collect::<Vec<_>>()),
            });
        }
        let lists: Vec<&str> = lists.iter().map(String::as_str).collect();
        self.graph.shared("Concat", name, &lists, &[Attribute::Int("axis", 0)])
    }

    /// `x` in another shape; 0 keeps a size, -1 is the rest.
    pub(super) fn reshaped(&mut self, name: &str, x: &str, shape: &[i64]) -> String {
        let shape = self.graph.list(shape);
        self.graph.shared("Reshape", name, &[x, &shape], &[])
    }

    /// The integers from `first` to before `end`.
    pub(super) fn range(&mut self, name: &str, first: i64, end: &Integer) -> String {
        let [first, end, step] =
            [Integer::Known(first), end.clone(), Integer::Known(1)].map(|x| self.scalar(&x));
        self.graph.shared("Range", name, &[&first, &end, &step], &[])
    }
}
