//! One file per command.

pub mod bench;
pub mod calibrate;
pub mod compare;
pub mod doctor;
pub mod eval;
pub mod export;
pub mod features;
pub mod inspect;
pub mod ladder;
pub mod manual;
pub mod merge;
pub mod predict;
pub mod qat;
pub mod quickstart;
pub mod sensitivity;
pub mod tune;
