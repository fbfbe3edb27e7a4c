//! Bicubic interpolation of a grid, with the weights and the places of PyTorch's
//! `interpolate(mode="bicubic")`, `align_corners=False`.
//!
//! Keys, "Cubic Convolution Interpolation for Digital Image Processing", IEEE Transactions on Acoustics,
//! Speech, and Signal Processing, 1981, with the parameter -3/4.

use crate::Size;

/// The slope of the weights at a distance of 1.
const A: f64 = -0.75;

/// The four places that give a value on one axis, and their weights.
struct Taps {
    places: [usize; 4],
    weights: [f64; 4],
}

impl Taps {
    /// Those of place `at` of `to` places on an axis that has `from`.
    fn new(from: usize, to: usize, at: usize) -> Taps {
        // In f32, as PyTorch computes it.
        let scale = from as f32 / to as f32;
        let place = scale * (at as f32 + 0.5) - 0.5;
        let (first, t) = (place.floor(), f64::from(place - place.floor()));
        let tap = |offset: isize| (first as isize + offset).clamp(0, from as isize - 1) as usize;
        Taps {
            places: [tap(-1), tap(0), tap(1), tap(2)],
            weights: [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)],
        }
    }

    /// The weighted sum of the values at the four places, in their order.
    fn sum(&self, value: impl Fn(usize) -> f64) -> f64 {
        let [a, b, c, d] = [0, 1, 2, 3].map(|tap| self.weights[tap] * value(self.places[tap]));
        a + b + c + d
    }
}

/// The weight at a distance of at most 1.
fn near(x: f64) -> f64 {
    ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
}

/// The weight at a distance of 1 to 2.
fn far(x: f64) -> f64 {
    ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A
}

/// `table`, a row of values for each place of the grid `from`, interpolated to the grid `to`: first the
/// columns of the grid, then its rows. Places beyond an edge are those of the edge. Sums are f64, and the
/// result is rounded to f32 once.
///
/// # Panics
/// If `table` has no whole rows, or `from` is empty.
pub fn resize_bicubic(table: &[f32], from: Size, to: Size) -> Vec<f32> {
    assert!(from.area() > 0 && table.len().is_multiple_of(from.area()), "a row for each of {from} places");
    let width = table.len() / from.area();
    let across: Vec<Taps> = (0..to.width).map(|at| Taps::new(from.width, to.width, at)).collect();
    let mut columns = Vec::with_capacity(from.height * to.width * width);
    for row in table.chunks_exact(from.width * width) {
        for taps in &across {
            columns.extend((0..width).map(|c| taps.sum(|place| f64::from(row[place * width + c]))));
        }
    }
    let line = to.width * width;
    let mut out = Vec::with_capacity(to.height * line);
    for at in 0..to.height {
        let taps = Taps::new(from.height, to.height, at);
        out.extend((0..line).map(|c| taps.sum(|place| columns[place * line + c]) as f32));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_grid_keeps_its_values() {
        let table: Vec<f32> = (0..2 * 3 * 4).map(|i| (i as f32 * 0.37).sin()).collect();
        assert_eq!(resize_bicubic(&table, Size::new(3, 4), Size::new(3, 4)), table);
    }

    #[test]
    fn a_constant_stays() {
        let table = vec![3.5; 2 * 5 * 7];
        assert!(resize_bicubic(&table, Size::new(5, 7), Size::new(9, 4)).iter().all(|x| *x == 3.5));
    }

    /// `torch.nn.functional.interpolate(x, size=(3, 5), mode="bicubic")` of `x[0, 0, y, x] = sin(2 y + x)` of
    /// 2 x 3 places.
    #[test]
    fn values_are_those_of_pytorch() {
        let table: Vec<f32> = (0..6).map(|i| ((2 * (i / 3) + i % 3) as f32).sin()).collect();
        let found = resize_bicubic(&table, Size::new(2, 3), Size::new(3, 5));
        for (at, (value, wanted)) in found.iter().zip(PYTORCH).enumerate() {
            assert!((value - wanted).abs() < 1e-6, "{at}: {value}, {wanted}");
        }
    }

    const PYTORCH: [f32; 15] = [
        -0.173127, 0.2908534, 0.9022655, 1.0657269, 1.0684838, 0.4511306, 0.498751, 0.4912955, 0.2399247,
        0.0364029, 1.0753882, 0.7066486, 0.0803258, -0.5858771, -0.9956775,
    ];
}
