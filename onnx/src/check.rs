//! A structural check of a graph, without a runtime: names, order, types and shapes. Integers are computed,
//! so that the shapes of graphs for images of any size are known for each size.

mod integers;
mod ops;

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use swinq_model::Size;

use crate::error::OnnxError;
use crate::proto::{
    DimensionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, data_type,
};

/// A size; `None` is the batch of any number of images.
type Dim = Option<usize>;

/// The type of a value, and the value itself if it is one of integers or of truth (0 and 1).
#[derive(Clone, Debug)]
struct Value {
    elements: i32,
    shape: Vec<Dim>,
    integers: Option<Rc<[i64]>>,
}

impl Value {
    /// A value whose type alone is known.
    fn of(elements: i32, shape: Vec<Dim>) -> Value {
        Value { elements, shape, integers: None }
    }
}

/// The result of [`check`].
#[derive(Clone, Debug, Default)]
pub struct Checked {
    integers: HashMap<String, Rc<[i64]>>,
}

impl Checked {
    /// The integers of the constant or value `name`: the numbers of rows, the shapes.
    pub fn integers(&self, name: &str) -> Option<&[i64]> {
        self.integers.get(name).map(|integers| &integers[..])
    }
}

/// Checks that every name is unique, every value is defined before it is used, every constant and node is
/// used, every constant has the bytes of its shape, and that the types and shapes of all operands fit their
/// operator, up to the declared outputs. A graph for images of any size is checked for `image`, in pixels;
/// one for images of one size needs none.
///
/// It knows the operators that [`crate::export`] writes.
///
/// # Errors
/// [`OnnxError::Graph`] with the node or value; also for a size that the graph refuses.
pub fn check(model: &ModelProto, image: Option<Size>) -> Result<Checked, OnnxError> {
    let graph = model.graph.as_ref().ok_or_else(|| problem("", "the file has no graph"))?;
    let mut checker = Checker {
        values: HashMap::new(),
        constants: HashMap::new(),
        unused: HashSet::new(),
        sides: HashMap::new(),
    };
    if let Some(Size { height, width }) = image {
        checker.sides.extend([("height", height), ("width", width)]);
    }
    let mut nodes = HashSet::new();
    for tensor in &graph.initializer {
        checker.constant(tensor)?;
    }
    for input in &graph.input {
        let (name, dims) = (input.name(), declared(input)?);
        let shape = dims.1.iter().map(|dim| checker.side(name, dim)).collect::<Result<_, _>>()?;
        checker.define(name, Value::of(dims.0, shape))?;
    }
    for node in &graph.node {
        if !nodes.insert(node.name()) {
            return Err(problem(node.name(), "two nodes have this name"));
        }
        checker.node(node)?;
    }
    checker.outputs(graph)?;
    let integers =
        checker.values.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value.integers?)));
    Ok(Checked { integers: integers.collect() })
}

struct Checker<'a> {
    values: HashMap<&'a str, Value>,
    constants: HashMap<&'a str, &'a TensorProto>,
    unused: HashSet<&'a str>,
    /// Free sizes of inputs and outputs by name, but for the batch.
    sides: HashMap<&'a str, usize>,
}

impl<'a> Checker<'a> {
    /// A declared size; `None` is the batch.
    fn side(&self, of: &str, dim: &DimensionProto) -> Result<Dim, OnnxError> {
        match (dim.dim_value, dim.dim_param()) {
            (Some(size), _) => Ok(Some(size as usize)),
            (None, "batch") => Ok(None),
            (None, side) => {
                let missing =
                    || problem(of, format!("its {side} is free, and no size was given to check it with"));
                self.sides.get(side).copied().map(Some).ok_or_else(missing)
            }
        }
    }

    fn define(&mut self, name: &'a str, value: Value) -> Result<(), OnnxError> {
        if name.is_empty() || self.values.insert(name, value).is_some() {
            return Err(problem(name, "the name is empty, or another value has it"));
        }
        self.unused.insert(name);
        Ok(())
    }

    fn constant(&mut self, tensor: &'a TensorProto) -> Result<(), OnnxError> {
        let elements = tensor.data_type();
        let width = match elements {
            data_type::FLOAT => 4,
            data_type::FLOAT16 => 2,
            data_type::UINT8 | data_type::INT8 => 1,
            data_type::INT64 => 8,
            _ => return Err(problem(tensor.name(), "a constant of this type is not expected")),
        };
        let shape: Vec<Dim> = tensor.dims.iter().map(|&size| usize::try_from(size).ok()).collect();
        let count: usize = tensor.dims.iter().map(|&size| size as usize).product();
        if shape.contains(&None) || tensor.raw_data().len() != count * width {
            return Err(problem(tensor.name(), "its bytes do not fit its shape"));
        }
        let integers = (elements == data_type::INT64).then(|| {
            let (values, _) = tensor.raw_data().as_chunks::<8>();
            values.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect()
        });
        self.constants.insert(tensor.name(), tensor);
        self.define(tensor.name(), Value { elements, shape, integers })
    }

    fn node(&mut self, node: &'a NodeProto) -> Result<(), OnnxError> {
        let mut inputs = Vec::with_capacity(node.input.len());
        for name in &node.input {
            let value = self.values.get(&name[..]);
            let missing = || problem(node.name(), format!("it reads {name}, which is not defined before it"));
            inputs.push(value.cloned().ok_or_else(missing)?);
            self.unused.remove(&name[..]);
        }
        let outputs = ops::Operands { node, inputs, constants: &self.constants }.outputs();
        let outputs = outputs.map_err(|text| problem(node.name(), format!("{}: {text}", node.op_type())))?;
        if outputs.len() != node.output.len() {
            return Err(problem(node.name(), "another number of outputs than its operator has"));
        }
        node.output.iter().zip(outputs).try_for_each(|(name, value)| self.define(name, value))
    }

    fn outputs(&mut self, graph: &'a GraphProto) -> Result<(), OnnxError> {
        for output in &graph.output {
            let (name, (elements, dims)) = (output.name(), declared(output)?);
            let found = self.values.get(name).cloned();
            let found = found.ok_or_else(|| problem(name, "is an output, but no node defines it"))?;
            for (dim, &size) in dims.iter().zip(&found.shape) {
                // An output says the size of a free side first.
                if let (DimensionProto { dim_param: Some(side), .. }, Some(size)) = (dim, size) {
                    self.sides.entry(&side[..]).or_insert(size);
                }
            }
            let wanted = dims.iter().map(|dim| self.side(name, dim)).collect::<Result<Vec<_>, _>>()?;
            if (elements, &wanted) != (found.elements, &found.shape) {
                let text = format!("is declared as {wanted:?} of type {elements} but is {found:?}");
                return Err(problem(name, text));
            }
            self.unused.remove(name);
        }
        // The least name, so that the message does not depend on the order of a hash table.
        self.unused.iter().min().map_or(Ok(()), |name| Err(problem(name, "nothing uses this value")))
    }
}

/// The declared type and sizes of an input or an output.
fn declared(info: &ValueInfoProto) -> Result<(i32, &[DimensionProto]), OnnxError> {
    let tensor = info.r#type.as_ref().and_then(|t| t.tensor_type.as_ref());
    let shape = tensor.and_then(|tensor| tensor.shape.as_ref());
    let (Some(tensor), Some(shape)) = (tensor, shape) else {
        return Err(problem(info.name(), "has no declared type"));
    };
    Ok((tensor.elem_type(), &shape.dim))
}

fn problem(node: &str, problem: impl Into<String>) -> OnnxError {
    OnnxError::Graph { node: node.to_owned(), problem: problem.into() }
}
