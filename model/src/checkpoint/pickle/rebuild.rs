//! The calls in a pickle that this reader understands: they rebuild tensors, arrays and dictionaries.

use std::borrow::Cow;
use std::sync::Arc;

use super::object::{ArrayRef, Id, Object, StorageRef, TensorRef};
use crate::checkpoint::raw::DType;

/// Longest storage name accepted, in bytes; torch.save writes decimal numbers.
const MAX_KEY: usize = 64;

/// Result of a call.
pub(super) enum Called<'a> {
    /// An object that exists already.
    Existing(Id),
    /// A new object.
    New(Object<'a>),
}

/// The object that `callee(*arguments)` describes; an opaque object if the callee is not known. Nothing is
/// executed.
pub(super) fn call<'a>(objects: &[Object<'a>], callee: Id, arguments: Id) -> Result<Called<'a>, String> {
    let name = name_of(objects, callee);
    let Object::Tuple(items) = &objects[arguments as usize] else {
        return Err(format!("a call of {name} whose arguments are not a tuple"));
    };
    let known = match (&*name, items.as_slice()) {
        (
            "torch._utils._rebuild_tensor_v2" | "torch._utils._rebuild_tensor",
            [storage, offset, shape, strides, ..],
        ) => Called::New(Object::Tensor(tensor(objects, *storage, [*offset, *shape, *strides])?)),
        ("torch._utils._rebuild_parameter" | "torch._utils._rebuild_parameter_with_state", [data, ..]) => {
            Called::Existing(*data)
        }
        ("collections.OrderedDict" | "builtins.dict" | "__builtin__.dict", pairs @ ([] | [_])) => {
            Called::New(Object::Dict(dictionary(objects, pairs.first().copied())?))
        }
        ("collections.defaultdict", _) => Called::New(Object::Dict(Vec::new())),
        ("torch.Size", [sizes]) => Called::Existing(*sizes),
        ("torch.storage._load_from_bytes", &[file]) => match objects[file as usize] {
            Object::Bytes { bytes, .. } => Called::New(Object::Saved(bytes)),
            _ => Called::New(Object::Opaque(name)),
        },
        _ => Called::New(bytes_or_array(objects, &name, arguments).unwrap_or(Object::Opaque(name))),
    };
    Ok(known)
}

/// The object of a call that rebuilds bytes, or a part of an array of numpy; numpy 2 renamed its modules.
fn bytes_or_array<'a>(objects: &[Object<'a>], name: &str, arguments: Id) -> Option<Object<'a>> {
    let Object::Tuple(items) = &objects[arguments as usize] else { return None };
    Some(match (name, items.as_slice()) {
        ("builtins.bytes" | "__builtin__.bytes", []) => Object::Bytes { bytes: &[], text: None },
        ("_codecs.encode", &[text, coding]) => {
            match (&objects[text as usize], objects[coding as usize].text()) {
                (&Object::Text(Cow::Borrowed(text)), Some("latin1" | "latin-1")) => Object::Latin1(text),
                _ => return None,
            }
        }
        ("numpy.dtype", &[code, ..]) => Object::Dtype { code, state: None },
        ("numpy.core.multiarray._reconstruct" | "numpy._core.multiarray._reconstruct", &[class, ..])
            if &*name_of(objects, class) == "numpy.ndarray" =>
        {
            Object::Array(ArrayRef::Empty)
        }
        ("numpy.core.numeric._frombuffer" | "numpy._core.numeric._frombuffer", _) => {
            Object::Array(ArrayRef::Buffer(arguments))
        }
        _ => return None,
    })
}

