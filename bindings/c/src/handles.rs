//! The table of live objects.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::{Arc, PoisonError, RwLock};

use swinq::{Engine, Model};

use crate::status::{Failure, Status};

/// An object that a handle names.
pub enum Object {
    /// A model.
    Model(Model),
    /// An engine.
    Engine(Arc<Served>),
}

/// An engine with the names of its outputs as C reads them.
pub struct Served {
    /// The engine.
    pub engine: Engine,
    /// The names, in the order of [`Engine::outputs`].
    pub names: Vec<CString>,
}

impl Served {
    /// `engine`, with the names.
    pub fn new(engine: Engine) -> Served {
        let name = |name: &str| CString::new(name).expect("the name of an output has no zero byte");
        let names = engine.outputs().iter().map(|output| name(&output.name)).collect();
        Served { engine, names }
    }
}

struct Table {
    live: BTreeMap<usize, Object>,
    /// The last number in use. Numbers are never used again.
    last: usize,
}

static TABLE: RwLock<Table> = RwLock::new(Table { live: BTreeMap::new(), last: 0 });

/// The distance of two handles. They are multiples of it, as pointers to a structure would be.
const STEP: usize = 16;

/// Adds an object and returns its handle, which is not 0.
pub fn insert(object: Object) -> usize {
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    table.last += STEP;
    let handle = table.last;
    table.live.insert(handle, object);
    handle
}

/// The model that `handle` names.
///
/// # Errors
/// [`Status::Null`] for 0, [`Status::Handle`] for a handle that is not that of a live model.
pub fn model(handle: usize) -> Result<Model, Failure> {
    find(handle, "model", |object| match object {
        Object::Model(model) => Some(model.clone()),
        Object::Engine(_) => None,
    })
}

/// The engine that `handle` names.
///
/// # Errors
/// As for [`model`].
pub fn engine(handle: usize) -> Result<Arc<Served>, Failure> {
    find(handle, "engine", |object| match object {
        Object::Engine(engine) => Some(Arc::clone(engine)),
        Object::Model(_) => None,
    })
}

fn find<T>(handle: usize, kind: &str, of_kind: impl Fn(&Object) -> Option<T>) -> Result<T, Failure> {
    if handle == 0 {
        return Err(Failure::null(kind));
    }
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    table.live.get(&handle).and_then(of_kind).ok_or_else(|| unknown(kind))
}

/// Removes the object that `handle` names, if `of_kind` holds for it. The handle 0 names no object, and
/// removing it does nothing.
///
/// # Errors
/// [`Status::Handle`] for a handle that is not that of a live object of this kind.
pub fn remove(handle: usize, kind: &str, of_kind: impl Fn(&Object) -> bool) -> Result<(), Failure> {
    if handle == 0 {
        return Ok(());
    }
    let removed = {
        let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
        match table.live.get(&handle).is_some_and(of_kind) {
            true => table.live.remove(&handle),
            false => None,
        }
    };
    // The object is dropped here, after the table is unlocked, because an engine ends its threads.
    removed.map(drop).ok_or_else(|| unknown(kind))
}

fn unknown(kind: &str) -> Failure {
    let problem =
        format!("{kind}: the handle is not that of a live {kind}; it was freed, or is of another kind");
    Failure::new(Status::Handle, problem)
}
