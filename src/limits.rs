//! Limits of arguments, so that an absurd one is an error and not an abort.

use swinq_int8_runtime::MAX_THREADS;

use crate::Error;

/// `threads`, if the system can be asked for so many.
pub(crate) fn check_threads(threads: usize) -> Result<usize, Error> {
    if threads > MAX_THREADS {
        return Err(Error::argument("threads", format!("{threads} is more than the limit of {MAX_THREADS}")));
    }
    Ok(threads)
}
