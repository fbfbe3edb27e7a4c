//! Operands, the same on every machine.

use crate::shape::Shape;

/// Pseudorandom numbers.
pub struct Noise(u64);

impl Noise {
    /// The numbers of `seed`.
    pub fn new(seed: u64) -> Noise {
        Noise(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    }

    /// Values uniform in [-1, 1).
    pub fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| (self.next() >> 8) as f32 / 8_388_608.0 - 1.0).collect()
    }

    /// Codes uniform in -127..=127.
    pub fn codes(&mut self, count: usize) -> Vec<i8> {
        (0..count).map(|_| (((self.next() * 255) >> 32) as i16 - 127) as i8).collect()
    }
}

/// Operands of a product in f32 and in INT8, row-major without padding.
pub struct Operands {
    /// The sizes.
    pub shape: Shape,
    /// Activations `[m, k]`, uniform in [-1, 1).
    pub a: Vec<f32>,
    /// The weight `[n, k]`, distributed like the activations.
    pub w: Vec<f32>,
    /// Codes of activations `[m, k]`, uniform in -127..=127.
    pub a_codes: Vec<i8>,
    /// Codes of the weight `[n, k]`, uniform in -127..=127.
    pub w_codes: Vec<i8>,
}

impl Operands {
    /// Operands for `shape`.
    pub fn new(shape: Shape) -> Operands {
        let Shape { m, n, k } = shape;
        let mut noise = Noise::new((m * 31 + n) as u64 * 37 + k as u64);
        let (a, w) = (noise.floats(m * k), noise.floats(n * k));
        Operands { shape, a, w, a_codes: noise.codes(m * k), w_codes: noise.codes(n * k) }
    }

    /// The factor that turns an accumulator into an INT8 code: four standard deviations of an accumulator
    /// become 127.
    pub fn code_factor(&self) -> f32 {
        let deviation = 127.0 * 127.0 / 3.0 * (self.shape.k as f32).sqrt();
        127.0 / (4.0 * deviation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_even_and_repeatable() {
        let floats = Noise::new(5).floats(10_000);
        assert_eq!(floats, Noise::new(5).floats(10_000));
        assert!(floats.iter().all(|x| (-1.0..1.0).contains(x)));
        let mean = floats.iter().sum::<f32>() / 1e4;
        let square = floats.iter().map(|x| x * x).sum::<f32>() / 1e4;
        assert!(mean.abs() < 0.02 && (square - 1.0 / 3.0).abs() < 0.01, "{mean} {square}");
        let codes = Noise::new(6).codes(10_000);
        assert_eq!((codes.iter().min(), codes.iter().max()), (Some(&-127), Some(&127)));
    }

    #[test]
    fn factors_use_the_range() {
        let operands = Operands::new(Shape { m: 2, n: 3, k: 256 });
        assert_eq!((operands.a.len(), operands.w_codes.len()), (512, 768));
        let deviation = 5376.333 * 16.0 * operands.code_factor();
        assert!((deviation - 127.0 / 4.0).abs() < 1e-3, "{deviation}");
    }
}
