//! Random numbers that are the same in every run.

/// SplitMix64 (Steele et al., 2014), starting from the state given.
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    /// The next 64 bits.
    #[expect(clippy::should_implement_trait, reason = "the numbers have no end")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Uniform in [-1, 1).
    pub fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// Uniform in (0, 1), neither 0 nor 1.
    pub fn unit(&mut self) -> f64 {
        ((self.next() >> 12) as f64 + 0.5) / (1_u64 << 52) as f64
    }

    /// `count` values, uniform in [-`amplitude`, `amplitude`).
    pub fn floats(&mut self, count: usize, amplitude: f32) -> Vec<f32> {
        (0..count).map(|_| self.float() * amplitude).collect()
    }

    /// `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}

/// Marsaglia's xorshift generator (2003) with shifts 13, 7 and 17. The images of noise are drawn from it.
#[derive(Clone, Debug)]
pub struct XorShift(pub(crate) u64);

impl XorShift {
    /// The generator for `seed`, which must be small.
    pub fn new(seed: u64) -> XorShift {
        XorShift(seed * 0x9e37_79b9 + 0x1234_5678_9abc)
    }

    /// The next 64 bits.
    #[expect(clippy::should_implement_trait, reason = "the numbers have no end")]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| (self.next() >> 40) as u8).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_splitmix64() {
        // The first outputs for the seed 1234567, as published with Vigna's implementation.
        let mut rng = Rng(1_234_567);
        assert_eq!([rng.next(), rng.next()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[test]
    fn numbers_stay_in_their_ranges() {
        let mut rng = Rng(3);
        let floats = rng.floats(10_000, 2.0);
        assert!(floats.iter().all(|x| (-2.0..2.0).contains(x)));
        let mean = floats.iter().sum::<f32>() / 1e4;
        assert!(mean.abs() < 0.05, "{mean}");
        assert!((0..10_000).map(|_| rng.unit()).all(|x| 0.0 < x && x < 1.0));
    }
}
