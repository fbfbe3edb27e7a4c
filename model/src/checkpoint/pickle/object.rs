//! The content of a pickle as plain data: an arena of objects that refer to each other by index.
//!
//! Indices replace ownership, so that cycles and deep nesting are harmless to build, walk and drop.

use std::borrow::Cow;
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

/// An array of numpy as the pickle describes it, not checked yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ArrayRef {
    /// An array whose state has not been set.
    Empty,
    /// The state that was set: version, shape, type, whether the order is Fortran's, values.
    State(Id),
    /// The arguments of numpy's `_frombuffer`: values, type, shape, order.
    Buffer(Id),
}

/// An object of a pickle. Numbers, texts and bytes are borrowed from the pickle where that saves a copy.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Object<'a> {
    None,
    Bool(bool),
    Int(i64),
    /// An integer of more than 64 bits: its little-endian bytes.
    Long(&'a [u8]),
    Text(Cow<'a, str>),
    /// Bytes, or a string of Python 2, which is text too if it is UTF-8.
    Bytes {
        bytes: &'a [u8],
        text: Option<&'a str>,
    },
    /// Bytes that are stored as text: the code point of each character is a byte, unless it exceeds 255.
    Latin1(&'a str),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    /// A class or function, by its dotted name; shared, so that many instances of one class cost one name.
    Global(Arc<str>),
    Storage(StorageRef),
    Tensor(TensorRef),
    /// A type of numpy: the code that it was made from, and its state (version, byte order, ...) once it is
    /// set.
    Dtype {
        code: Id,
        state: Option<Id>,
    },
    Array(ArrayRef),
    /// A method of a class or an object, by its dotted name.
    Method(Arc<str>),
    /// A storage that Python's pickle wrote: the bytes of a file of `torch.save` that holds nothing else.
    Saved(&'a [u8]),
    /// Anything else, with a description: floats, and instances of classes that this reader does not know.
    Opaque(Arc<str>),
}

impl Object<'_> {
    /// The text, if the object is one.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Object::Text(text) => Some(text),
            Object::Bytes { text, .. } => *text,
            _ => None,
        }
    }
}

/// The objects of one pickle.
#[derive(Debug)]
pub(crate) struct Pickle<'a> {
    /// Every object.
    pub(crate) objects: Vec<Object<'a>>,
    /// The object that was pickled.
    pub(crate) root: Id,
    /// Number of bytes read, including the STOP opcode.
    pub(crate) consumed: usize,
}

impl<'a> Pickle<'a> {
    /// An object by its index.
    pub(crate) fn get(&self, id: Id) -> &Object<'a> {
        &self.objects[id as usize]
    }

    /// The entries of a dictionary that have text keys, in order; `None` for any other object.
    pub(crate) fn entries(&self, id: Id) -> Option<Vec<(&str, Id)>> {
        let Object::Dict(items) = self.get(id) else { return None };
        let entry = |&(key, value): &(Id, Id)| Some((self.get(key).text()?, value));
        Some(items.iter().filter_map(entry).collect())
    }

    /// A description of an object, for messages.
    pub(crate) fn kind(&self, id: Id) -> String {
        match self.get(id) {
            Object::None => "None".to_owned(),
            Object::Bool(_) => "a bool".to_owned(),
            Object::Int(_) | Object::Long(_) => "an integer".to_owned(),
            Object::Text(_) | Object::Bytes { text: Some(_), .. } => "a string".to_owned(),
            Object::Bytes { .. } | Object::Latin1(_) => "bytes".to_owned(),
            Object::Tuple(_) => "a tuple".to_owned(),
            Object::List(_) => "a list".to_owned(),
            Object::Dict(_) => "a dictionary".to_owned(),
            Object::Global(name) => format!("the class or function {name}"),
            Object::Storage(_) => "a storage".to_owned(),
            Object::Tensor(_) => "a tensor".to_owned(),
            Object::Dtype { .. } => "a type of numpy".to_owned(),
            Object::Array(_) => "an array".to_owned(),
            Object::Method(name) => format!("the method {name}"),
            Object::Saved(_) => "a storage".to_owned(),
            Object::Opaque(name) => format!("an object of {name}"),
        }
    }
}