/// The name of a class or function object.
pub(super) fn name_of(objects: &[Object<'_>], id: Id) -> Arc<str> {
    match &objects[id as usize] {
        Object::Global(name) | Object::Opaque(name) => name.clone(),
        _ => "an unknown class".into(),
    }
}

fn tensor(
    objects: &[Object<'_>],
    storage: Id,
    [offset, shape, strides]: [Id; 3],
) -> Result<TensorRef, String> {
    match &objects[storage as usize] {
        Object::Storage(_) | Object::Saved(_) => {}
        Object::Opaque(name) if &**name == "torch.storage._load_from_bytes" => {
            return Err(
                "holds tensors of torch that Python's pickle wrote by a protocol before 3; save them with torch.save instead"
                    .to_owned(),
            );
        }
        _ => return Err("a tensor whose storage is another object".to_owned()),
    }
    Ok(TensorRef {
        storage,
        offset: size(objects, offset)?,
        shape: sizes(objects, shape)?,
        strides: sizes(objects, strides)?,
    })
}

fn size(objects: &[Object<'_>], id: Id) -> Result<usize, String> {
    match objects[id as usize] {
        Object::Int(value) if value >= 0 => Ok(value as usize),
        _ => Err("a tensor whose size, stride or offset is not a whole number".to_owned()),
    }
}

pub(super) fn sizes(objects: &[Object<'_>], id: Id) -> Result<Vec<usize>, String> {
    match &objects[id as usize] {
        Object::Tuple(items) | Object::List(items) if items.len() <= 16 => {
            items.iter().map(|&item| size(objects, item)).collect()
        }
        _ => Err("a tensor whose shape is not a tuple of up to 16 sizes".to_owned()),
    }
}

/// The entries of an ordered dictionary, from its argument: a list of pairs.
fn dictionary(objects: &[Object<'_>], pairs: Option<Id>) -> Result<Vec<(Id, Id)>, String> {
    let Some(pairs) = pairs else { return Ok(Vec::new()) };
    let bad = || "an ordered dictionary that does not consist of pairs".to_owned();
    let pair = |&id: &Id| match &objects[id as usize] {
        Object::Tuple(items) | Object::List(items) => match items[..] {
            [key, value] => Ok((key, value)),
            _ => Err(bad()),
        },
        _ => Err(bad()),
    };
    match &objects[pairs as usize] {
        Object::List(items) | Object::Tuple(items) => items.iter().map(pair).collect(),
        _ => Err(bad()),
    }
}

/// The object that a persistent id describes: a storage, or in the older format a class with its source,
/// `('module', class, file, source)`. The name of the class is kept.
pub(super) fn persistent<'a>(objects: &[Object<'a>], id: Id) -> Result<Called<'a>, String> {
    if let Object::Tuple(items) = &objects[id as usize]
        && let &[tag, class, _file, _source] = items.as_slice()
        && objects[tag as usize].text() == Some("module")
        && matches!(objects[class as usize], Object::Global(_))
    {
        return Ok(Called::Existing(class));
    }
    storage(objects, id).map(|storage| Called::New(Object::Storage(storage)))
}

/// The storage that a persistent id describes: `('storage', type, key, device, elements[, view])`.
fn storage(objects: &[Object<'_>], id: Id) -> Result<StorageRef, String> {
    let bad = || "a persistent id that is not a storage of torch.save".to_owned();
    let Object::Tuple(items) = &objects[id as usize] else { return Err(bad()) };
    let (&[tag, kind, key, _device, elements], view) = items.split_first_chunk::<5>().ok_or_else(bad)?;
    let is_storage = objects[tag as usize].text() == Some("storage");
    let view_free = view.iter().all(|&v| matches!(objects[v as usize], Object::None));
    match (&objects[kind as usize], objects[key as usize].text()) {
        (Object::Global(kind), Some(key)) if is_storage && view_free && key.len() <= MAX_KEY => {
            Ok(StorageRef {
                key: key.to_owned(),
                dtype: storage_type(kind).ok_or_else(|| format!("a storage of the unknown type {kind}"))?,
                elements: size(objects, elements)?,
            })
        }
        _ => Err(bad()),
    }
}

fn storage_type(class: &str) -> Option<DType> {
    let (module, name) = class.rsplit_once('.')?;
    if !matches!(module, "torch" | "torch.cuda" | "torch.storage") {
        return None;
    }
    Some(match name.strip_suffix("Storage")? {
        "Float" => DType::F32,
        "Half" => DType::F16,
        "BFloat16" => DType::Bf16,
        "Double" => DType::F64,
        "Byte" | "Char" | "Bool" | "QInt8" | "QUInt8" | "Untyped" => DType::Other(1),
        "Short" => DType::Other(2),
        "Int" | "QInt32" => DType::Other(4),
        "Long" | "ComplexFloat" => DType::Other(8),
        "ComplexDouble" => DType::Other(16),
        _ => return None,
    })
}
