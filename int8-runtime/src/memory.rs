//! The memory that a process may still take, and the images that fit into that of a batch.

use swinq_model::Size;
use swinq_system::machine;

/// The most images of `size` at a time, for a network of images of the size `own` that runs up to `max_batch`
/// of these. A batch of larger images takes no more memory.
pub(crate) fn images_at_a_time(max_batch: usize, own: Size, size: Size) -> usize {
    (max_batch.saturating_mul(own.area()) / size.area()).clamp(1, max_batch)
}

/// Bytes of memory that this process could take now; `None` where that is not known.
pub(crate) fn available_memory() -> Option<usize> {
    machine::available_memory().and_then(|bytes| bytes.try_into().ok())
}

/// Bytes of the machine's memory, or of what is permitted to this process; `None` where neither is known.
pub(crate) fn machine_memory() -> Option<usize> {
    machine::permitted_memory().and_then(|bytes| bytes.try_into().ok())
}
