//! Builds the messages of a graph: nodes, and constants that nodes share.

use std::collections::HashSet;

use half::f16;

use crate::error::OnnxError;
use crate::proto::{
    AttributeProto, DimensionProto, GraphProto, NodeProto, TensorProto, TensorShapeProto, TensorTypeProto,
    TypeProto, ValueInfoProto, attribute_type, data_type,
};

/// A size of an input or an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Dim {
    /// This size.
    Fixed(usize),
    /// Any size, under this name.
    Free(String),
}

/// A graph under construction. A node and the first value that it defines have the same name.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    proto: GraphProto,
    constants: HashSet<String>,
    /// The nodes of [`Graph::shared`].
    shared: HashSet<String>,
    /// Whether float constants are f16.
    half: bool,
    problem: Option<OnnxError>,
}

impl Graph {
    /// An empty graph named `name`, whose float constants are f32.
    pub fn new(name: &str) -> Graph {
        let proto = GraphProto { name: Some(name.to_owned()), ..GraphProto::default() };
        Graph { proto, ..Graph::default() }
    }

    /// Whether the float constants that are made now are f16.
    pub fn is_half(&self) -> bool {
        self.half
    }

    /// Makes float constants f16 from here on, or f32.
    pub fn set_half(&mut self, half: bool) {
        self.half = half;
    }

    /// The message.
    ///
    /// # Errors
    /// [`OnnxError::Float16`] if a constant did not fit.
    pub fn finish(mut self) -> Result<GraphProto, OnnxError> {
        self.remove_unused();
        self.problem.map_or(Ok(self.proto), Err)
    }

    /// Removes shared nodes and integers that nothing reads: the sides of a grid are computed before it is
    /// known who needs them.
    fn remove_unused(&mut self) {
        let mut read: HashSet<String> = self.proto.output.iter().map(|info| info.name().to_owned()).collect();
        let mut kept = Vec::new();
        for node in std::mem::take(&mut self.proto.node).into_iter().rev() {
            if !self.shared.contains(node.name()) || node.output.iter().any(|output| read.contains(output)) {
                read.extend(node.input.iter().cloned());
                kept.push(node);
            }
        }
        kept.reverse();
        self.proto.node = kept;
        let integers = |tensor: &TensorProto| tensor.data_type() == data_type::INT64;
        self.proto.initializer.retain(|tensor| !integers(tensor) || read.contains(tensor.name()));
    }

    /// Declares an input.
    pub fn input(&mut self, name: &str, elements: i32, shape: &[Dim]) -> String {
        self.proto.input.push(value_info(name, elements, shape));
        name.to_owned()
    }

    /// Declares an output.
    pub fn output(&mut self, name: &str, elements: i32, shape: &[Dim]) {
        self.proto.output.push(value_info(name, elements, shape));
    }

