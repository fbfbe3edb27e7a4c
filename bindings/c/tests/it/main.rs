//! Tests of the C interface. One program, because each would link everything again.

mod c_programs;
mod header;
