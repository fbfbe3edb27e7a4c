//! A structural check of a graph, without a runtime: names, order, types and shapes.

mod ops;

use std::collections::{HashMap, HashSet};

use crate::error::OnnxError;
use crate::proto::{GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, data_type};

/// A size; `None` is the batch of any number of images.
type Dim = Option<usize>;

/// The type of a value.
#[derive(Clone, Debug, PartialEq)]
struct Value {
    elements: i32,
    shape: Vec<Dim>,
}

/// Checks that every name is unique, every value is defined before it is used, every constant and node is used, every
/// constant has the bytes of its shape, and that the types and shapes of all operands fit their operator, up to the
/// declared outputs.
///
/// It knows the operators that [`crate::export`] writes.
///
/// # Errors
/// [`OnnxError::Graph`] with the node or value.
pub fn check(model: &ModelProto) -> Result<(), OnnxError> {
    let graph = model.graph.as_ref().ok_or_else(|| problem("", "the file has no graph"))?;
    let mut checker = Checker { values: HashMap::new(), constants: HashMap::new(), unused: HashSet::new() };
    let mut nodes = HashSet::new();
    for tensor in &graph.initializer {
        checker.constant(tensor)?;
    }
    for input in &graph.input {
        let name = input.name();
        checker.define(name, declared(input)?)?;
    }
    for node in &graph.node {
        if !nodes.insert(node.name()) {
            return Err(problem(node.name(), "two nodes have this name"));
        }
        checker.node(node)?;
    }
    checker.outputs(graph)
}

struct Checker<'a> {
    values: HashMap<&'a str, Value>,
    constants: HashMap<&'a str, &'a TensorProto>,
    unused: HashSet<&'a str>,
}

impl<'a> Checker<'a> {
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
        self.constants.insert(tensor.name(), tensor);
        self.define(tensor.name(), Value { elements, shape })
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
            let (name, wanted) = (output.name(), declared(output)?);
            match self.values.get(name) {
                Some(found) if *found == wanted => self.unused.remove(name),
                Some(found) => {
                    return Err(problem(name, format!("is declared as {wanted:?} but is {found:?}")));
                }
                None => return Err(problem(name, "is an output, but no node defines it")),
            };
        }
        // The least name, so that the message does not depend on the order of a hash table.
        self.unused.iter().min().map_or(Ok(()), |name| Err(problem(name, "nothing uses this value")))
    }
}

fn declared(info: &ValueInfoProto) -> Result<Value, OnnxError> {
    let tensor = info.r#type.as_ref().and_then(|t| t.tensor_type.as_ref());
    let shape = tensor.and_then(|tensor| tensor.shape.as_ref());
    let (Some(tensor), Some(shape)) = (tensor, shape) else {
        return Err(problem(info.name(), "has no declared type"));
    };
    let dims = shape.dim.iter().map(|dim| dim.dim_value.map(|size| size as usize));
    Ok(Value { elements: tensor.elem_type(), shape: dims.collect() })
}

fn problem(node: &str, problem: impl Into<String>) -> OnnxError {
    OnnxError::Graph { node: node.to_owned(), problem: problem.into() }
}
