//! Tests of calibration and its parts: observers, calibrators, reconstruction, rounding. They are one
//! program, because each program would link everything again.

mod backbones;
mod calibration;
mod calibrators;
mod channels;
mod common;
mod merging;
mod parts;
mod reconstruction;
mod residual;
mod rounding;
mod weights;