    /// A node that defines one value, `name`. Returns the name.
    pub fn node(&mut self, op: &str, name: &str, inputs: &[&str], attributes: &[Attribute<'_>]) -> String {
        self.nodes(op, name, inputs, attributes, &[name]);
        name.to_owned()
    }

    /// As [`Graph::node`], for values that several users share: a node that exists is not made again.
    pub fn shared(&mut self, op: &str, name: &str, inputs: &[&str], attributes: &[Attribute<'_>]) -> String {
        match self.shared.insert(name.to_owned()) {
            true => self.node(op, name, inputs, attributes),
            false => name.to_owned(),
        }
    }

    /// A node that defines the values `outputs`.
    pub fn nodes(
        &mut self,
        op: &str,
        name: &str,
        inputs: &[&str],
        attributes: &[Attribute<'_>],
        outputs: &[&str],
    ) {
        self.proto.node.push(NodeProto {
            input: inputs.iter().map(|&input| input.to_owned()).collect(),
            output: outputs.iter().map(|&output| output.to_owned()).collect(),
            name: Some(name.to_owned()),
            op_type: Some(op.to_owned()),
            attribute: attributes.iter().map(Attribute::proto).collect(),
        });
    }

    /// A float constant of f32, or of f16 ([`Graph::set_half`]). A constant that exists is shared.
    pub fn floats(&mut self, name: &str, shape: &[usize], values: &[f32]) -> String {
        if !self.half {
            return self.floats32(name, shape, values);
        }
        self.refuse(name, values, |half| half.is_finite());
        let bytes = || values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()).collect();
        self.constant(name, shape, data_type::FLOAT16, bytes)
    }

    /// The scales of codes: [`Graph::floats`] that stay positive in f16.
    pub fn scales(&mut self, name: &str, shape: &[usize], values: &[f32]) -> String {
        if self.half {
            self.refuse(name, values, |half| half > f16::ZERO);
        }
        self.floats(name, shape, values)
    }

    /// Keeps the error for the first of `values` whose f16 does not fit.
    fn refuse(&mut self, name: &str, values: &[f32], fits: impl Fn(f16) -> bool) {
        if let Some(&value) = values.iter().find(|&&value| !fits(f16::from_f32(value))) {
            self.problem.get_or_insert(OnnxError::Float16 { tensor: name.to_owned(), value });
        }
    }

    /// A constant of f32, in every graph.
    pub fn floats32(&mut self, name: &str, shape: &[usize], values: &[f32]) -> String {
        self.constant(name, shape, data_type::FLOAT, || values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// A constant of i64.
    pub fn ints(&mut self, name: &str, shape: &[usize], values: &[i64]) -> String {
        self.constant(name, shape, data_type::INT64, || values.iter().flat_map(|v| v.to_le_bytes()).collect())
    }

    /// The list of integers `values`, which every user of the same list shares.
    pub fn list(&mut self, values: &[i64]) -> String {
        let text: Vec<String> = values.iter().map(i64::to_string).collect();
        self.ints(&format!("ints.{}", text.join("_")), &[values.len()], values)
    }

    /// A constant of signed codes.
    pub fn codes(&mut self, name: &str, shape: &[usize], codes: &[i8]) -> String {
        let bytes = || codes.iter().map(|code| code.cast_unsigned()).collect();
        self.constant(name, shape, data_type::INT8, bytes)
    }

    /// The zero point 0 of signed codes with one scale.
    pub fn zero_s8(&mut self) -> String {
        self.codes("zero.s8", &[], &[0])
    }

    /// The zero point 0 of unsigned codes.
    pub fn zero_u8(&mut self) -> String {
        self.constant("zero.u8", &[], data_type::UINT8, || vec![0])
    }

    /// The zero point 128 of unsigned codes, which gives them the values of signed codes with zero point 0.
    pub fn middle_u8(&mut self) -> String {
        self.constant("middle.u8", &[], data_type::UINT8, || vec![128])
    }

    fn constant(
        &mut self,
        name: &str,
        shape: &[usize],
        elements: i32,
        bytes: impl FnOnce() -> Vec<u8>,
    ) -> String {
        if self.constants.insert(name.to_owned()) {
            self.proto.initializer.push(TensorProto {
                dims: shape.iter().map(|&size| size as i64).collect(),
                data_type: Some(elements),
                name: Some(name.to_owned()),
                raw_data: Some(bytes()),
            });
        }
        name.to_owned()
    }
}

/// An attribute of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Attribute<'a> {
    /// A number.
    Float(&'a str, f32),
    /// An integer.
    Int(&'a str, i64),
    /// Integers.
    Ints(&'a str, &'a [i64]),
}

impl Attribute<'_> {
    fn proto(&self) -> AttributeProto {
        let (name, kind) = match self {
            Attribute::Float(name, _) => (name, attribute_type::FLOAT),
            Attribute::Int(name, _) => (name, attribute_type::INT),
            Attribute::Ints(name, _) => (name, attribute_type::INTS),
        };
        let empty =
            AttributeProto { name: Some((*name).to_owned()), r#type: Some(kind), ..Default::default() };
        match *self {
            Attribute::Float(_, f) => AttributeProto { f: Some(f), ..empty },
            Attribute::Int(_, i) => AttributeProto { i: Some(i), ..empty },
            Attribute::Ints(_, ints) => AttributeProto { ints: ints.to_vec(), ..empty },
        }
    }
}

fn value_info(name: &str, elements: i32, shape: &[Dim]) -> ValueInfoProto {
    let dim = |size: &Dim| match size {
        Dim::Fixed(size) => DimensionProto { dim_value: Some(*size as i64), dim_param: None },
        Dim::Free(name) => DimensionProto { dim_value: None, dim_param: Some(name.clone()) },
    };
    let shape = TensorShapeProto { dim: shape.iter().map(dim).collect() };
    let tensor = TensorTypeProto { elem_type: Some(elements), shape: Some(shape) };
    ValueInfoProto { name: Some(name.to_owned()), r#type: Some(TypeProto { tensor_type: Some(tensor) }) }
}
