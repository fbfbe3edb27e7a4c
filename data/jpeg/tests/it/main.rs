//! Tests of the JPEG decoder. One program, because each would link everything again.

mod damage;
mod pillow;
