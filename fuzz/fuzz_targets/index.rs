#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    swinq_fuzz::index(data);
});
