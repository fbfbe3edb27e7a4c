//! Tests of figures, results, text and reports. One program, because each would link everything again.

mod backbones;
mod common;
mod figures;
mod html;
mod program;
mod results;
mod text;
mod tuning;
