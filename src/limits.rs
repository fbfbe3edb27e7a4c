//! Limits of arguments, so that an absurd value gives an error instead of an abort.

use swinq_int8_runtime::MAX_THREADS;

use crate::Error;

/// Refuses batches of no image.
pub(crate) fn check_batch_size(images: usize) -> Result<(), Error> {
    match images {
        0 => Err(Error::argument("batch_size", "is 0; it must be at least 1")),
        _ => Ok(()),
    }
}

/// Returns `threads` if it is within the limit.
pub(crate) fn check_threads(threads: usize) -> Result<usize, Error> {
    if threads > MAX_THREADS {
        return Err(Error::argument("threads", format!("{threads} is more than the limit of {MAX_THREADS}")));
    }
    Ok(threads)
}
