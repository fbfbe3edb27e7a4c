//! Memory for the INT8 weights of engines.
//!
//! A small batch reads every weight once, from outside of the second-level cache, and with pages of 4 KiB it
//! looks up an address for every page. With pages of 2 MiB Swin-B takes 4 % less time. Linux gives such pages
//! to aligned memory that asks for them. Most weights are smaller, so the weights of all engines share
//! chunks.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use memmap2::{MmapMut, MmapRaw};
use swinq_numerics::LINE;

use crate::memory::{LARGE_PAGE, ask_for_large_pages, give_back_pages};

/// Bytes of a chunk. Pages that hold no weights take no memory.
const CHUNK: usize = 16 << 20;

/// Memory is given back in multiples of this: whole small pages on every system.
const GIVEN_BACK: usize = 64 << 10;

/// INT8 weights. When they are dropped, their memory is given back but for the ends that are less than
/// [`GIVEN_BACK`]; the rest follows with the last weights of the chunk.
pub(crate) struct Weights {
    chunk: Arc<Chunk>,
    bytes: Range<usize>,
}

/// The chunk that the next weights are taken from, while weights in it exist.
static OPEN: Mutex<Weak<Chunk>> = Mutex::new(Weak::new());

impl Weights {
    /// `bytes` zeros, changed by `fill`, at the start of a cache line.
    ///
    /// # Panics
    /// If the system refuses the memory.
    pub(crate) fn new(bytes: usize, fill: impl FnOnce(&mut [u8])) -> Weights {
        let (chunk, bytes) = take(bytes);
        // SAFETY: `Chunk::take` gave `bytes`, which lie within the chunk, to these weights alone, of which no
        // other reference exists yet. `Chunk::new` has initialised them with zeros.
        fill(unsafe { std::slice::from_raw_parts_mut(chunk.at(bytes.start), bytes.len()) });
        Weights { chunk, bytes }
    }

    /// The weights.
    pub(crate) fn as_i8(&self) -> &[i8] {
        let Weights { chunk, bytes } = self;
        // SAFETY: `Chunk::take` gave the bytes, which lie within the chunk, to these weights alone. The chunk
        // lives as long as `self`, and nothing writes them after `Weights::new`. Any byte is a valid i8.
        unsafe { std::slice::from_raw_parts(chunk.at(bytes.start).cast_const().cast(), bytes.len()) }
    }
}

impl Drop for Weights {
    fn drop(&mut self) {
        self.chunk.give_back(self.bytes.clone());
    }
}

/// Takes `bytes` bytes, which no other weights have, from the open chunk or from a new one.
fn take(bytes: usize) -> (Arc<Chunk>, Range<usize>) {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(chunk) = open.upgrade()
        && let Some(bytes) = chunk.take(bytes)
    {
        return (chunk, bytes);
    }
    let chunk = Arc::new(Chunk::new(CHUNK.max(bytes)));
    let bytes = chunk.take(bytes).expect("a chunk is large enough for its first weights");
    *open = Arc::downgrade(&chunk);
    (chunk, bytes)
}

/// Memory for several weights.
struct Chunk {
    memory: MmapRaw,
    /// The first byte that starts a large page.
    start: usize,
    len: usize,
    /// Bytes that are taken, from `start` on.
    taken: Mutex<usize>,
}

impl Chunk {
    /// A chunk of `len` zeros.
    fn new(len: usize) -> Chunk {
        // One page more, so that a large page starts within the first.
        let memory = len.checked_add(LARGE_PAGE).and_then(|mapped| MmapMut::map_anon(mapped).ok());
        let memory = memory.unwrap_or_else(|| panic!("no memory for {len} bytes of weights"));
        ask_for_large_pages(&memory[..]);
        let memory = MmapRaw::from(memory);
        let start = memory.as_ptr().addr().next_multiple_of(LARGE_PAGE) - memory.as_ptr().addr();
        Chunk { memory, start, len, taken: Mutex::new(0) }
    }

