//! Random numbers that are equal on every machine, in any order of use and with any number of threads.

/// SplitMix64's increment: 2^64 divided by the golden ratio, rounded to an odd number.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// The generator SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA
/// 2014). Draw `i` is `mix(start + i * GAMMA)`: it depends on the seed and on `i` alone.
#[derive(Clone, Debug)]
pub struct Draws(u64);

impl Draws {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Draws {
        Draws(seed)
    }

    /// The generator of a key of several words. Each word goes through the generator's mix, so keys that
    /// differ in one bit give unrelated draws.
    pub fn keyed(key: &[u64]) -> Draws {
        Draws(key.iter().fold(0, |state: u64, &word| mix(state.wrapping_add(GAMMA) ^ word)))
    }

    /// The next 64 bits.
    #[expect(clippy::should_implement_trait, reason = "the draws have no end")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mix(self.0)
    }

    /// Uniform in `0..bound`. Draws from the incomplete last interval are rejected, so there is no bias.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = bound as u64;
        let limit = u64::MAX - u64::MAX % bound;
        loop {
            let value = self.next();
            if value < limit {
                return (value % bound) as usize;
            }
        }
    }

    /// Uniform in `0..1`, a multiple of 2^-53.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Uniform between `low` and `high`.
    pub fn between(&mut self, [low, high]: [f64; 2]) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Moves a uniform random sample of `count` items to the front, in random order (Fisher and Yates).
    pub fn shuffle_front<T>(&mut self, items: &mut [T], count: usize) {
        for i in 0..count.min(items.len().saturating_sub(1)) {
            let j = i + self.below(items.len() - i);
            items.swap(i, j);
        }
    }

    /// Puts `items` in random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        let count = items.len();
        self.shuffle_front(items, count);
    }
}

/// SplitMix64's output function, a bijection.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_first_draw_is_the_published_one() {
        assert_eq!(Draws::new(0).next(), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn keys_give_unrelated_draws() {
        let key = |i: u64| [i / 100, i / 10 % 10, i % 10];
        let first: BTreeSet<u64> = (0..1000).map(|i| Draws::keyed(&key(i)).next()).collect();
        assert_eq!(first.len(), 1000);
        // The mean of 1000 uniform numbers has a standard deviation of 0.0091; five deviations are allowed.
        let mean = (0..1000).map(|i| Draws::keyed(&key(i)).unit()).sum::<f64>() / 1000.0;
        assert!((mean - 0.5).abs() < 0.046, "{mean}");
        // On average 32 of 64 bits differ between two draws; the mean's standard deviation is 0.13.
        let differing = |i| (Draws::keyed(&key(i)).next() ^ Draws::keyed(&key(i + 1)).next()).count_ones();
        let mean = (0..999).map(|i| f64::from(differing(i))).sum::<f64>() / 999.0;
        assert!((mean - 32.0).abs() < 0.7, "{mean}");
        assert_ne!(Draws::keyed(&[0]).next(), Draws::keyed(&[0, 0]).next());
    }

    #[test]
    fn numbers_lie_in_their_range() {
        let mut draws = Draws::new(7);
        for _ in 0..1000 {
            let value = draws.between([-0.25, 0.5]);
            assert!((-0.25..0.5).contains(&value), "{value}");
        }
        assert_eq!(draws.between([2.0, 2.0]), 2.0);
    }
}
