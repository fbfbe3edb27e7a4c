//! The property of the target `job`. It is no module of the library, so that other targets do not link
//! training.

use swinq_qat::job::Job;

/// A training job in YAML. An accepted one is written and read again unchanged.
pub fn job(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let Ok(job) = Job::from_yaml("fuzz.yaml", text, &[]) else { return false };
    assert_eq!(Job::from_yaml("again.yaml", &job.to_string(), &[]).expect("a written job can be read"), job);
    true
}