    /// Takes `bytes` bytes, or none if fewer are left.
    fn take(&self, bytes: usize) -> Option<Range<usize>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let end = taken.checked_add(bytes).filter(|&end| end <= self.len)?;
        let from = std::mem::replace(&mut *taken, end.next_multiple_of(LINE));
        Some(from..end)
    }

    /// Gives the memory of `bytes`, which were taken and are not used any more, back to the system.
    fn give_back(&self, bytes: Range<usize>) {
        let (from, to) = (bytes.start.next_multiple_of(GIVEN_BACK), bytes.end / GIVEN_BACK * GIVEN_BACK);
        if from < to {
            // SAFETY: `from` starts a page, because the chunk starts a large page, and all bytes up to `to`
            // belong to weights that are dropped: nothing reads them, and `Chunk::take` gives them to nobody
            // else.
            unsafe { give_back_pages(&self.memory, self.start + from..self.start + to) };
        }
    }

    /// The address of byte `byte`.
    fn at(&self, byte: usize) -> *mut u8 {
        self.memory.as_mut_ptr().wrapping_add(self.start + byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_share_chunks_and_keep_their_values() {
        let sizes = [1, 64, 100, 0, 5 << 20, 9 << 20, CHUNK + 1, 3];
        let weights: Vec<Weights> = (1..)
            .zip(sizes)
            .map(|(value, size)| {
                Weights::new(size, |bytes| {
                    assert!(bytes.iter().all(|&byte| byte == 0), "zeros");
                    bytes.fill(value);
                })
            })
            .collect();
        for ((value, size), weights) in (1..).zip(sizes).zip(&weights) {
            assert_eq!(weights.as_i8().len(), size);
            assert!(weights.as_i8().iter().all(|&w| w == value), "{size} bytes");
            assert!(weights.as_i8().as_ptr().addr().is_multiple_of(LINE));
        }
        // Other tests may open a chunk between two of these weights, but hardly between all.
        let shared = weights.windows(2).any(|pair| Arc::ptr_eq(&pair[0].chunk, &pair[1].chunk));
        assert!(shared, "no two weights share a chunk");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn weights_that_are_dropped_give_their_memory_back_and_leave_others_alone() {
        let chunk = Arc::new(Chunk::new(3 * GIVEN_BACK));
        let take = |len| {
            let bytes = chunk.take(len).unwrap();
            // SAFETY: as in `Weights::new`.
            unsafe { std::slice::from_raw_parts_mut(chunk.at(bytes.start), len) }.fill(7);
            Weights { chunk: Arc::clone(&chunk), bytes }
        };
        let (first, second, third) = (take(100), take(2 * GIVEN_BACK), take(100));
        let place = second.bytes.clone();
        drop(second);
        assert!([first, third].iter().all(|weights| weights.as_i8() == [7; 100]));
        // SAFETY: the chunk lives, and its bytes are initialised.
        let left = unsafe { std::slice::from_raw_parts(chunk.at(place.start), place.len()) };
        let zeros = left.iter().filter(|&&byte| byte == 0).count();
        assert_eq!(zeros, GIVEN_BACK, "the one multiple of `GIVEN_BACK` within them");
    }

    #[test]
    fn a_chunk_gives_each_byte_once_and_goes_with_its_last_weights() {
        let chunk = Arc::new(Chunk::new(200));
        assert!(chunk.at(0).addr().is_multiple_of(LARGE_PAGE));
        assert_eq!(chunk.take(65), Some(0..65));
        assert_eq!(chunk.take(73), None);
        assert_eq!(chunk.take(72), Some(128..200));
        assert_eq!((chunk.take(1), chunk.take(usize::MAX)), (None, None));
        let watched = Arc::downgrade(&chunk);
        let weights = Weights { chunk, bytes: 0..65 };
        assert!(watched.upgrade().is_some());
        drop(weights);
        assert!(watched.upgrade().is_none());
    }
}
