//! Tests of the library, the program and the documents. One program, because each would link everything again.

mod command_line;
mod commands;
mod common;
mod cuda;
mod cuda_cli;
mod cuda_images;
mod documents;
mod engine_against_simulation;
mod examples;
mod export;
mod float_devices;
mod fuzz_corpora;
mod ladder;
mod library;
mod manners;
mod predict;
mod qat;
mod real_data;
mod reconstructed;
mod refined;
mod refined_block;
mod refusals;
mod second_version;
mod sensitivity;
mod shards;
mod tune;
