//! Checks that mistakes in kernels are detected and reported.

use super::compiler::Compiler;
use super::launch::Launch;
use super::primitives::{dependent, launch, program};

/// Runs a kernel of `primitives.cu` with mistake `fault` and checks the error message.
fn expect(entry: &'static str, fault: i64, threads: u32, said: &[&str]) {
    let Some(compiler) = Compiler::get() else { return };
    let message = build(entry, fault, threads).failure(compiler);
    for part in said {
        assert!(message.contains(part), "fault {fault}: no {part:?} in\n{message}");
    }
}

/// A launch whose output has one word per thread. The shared memory has one more word, except for fault 9.
fn build(entry: &'static str, fault: i64, threads: u32) -> Launch {
    let program = program(entry, threads).define("FAULT", fault);
    let outputs = if entry == "mistake" { 4 * threads as usize } else { 32768 };
    launch(&program, 2, 1024, &[3; 1024], &vec![0; outputs])
}

#[test]
fn without_a_mistake_nothing_is_found() {
    let Some(compiler) = Compiler::get() else { return };
    build("mistake", 0, 64).run(compiler);
}

#[test]
fn races_are_found() {
    for (entry, fault, threads) in [("mistake", 3, 64), ("mistake", 4, 64), ("mistake", 14, 64)] {
        expect(entry, fault, threads, &[entry, "race or unwritten memory"]);
    }
    expect("matrix", 1, 32, &["matrix", "race or unwritten memory"]);
}

#[test]
fn copies_that_have_not_landed_are_found() {
    expect("copies", 1, 32, &["copies", "race or unwritten memory"]);
    expect("copies", 2, 32, &["copies", "race or unwritten memory"]);
    expect("mistake", 15, 64, &["mistake", "the destination of a copy under way was written"]);
}

#[test]
fn deadlocks_are_found() {
    let absent = "thread 32: deadlock: at shuffle_xor (1), while thread 37 is at the end (0)";
    expect("mistake", 5, 64, &["mistake, block (0, 0, 0), ", absent]);
    expect("mistake", 6, 64, &["thread 0: deadlock: at block_sync (0), while thread 32 is at the end (0)"]);
    expect("mistake", 7, 64, &["deadlock: at shuffle_xor (1), while thread 16 is at shuffle_xor (2)"]);
    expect("shuffle", 0, 48, &["shuffle_xor in a warp of 16 lanes"]);
}

#[test]
fn memory_that_nobody_wrote_is_found() {
    expect("mistake", 8, 64, &["race or unwritten memory"]);
}

#[test]
fn accesses_outside_memory_are_found() {
    expect("mistake", 9, 1023, &["AddressSanitizer", "heap-buffer-overflow"]);
    expect("mistake", 10, 64, &["AddressSanitizer", "heap-buffer-overflow", "primitives.cu"]);
    expect("mistake", 13, 1024, &["copy_async_16: 16 bytes at offset 4096 of a shared memory of 4096"]);
}

#[test]
fn misaligned_copies_are_found() {
    expect("mistake", 11, 64, &["copy_async_16: the source", "is not aligned"]);
    expect("mistake", 12, 64, &["copy_async_16: offset 8 of shared memory is not aligned to 16"]);
}

#[test]
fn memory_of_earlier_launches_is_guarded_until_the_wait() {
    let Some(compiler) = Compiler::get() else { return };
    let message = dependent(1).failure(compiler);
    assert!(message.contains("use-after-poison") && message.contains("primitives.cu"), "{message}");
    let message = dependent(2).failure(compiler);
    assert!(message.contains("no thread waits for the launches before"), "{message}");
}
