//! The C interface of swinq. `include/swinq.h` declares it; cbindgen writes that file from this crate.
//!
//! | module | contents |
//! | --- | --- |
//! | `exports` | the functions and structures of the interface: `model`, `image`, `engine`, `tensor`, `run` |
//! | `memory` | reads and writes through the caller's pointers |
//! | `handles` | the table of live models and engines |
//! | `status` | status codes, the message of the last error, and the barrier for panics |
//!
//! A handle is a number in the shape of a pointer, and is never dereferenced. It is looked up in a table of
//! live objects, and a number is never used twice. A handle that was freed, is of another kind or was never
//! made is therefore an error code. A call holds a reference to its object, so that another thread may free
//! the handle meanwhile.

mod exports;
mod handles;
mod memory;
mod status;

pub use exports::*;
pub use status::Status;
