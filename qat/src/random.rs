//! Random numbers from a key: nothing to store, nothing to advance.

/// A SplitMix64 generator (Steele, Lea and Flood, OOPSLA 2014) whose state is hashed from a key, such as a seed and a
/// position.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of `key`.
    pub fn new(key: &[u64]) -> Random {
        let state = key.iter().fold(0x9e37_79b9_7f4a_7c15, |state, &part| Random(state ^ part).next());
        Random(state)
    }

    /// The next 64 bits.
    #[expect(clippy::should_implement_trait, reason = "the stream has no end")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1), 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}
