//! The calls of Python's `getattr` that checkpoints contain.
//!
//! Python's pickle module writes a method as such a call, one of a class before protocol 4 only:
//!
//! - The training checkpoints of mmengine keep the history of each logged value in a `HistoryBuffer`, with a
//!   dictionary of its statistics, which are methods of that class: `getattr(HistoryBuffer, 'min')`.
//! - Functions of torch such as `torch.relu`, among the arguments of a training, are methods of a class of
//!   torch's.
//! - A method of an object, such as a schedule's, is bound to it.
//!
//! The result is a method, which can be kept and neither called nor asked for an attribute. Every other use
//! of `getattr` is refused, because attacks reach any function through it.

use super::danger::refusal;
use super::machine::{CONSTANTS, MAX_NAME};
use super::object::{Id, Object};

/// The function by its names in Python 3 and 2: objects that exist from the start of every pickle. The stack
/// gives them to nothing but a call.
const NAMES: [(Id, &str, &str); 2] =
    [(FIRST, "builtins", "builtins.getattr"), (FIRST + 1, "__builtin__", "__builtin__.getattr")];
/// They follow the constants of the machine.
const FIRST: Id = CONSTANTS as Id;
/// The class whose methods may be named.
const CLASS: &str = "mmengine.logging.history_buffer.HistoryBuffer";
/// The statistics that mmengine registers.
const METHODS: [&str; 4] = ["min", "max", "current", "mean"];
/// The classes of torch whose methods its functions are.
const OF_TORCH: [&str; 3] =
    ["torch._C._VariableFunctionsClass", "torch._C._VariableFunctions", "torch._C.TensorBase"];

/// The objects of [`NAMES`], in order.
pub(super) fn objects<'a>() -> impl Iterator<Item = Object<'a>> {
    NAMES.iter().map(|(_, _, name)| Object::Global((*name).into()))
}

/// The object of `module.name`, if that is `getattr`.
pub(super) fn named(module: &str, name: &str) -> Option<Id> {
    NAMES.iter().find(|(_, owner, _)| *owner == module && name == "getattr").map(|(id, ..)| *id)
}

/// An object that an opcode other than a call takes from the stack or changes.
///
/// # Errors
/// The object is `getattr`.
pub(super) fn refuse(id: Id) -> Result<Id, String> {
    match NAMES.iter().find(|(getattr, ..)| *getattr == id) {
        Some((_, _, name)) => Err(refusal(name)),
        None => Ok(id),
    }
}

/// The result of the call `callee(*arguments)` if `callee` is `getattr`, else `None`.
///
/// # Errors
/// The call is of `getattr`, but asks for something else than a method that checkpoints have.
pub(super) fn call<'a>(
    objects: &[Object<'a>],
    callee: Id,
    arguments: Id,
) -> Result<Option<Object<'a>>, String> {
    let Err(refused) = refuse(callee) else { return Ok(None) };
    let Object::Tuple(items) = &objects[arguments as usize] else { return Err(refused) };
    let &[owner, method] = items.as_slice() else { return Err(refused) };
    let Some(method) = objects[method as usize].text() else { return Err(refused) };
    let owner = match &objects[owner as usize] {
        Object::Global(class) if &**class == CLASS && METHODS.contains(&method) => class,
        Object::Global(class) if OF_TORCH.contains(&&**class) && is_plain(method) => class,
        Object::Opaque(class) if is_plain(method) => class,
        _ => return Err(refused),
    };
    Ok(Some(Object::Method(format!("{owner}.{method}").into())))
}

/// Whether a name is that of a method. Attributes with two underscores lead to everything else in Python.
fn is_plain(name: &str) -> bool {
    let letters = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    !name.is_empty() && name.len() <= MAX_NAME && name.bytes().all(letters) && !name.starts_with("__")
}
