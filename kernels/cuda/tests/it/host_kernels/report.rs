//! `report.cu`: the first flag that is set, for the host.

use swinq_cuda::ops::report::DeviceReport;

use super::compiler::Compiler;
use super::launch::{Launch, words};

/// The flags and the word after a launch.
fn outcome(flags: &[u32], word: u32, compiler: &Compiler) -> (Vec<u32>, u32) {
    let launch = Launch::new(&DeviceReport::program(), DeviceReport::launch());
    let launch = launch.activation(flags).activation(&[word]).int(flags.len());
    let mut buffers = launch.run(compiler);
    let word = words(&buffers.pop().unwrap())[0];
    (words(&buffers.pop().unwrap()), word)
}

#[test]
fn the_first_flag_is_told_once_and_all_are_reset() {
    let Some(compiler) = Compiler::get() else { return };
    for count in [1, 5, 255, 256, 257, 700] {
        let clear = vec![0; count];
        assert_eq!(outcome(&clear, 0, compiler), (clear.clone(), 0), "no flag of {count}");
        for first in [0, count / 3, count - 1] {
            let mut flags = clear.clone();
            flags[first] = 1;
            flags[count - 1] = 7;
            let told = first as u32 + 1;
            assert_eq!(outcome(&flags, 0, compiler), (clear.clone(), told), "flag {first} of {count}");
            // What the host has not taken yet stays.
            assert_eq!(outcome(&flags, 3, compiler), (clear.clone(), 3), "flag {first} of {count}");
        }
    }
}
