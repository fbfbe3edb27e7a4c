//! The differences between operating systems, behind one module for each concern:
//!
//! | module | concern |
//! | --- | --- |
//! | [`files`] | replacing a file that others read, files in use by one process, reading at an offset |
//! | [`machine`] | memory, processor, load and name of the machine |
//!
//! Memory pages are a concern of `swinq-kernels`, libraries and the cache of CUDA that of `swinq-cuda`, and
//! signals that of the program.

pub mod files;
pub mod machine;
