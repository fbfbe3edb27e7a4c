//! The one call of Python's `getattr` that checkpoints contain.
//!
//! The training checkpoints of mmengine keep the history of each logged value in a `HistoryBuffer`, with a dictionary of
//! its statistics, which are methods of that class. Before protocol 4 Python's pickle module writes a method as a call:
//! `getattr(HistoryBuffer, 'min')`. Such a call becomes an opaque object, with the name of the class. Every other use of
//! `getattr` is refused, because attacks reach any function through it.

use super::danger::refusal;
use super::machine::CONSTANTS;
use super::object::{Id, Object};

/// The function by its names in Python 3 and 2: objects that exist from the start of every pickle. The stack gives them to
/// nothing but a call.
const NAMES: [(Id, &str, &str); 2] =
    [(FIRST, "builtins", "builtins.getattr"), (FIRST + 1, "__builtin__", "__builtin__.getattr")];
/// They follow the constants of the machine.
const FIRST: Id = CONSTANTS as Id;
/// The class whose methods may be named.
const CLASS: &str = "mmengine.logging.history_buffer.HistoryBuffer";
/// The statistics that mmengine registers.
const METHODS: [&str; 4] = ["min", "max", "current", "mean"];

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
/// The call is of `getattr`, but asks for something else than a statistic of mmengine.
pub(super) fn call<'a>(
    objects: &[Object<'a>],
    callee: Id,
    arguments: Id,
) -> Result<Option<Object<'a>>, String> {
    let Err(refused) = refuse(callee) else { return Ok(None) };
    let Object::Tuple(items) = &objects[arguments as usize] else { return Err(refused) };
    let &[class, method] = items.as_slice() else { return Err(refused) };
    match (&objects[class as usize], objects[method as usize].text()) {
        (Object::Global(class), Some(method)) if &**class == CLASS && METHODS.contains(&method) => {
            Ok(Some(Object::Opaque(class.clone())))
        }
        _ => Err(refused),
    }
}
