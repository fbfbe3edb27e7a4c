//! A reader of Python pickles that builds plain data and executes nothing.

mod array;
mod danger;
mod getattr;
mod machine;
mod object;
mod reader;
mod rebuild;
mod stack;

pub(crate) use machine::read;
pub(crate) use object::{Id, Object, Pickle, StorageRef};

#[cfg(test)]
mod tests;
