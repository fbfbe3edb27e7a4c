#![no_main]

#[path = "../src/job.rs"]
mod job;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    job::job(data);
});
