//! The content of a pickle as plain data: an arena of objects that refer to each other by index.
//!
//! Indices replace ownership, so that cycles and deep nesting are harmless to build, walk and drop.

use std::sync::Arc;

use crate::checkpoint::raw::DType;

/// Index of an object.
pub(crate) type Id = u32;

/// A storage: the buffer that tensors are views of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StorageRef {
    /// The storage's name in the file.
    pub(crate) key: String,
    /// Element type.
    pub(crate) dtype: DType,
    /// Number of elements.
    pub(crate) elements: usize,
}

/// A tensor as the pickle describes it, not checked yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorRef {
    /// The object that is its storage.
    pub(crate) storage: Id,
    /// Index of the first element in the storage.
    pub(crate) offset: usize,
    /// Sizes.
    pub(crate) shape: Vec<usize>,
    /// Strides, in elements.
    pub(crate) strides: Vec<usize>,
}

/// An object of a pickle.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Object {
    None,
    Bool(bool),
    Int(i64),
    /// An integer of more than 64 bits: its little-endian bytes.
    Long(Vec<u8>),
    Text(String),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    /// A class or function, by its dotted name; shared, so that many instances of one class cost one name.
    Global(Arc<str>),
    Storage(StorageRef),
    Tensor(TensorRef),
    /// Anything else, with a description: floats, bytes, and instances of classes that this reader does not know.
    Opaque(Arc<str>),
}

/// The objects of one pickle.
#[derive(Debug)]
pub(crate) struct Pickle {
    /// Every object.
    pub(crate) objects: Vec<Object>,
    /// The object that was pickled.
    pub(crate) root: Id,
    /// Number of bytes read, including the STOP opcode.
    pub(crate) consumed: usize,
}

impl Pickle {
    /// An object by its index.
    pub(crate) fn get(&self, id: Id) -> &Object {
        &self.objects[id as usize]
    }

    /// The entries of a dictionary that have text keys, in order; `None` for any other object.
    pub(crate) fn entries(&self, id: Id) -> Option<Vec<(&str, Id)>> {
        let Object::Dict(items) = self.get(id) else { return None };
        let entry = |&(key, value): &(Id, Id)| match self.get(key) {
            Object::Text(key) => Some((key.as_str(), value)),
            _ => None,
        };
        Some(items.iter().filter_map(entry).collect())
    }

    /// A description of an object, for messages.
    pub(crate) fn kind(&self, id: Id) -> String {
        match self.get(id) {
            Object::None => "None".to_owned(),
            Object::Bool(_) => "a bool".to_owned(),
            Object::Int(_) | Object::Long(_) => "an integer".to_owned(),
            Object::Text(_) => "a string".to_owned(),
            Object::Tuple(_) => "a tuple".to_owned(),
            Object::List(_) => "a list".to_owned(),
            Object::Dict(_) => "a dictionary".to_owned(),
            Object::Global(name) => format!("the class or function {name}"),
            Object::Storage(_) => "a storage".to_owned(),
            Object::Tensor(_) => "a tensor".to_owned(),
            Object::Opaque(name) => format!("an object of {name}"),
        }
    }
}
