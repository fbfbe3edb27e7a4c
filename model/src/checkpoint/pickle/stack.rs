//! The stack of the pickle machine, with its marks.

use super::getattr;
use super::object::Id;

/// Most objects, stack entries, marks and memo entries of one pickle, each; ample for large training
/// checkpoints.
pub(super) const MAX_ITEMS: usize = 1 << 20;

/// A stack of objects. A mark separates the entries above it from those below: no pop crosses an open mark.
///
/// Python's `getattr` may be pushed and remembered. It is taken by [`callee`](Stack::callee) only.
#[derive(Default)]
pub(super) struct Stack {
    ids: Vec<Id>,
    /// Height of the stack at each open mark.
    marks: Vec<usize>,
}

impl Stack {
    /// Pushes an object.
    pub(super) fn push(&mut self, id: Id) -> Result<(), String> {
        if self.ids.len() >= MAX_ITEMS {
            return Err(too_large());
        }
        self.ids.push(id);
        Ok(())
    }

    /// The topmost object, to be remembered.
    pub(super) fn peek(&self) -> Result<Id, String> {
        self.ids.last().copied().ok_or_else(underflow)
    }

    /// The topmost object, to be changed or repeated.
    pub(super) fn top(&self) -> Result<Id, String> {
        self.peek().and_then(getattr::refuse)
    }

    /// Takes the topmost object.
    pub(super) fn pop(&mut self) -> Result<Id, String> {
        self.callee().and_then(getattr::refuse)
    }

    /// Takes the last object of a pickle.
    pub(super) fn finish(mut self) -> Result<Id, String> {
        let root = self.pop()?;
        self.ids.into_iter().try_for_each(|id| getattr::refuse(id).map(drop))?;
        Ok(root)
    }

    /// Takes the topmost object, to be called.
    pub(super) fn callee(&mut self) -> Result<Id, String> {
        if self.marks.last() == Some(&self.ids.len()) {
            return Err(underflow());
        }
        self.ids.pop().ok_or_else(underflow)
    }

    /// Closes the last mark and takes the entries above it.
    pub(super) fn pop_mark(&mut self) -> Result<Vec<Id>, String> {
        let mark = self.marks.pop().ok_or_else(underflow)?;
        self.split_off(mark)
    }

    /// Opens a mark.
    pub(super) fn mark(&mut self) -> Result<(), String> {
        if self.marks.len() >= MAX_ITEMS {
            return Err(too_large());
        }
        self.marks.push(self.ids.len());
        Ok(())
    }

    /// Takes the last `count` entries.
    pub(super) fn pop_last(&mut self, count: usize) -> Result<Vec<Id>, String> {
        let start = self.ids.len().checked_sub(count).ok_or_else(underflow)?;
        if self.marks.last().is_some_and(|&mark| mark > start) {
            return Err(underflow());
        }
        self.split_off(start)
    }

    fn split_off(&mut self, start: usize) -> Result<Vec<Id>, String> {
        let taken = self.ids.split_off(start);
        taken.iter().try_for_each(|&id| getattr::refuse(id).map(drop))?;
        Ok(taken)
    }
}

fn underflow() -> String {
    "the pickle takes more from its stack than it put there: the file is damaged".to_owned()
}

/// The error for a pickle that exceeds [`MAX_ITEMS`].
pub(super) fn too_large() -> String {
    format!("the pickle has more than {MAX_ITEMS} objects, which no checkpoint of a Swin has")
}
