//! The memory that all decoders of the process share.
//!
//! Every decoder states what it will allocate after it has read the header, and waits for its share. Images
//! are admitted in the order in which they ask, so that a large one is not passed by small ones forever. An
//! image beyond the whole budget is admitted alone.

use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use swinq_system::machine::permitted_memory;

/// Budget if the system does not say how much memory it has.
const DEFAULT: u64 = 2 << 30;

/// Shares of a number of bytes.
#[derive(Debug)]
struct Budget {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    limit: u64,
    /// Bytes of the permits that exist.
    used: u64,
    /// Number of requests so far.
    requests: u64,
    /// Number of requests that were admitted.
    admitted: u64,
}

/// A share of the budget, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    budget: &'static Budget,
    bytes: u64,
}

impl Budget {
    fn new(limit: u64) -> Budget {
        let state = State { limit, used: 0, requests: 0, admitted: 0 };
        Budget { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Locks the state, which a panic of another thread cannot leave inconsistent.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `bytes` fit beside the shares that exist, or until there are none.
    fn acquire(&'static self, bytes: u64) -> Permit {
        let mut state = self.lock();
        let turn = state.requests;
        state.requests += 1;
        let waits = |state: &mut State| {
            let fits = state.used == 0 || state.used.saturating_add(bytes) <= state.limit;
            state.admitted != turn || !fits
        };
        state = self.changed.wait_while(state, waits).unwrap_or_else(PoisonError::into_inner);
        state.admitted += 1;
        state.used = state.used.saturating_add(bytes);
        drop(state);
        self.changed.notify_all();
        Permit { budget: self, bytes }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.budget.lock().used -= self.bytes;
        self.budget.changed.notify_all();
    }
}

/// The budget of this process.
fn shared() -> &'static Budget {
    static SHARED: OnceLock<Budget> = OnceLock::new();
    SHARED.get_or_init(|| Budget::new(permitted_memory().map_or(DEFAULT, |bytes| bytes / 4)))
}

/// Waits for `bytes` of the process's budget.
pub(crate) fn acquire(bytes: u64) -> Permit {
    shared().acquire(bytes)
}

/// Sets the bytes that all decoders of the process may use together, beyond the files themselves. The default
/// is a quarter of the system's memory, or of the control group's if that is less. An image that needs more
/// is decoded while no other is.
pub fn set_decode_memory(bytes: u64) {
    shared().lock().limit = bytes;
    shared().changed.notify_all();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn leaked(limit: u64) -> &'static Budget {
        Box::leak(Box::new(Budget::new(limit)))
    }

    #[test]
    fn shares_never_exceed_the_limit_unless_alone() {
        let budget = leaked(100);
        let (live, count) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (live, count) = (&live, &count);
                scope.spawn(move || {
                    for round in 0..200 {
                        let bytes =
                            if (thread + round) % 37 == 0 { 150 } else { 1 + (7 * round + thread) % 60 };
                        let permit = budget.acquire(bytes);
                        let others = live.fetch_add(bytes, Ordering::SeqCst);
                        assert!(others == 0 || others + bytes <= 100, "{others} and {bytes}");
                        std::thread::yield_now();
                        live.fetch_sub(bytes, Ordering::SeqCst);
                        drop(permit);
                        count.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 1600);
        assert_eq!(budget.lock().used, 0);
    }

    #[test]
    fn a_large_image_is_not_passed_by_later_small_ones() {
        let budget = leaked(100);
        let first = budget.acquire(60);
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for (position, bytes) in [(0, 95), (1, 10)] {
                let order = &order;
                scope.spawn(move || {
                    let permit = budget.acquire(bytes);
                    order.lock().unwrap().push(bytes);
                    drop(permit);
                });
                while budget.lock().requests != position + 2 {
                    std::thread::yield_now();
                }
            }
            drop(first);
        });
        assert_eq!(order.into_inner().unwrap(), [95, 10]);
    }

    /// Every decoder asks for at least the pixels that it returns, for every kind of file.
    #[test]
    fn permits_cover_the_pixels() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let mut formats: Vec<String> = Vec::new();
        let mut images = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "tsv") {
                continue;
            }
            let bytes = std::fs::read(&path).unwrap();
            let held = crate::decode::decode_held(&bytes, swinq_model::Orientation::Exif).unwrap();
            let (width, height) = (held.image.width as u64, held.image.height as u64);
            let asked = held.permit.bytes;
            let file = path.display();
            assert!(asked >= 3 * width * height, "{file}: {asked} bytes for {width} x {height} pixels");
            formats.push(format!("{:?}", crate::decode::sniff(&bytes).unwrap()));
            images += 1;
        }
        formats.sort();
        formats.dedup();
        assert_eq!(formats, ["Bmp", "Jpeg", "Netpbm", "Png", "Tiff", "WebP"]);
        assert!(images > 70, "{images} images");
    }
}
