//! The messages of ONNX files: the part of `onnx.proto` (ONNX 1.17, IR version 10, package `onnx`) that an
//! exported graph uses. A reader of these messages skips the fields that are missing here.
//!
//! The fields are transcribed by hand, so that no build needs `protoc`. `python tests/onnx/proto.py` compares
//! the name, number and type of every field with those of the installed package `onnx`; run it after a change
//! to this file.

use prost::Message;

/// A model: a graph, the operators it is written in, and metadata.
#[derive(Clone, PartialEq, Message)]
pub struct ModelProto {
    /// Version of the file format.
    #[prost(int64, optional, tag = "1")]
    pub ir_version: Option<i64>,
    /// The program that wrote the file.
    #[prost(string, optional, tag = "2")]
    pub producer_name: Option<String>,
    /// Its version.
    #[prost(string, optional, tag = "3")]
    pub producer_version: Option<String>,
    /// Description for readers.
    #[prost(string, optional, tag = "6")]
    pub doc_string: Option<String>,
    /// The network.
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    /// The operator sets of the graph.
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSetIdProto>,
    /// Metadata: keys and values.
    #[prost(message, repeated, tag = "14")]
    pub metadata_props: Vec<StringStringEntryProto>,
}

/// A version of a domain of operators.
#[derive(Clone, PartialEq, Message)]
pub struct OperatorSetIdProto {
    /// The domain; empty for ONNX's own.
    #[prost(string, optional, tag = "1")]
    pub domain: Option<String>,
    /// The version.
    #[prost(int64, optional, tag = "2")]
    pub version: Option<i64>,
}

/// A key and its value.
#[derive(Clone, PartialEq, Message)]
pub struct StringStringEntryProto {
    /// The key.
    #[prost(string, optional, tag = "1")]
    pub key: Option<String>,
    /// The value.
    #[prost(string, optional, tag = "2")]
    pub value: Option<String>,
}

/// A graph: nodes in the order of their computation.
#[derive(Clone, PartialEq, Message)]
pub struct GraphProto {
    /// The nodes; each reads values that are defined before it.
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeProto>,
    /// Name of the graph.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    /// Constants.
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorProto>,
    /// Inputs.
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfoProto>,
    /// Outputs.
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfoProto>,
}

/// A node: one operator with its operands.
#[derive(Clone, PartialEq, Message)]
pub struct NodeProto {
    /// Names of the values that it reads.
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    /// Names of the values that it defines.
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    /// Name of the node.
    #[prost(string, optional, tag = "3")]
    pub name: Option<String>,
    /// The operator.
    #[prost(string, optional, tag = "4")]
    pub op_type: Option<String>,
    /// The operator's attributes.
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeProto>,
}

/// An attribute of a node.
#[derive(Clone, PartialEq, Message)]
pub struct AttributeProto {
    /// Name.
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    /// A number, of the type `FLOAT`.
    #[prost(float, optional, tag = "2")]
    pub f: Option<f32>,
    /// An integer, of the type `INT`.
    #[prost(int64, optional, tag = "3")]
    pub i: Option<i64>,
    /// Integers, of the type `INTS`.
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub ints: Vec<i64>,
    /// The type, one of [`attribute_type`].
    #[prost(int32, optional, tag = "20")]
    pub r#type: Option<i32>,
}

/// The types of [`AttributeProto`].
pub mod attribute_type {
    /// `AttributeProto::f`.
    pub const FLOAT: i32 = 1;
    /// `AttributeProto::i`.
    pub const INT: i32 = 2;
    /// `AttributeProto::ints`.
    pub const INTS: i32 = 7;
}

/// A constant tensor.
#[derive(Clone, PartialEq, Message)]
pub struct TensorProto {
    /// Sizes.
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub dims: Vec<i64>,
    /// Type of the elements, one of [`data_type`].
    #[prost(int32, optional, tag = "2")]
    pub data_type: Option<i32>,
    /// Name.
    #[prost(string, optional, tag = "8")]
    pub name: Option<String>,
    /// The elements, row-major, little-endian.
    #[prost(bytes = "vec", optional, tag = "9")]
    pub raw_data: Option<Vec<u8>>,
}

/// Types of elements.
pub mod data_type {
    /// f32.
    pub const FLOAT: i32 = 1;
    /// u8.
    pub const UINT8: i32 = 2;
    /// i8.
    pub const INT8: i32 = 3;
    /// i64.
    pub const INT64: i32 = 7;
    /// Truth values, 0 or 1 in a byte.
    pub const BOOL: i32 = 9;
    /// f16.
    pub const FLOAT16: i32 = 10;
}

/// A value with its type.
#[derive(Clone, PartialEq, Message)]
pub struct ValueInfoProto {
    /// Name.
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    /// Type.
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<TypeProto>,
}

/// A type; only tensors occur.
#[derive(Clone, PartialEq, Message)]
pub struct TypeProto {
    /// The type of a tensor.
    #[prost(message, optional, tag = "1")]
    pub tensor_type: Option<TensorTypeProto>,
}

/// The type of a tensor; `TypeProto.Tensor` in `onnx.proto`.
#[derive(Clone, PartialEq, Message)]
pub struct TensorTypeProto {
    /// Type of the elements, one of [`data_type`].
    #[prost(int32, optional, tag = "1")]
    pub elem_type: Option<i32>,
    /// Shape.
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShapeProto>,
}

/// A shape.
#[derive(Clone, PartialEq, Message)]
pub struct TensorShapeProto {
    /// The sizes.
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<DimensionProto>,
}

/// A size; `TensorShapeProto.Dimension` in `onnx.proto`, where the two fields are a `oneof`. One of them is
/// set.
#[derive(Clone, PartialEq, Message)]
pub struct DimensionProto {
    /// The size.
    #[prost(int64, optional, tag = "1")]
    pub dim_value: Option<i64>,
    /// The name of a size that is known only when the graph runs.
    #[prost(string, optional, tag = "2")]
    pub dim_param: Option<String>,
}
