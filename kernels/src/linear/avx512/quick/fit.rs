//! Cubics for codes of GELU, and bounds on their errors.

use std::f64::consts::FRAC_1_SQRT_2;
use std::ops::Range;

use crate::reference::math::ROUNDER;

/// Number of intervals: the lanes of the two registers that hold one coefficient of every interval.
const INTERVALS: i32 = 32;

/// Intervals for the arguments whose codes are neither certainly 0 nor the largest. The other intervals are
/// for the constant code 0 below them, and for rounding at both ends.
const USED: f64 = 28.5;

/// The end of the intervals if they do not cover all codes. Beyond it, GELU is treated as equal to its
/// argument.
const FAR: f64 = 5.1;

/// The smallest value of GELU, and its argument.
const LEAST: (f64, f64) = (-0.169_970_7, -0.751_791_5);

/// The largest relative error of rounding to f32.
const HALF_PLACE: f64 = 1.0 / (1u64 << 24) as f64;

/// Piecewise cubics in `z = y - centre`, for codes of one scale.
///
/// ```text
/// v = gelu(y) * recip + 128.5 + margin          floor(v) is the code + 128
/// w = v / 128 if v >= 128, else 1/2 + v / 256   bits 16 to 23 of w are floor(v), the lower bits its fraction
/// w = c0 + z (c1 + z (c2 + z c3))               z = clamp(y - centre, +-limit)
/// c = c[interval mod 32]                        interval = round(clamp(z, +-reach) * per_unit)
/// ```
/// At `limit` the code has reached its largest value. In the intervals below the lowest argument with a
/// nonzero code, `w` is constant. Intervals end where `v` is 128, because the formula of `w` changes there.
#[derive(Debug)]
pub(super) struct Fit {
    pub(super) table: Table,
    pub(super) limit: f32,
    pub(super) reach: f32,
    pub(super) per_unit: f32,
    /// The code is certain if at least one of these bits of `w` is set.
    pub(super) certain: i32,
}

/// `c0` to `c3` of each interval.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Table(pub(super) [[f32; INTERVALS as usize]; 4]);

impl Fit {
    /// Whether the intervals end below `limit`, where the code reaches its largest value.
    pub(super) fn is_far(&self) -> bool {
        self.reach < self.limit
    }
}

/// The positions of the intervals of a [`Fit`].
pub(super) struct Intervals {
    recip: f64,
    /// The range of the intervals with [`Form::Lower`].
    bends: Range<f64>,
    /// The argument at which the code reaches its largest value.
    end: f64,
    width: f64,
    pub(super) centre: f32,
    reach: f32,
}

impl Intervals {
    /// The intervals for codes with the reciprocal scale `recip`; `None` if `recip` is outside the supported
    /// range.
    pub(super) fn new(recip: f32) -> Option<Intervals> {
        let recip = f64::from(recip);
        // Above this range, codes could fall below -128, which w cannot represent. Below it, the scale would
        // be above 1, which no layer has.
        if !(1.0..=740.0).contains(&recip) {
            return None;
        }
        let bends = bends(recip);
        let end = root(0.0..200.0, |y| gelu(y) * recip - 127.3);
        let width = width(&bends, end);
        // The centre is the middle of an interval close to the middle of the used range.
        let used = (end - bends.start).min(USED * width);
        let centre = bends.start + ((used / 2.0 / width - 0.5).floor() + 0.5) * width;
        let centre = centre as f32;
        let reach = (end.min(bends.start + used) - f64::from(centre)) as f32;
        Some(Intervals { recip, bends, end, width, centre, reach })
    }

    /// The cubics for arguments with an error of at most `input_error` before they are rounded; `None` if no
    /// cubics are exact enough.
    pub(super) fn fit(&self, input_error: f64) -> Option<Fit> {
        (3..=8).map(|bits| Design::new(self, input_error, bits)).find(Design::holds).map(|design| design.fit)
    }

    /// The middle of an interval.
    fn middle(&self, interval: i32) -> f64 {
        f64::from(self.centre) + f64::from(interval) * self.width
    }
}

/// The formula of `w` in an interval: a constant, or one of the two forms in [`Fit`].
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Zero,
    Lower,
    Upper,
}

impl Form {
    fn w(self, v: f64) -> f64 {
        match self {
            Form::Zero => 128.25 / 128.0,
            Form::Lower => 0.5 + v / 256.0,
            Form::Upper => v / 128.0,
        }
    }

    /// Number of codes per unit of `w`.
    fn codes(self) -> f64 {
        if self == Form::Lower { 256.0 } else { 128.0 }
    }
}

struct Design<'a> {
    at: &'a Intervals,
    input_error: f64,
    margin: f64,
    fit: Fit,
}

impl Design<'_> {
    /// A design whose margin is half of `2^bits` units in the last place of the fraction.
    fn new(at: &Intervals, input_error: f64, bits: u32) -> Design<'_> {
        let margin = f64::from(1u32 << bits) / f64::from(1u32 << 17);
        let fit = Fit {
            table: Table([[0.0; INTERVALS as usize]; 4]),
            limit: (at.end - f64::from(at.centre)) as f32,
            reach: at.reach,
            per_unit: (1.0 / at.width) as f32,
            certain: 0xffff & !((1 << bits) - 1),
        };
        let mut design = Design { at, input_error, margin, fit };
        for interval in design.intervals() {
            let coefficients = design.cubic(interval);
            for (row, c) in design.fit.table.0.iter_mut().zip(coefficients) {
                row[interval.rem_euclid(INTERVALS) as usize] = c as f32;
            }
        }
        design
    }

    /// The numbers of all intervals.
    fn intervals(&self) -> Range<i32> {
        // A value halfway between two intervals may be rounded up.
        let last = (f64::from(self.at.reach) / self.at.width + 0.501).floor() as i32;
        last + 1 - INTERVALS..last + 1
    }

    /// The range of arguments of an interval, slightly enlarged, because the interval of an argument is found
    /// by rounding.
    fn arguments(&self, interval: i32) -> (f64, f64) {
        let (middle, half) = (self.at.middle(interval), 0.5001 * self.at.width);
        (middle - half, if self.is_linear(interval) { self.at.end } else { middle + half })
    }

    /// Whether the interval also stands for all larger arguments, where GELU is treated as equal to its
    /// argument.
    fn is_linear(&self, interval: i32) -> bool {
        self.fit.is_far() && interval + 1 == self.intervals().end
    }

    fn form(&self, interval: i32) -> Form {
        let middle = self.at.middle(interval);
        match () {
            () if middle < self.at.bends.start => Form::Zero,
            () if middle < self.at.bends.end => Form::Lower,
            () => Form::Upper,
        }
    }

    fn w(&self, form: Form, y: f64) -> f64 {
        form.w(gelu(y) * self.at.recip + 128.5 + self.margin)
    }

    /// The cubic through w at the Chebyshev points of an interval, as coefficients of z, lowest power first.
    fn cubic(&self, interval: i32) -> [f64; 4] {
        let (form, centre) = (self.form(interval), f64::from(self.at.centre));
        let (low, high) = self.arguments(interval);
        if form == Form::Zero {
            return [form.w(0.0), 0.0, 0.0, 0.0];
        }
        if self.is_linear(interval) {
            let at = |y: f64| form.w(y * self.at.recip + 128.5 + self.margin);
            return [at(centre), at(1.0) - at(0.0), 0.0, 0.0];
        }
        let x = [7.0, 5.0, 3.0, 1.0].map(|i: f64| {
            (low + high) / 2.0 + (high - low) / 2.0 * libm::cos(i * std::f64::consts::PI / 8.0) - centre
        });
        // Newton's divided differences, then expanded into powers of z.
        let mut d = x.map(|z| self.w(form, z + centre));
        for order in 1..4 {
            for i in (order..4).rev() {
                d[i] = (d[i] - d[i - 1]) / (x[i] - x[i - order]);
            }
        }
        (0..3).rev().fold([d[3], 0.0, 0.0, 0.0], |p, i| {
            [d[i] - x[i] * p[0], p[0] - x[i] * p[1], p[1] - x[i] * p[2], p[2] - x[i] * p[3]]
        })
    }

    /// Whether the error of every interval is within the margin.
    fn holds(&self) -> bool {
        self.intervals().all(|interval| self.error(interval) < self.margin)
    }

    /// A bound on the difference, in codes, between an interval's cubic and the product that the reference
    /// rounds. The margin does not count as a difference.
    fn error(&self, interval: i32) -> f64 {
        let form = self.form(interval);
        if form == Form::Zero {
            return 0.0;
        }
        const SAMPLES: i32 = 64;
        let (low, high) = self.arguments(interval);
        let sample =
            |i| self.error_at(interval, form, low + (high - low) * f64::from(i) / f64::from(SAMPLES));
        // Between two samples the error of the cubic may be slightly larger.
        1.02 * (0..=SAMPLES).map(sample).fold(0.0, f64::max)
    }

    fn error_at(&self, interval: i32, form: Form, y: f64) -> f64 {
        let column = interval.rem_euclid(INTERVALS) as usize;
        let [c0, c1, c2, c3] = [0, 1, 2, 3].map(|power| f64::from(self.fit.table.0[power][column]));
        let z = y - f64::from(self.at.centre);
        let (second, first) = (c2 + z * c3, c1 + z * (c2 + z * c3));
        let w = c0 + z * first;
        let cubic = (w - self.w(form, y)).abs();
        // Each multiply-add rounds once.
        let evaluation = HALF_PLACE * (second.abs() * z * z + (first * z).abs() + w.abs());
        // GELU's slope is below 1.13. The argument is rounded as y and as z.
        let input = self.input_error + HALF_PLACE * (y.abs() + z.abs());
        // The reference's GELU has an error as well.
        let reference = 2.0 * HALF_PLACE * (y.abs() + 0.25);
        let product = HALF_PLACE * 128.0;
        form.codes() * (cubic + evaluation) + self.at.recip * (1.13 * input + reference) + product
    }
}

/// GELU in f64.
fn gelu(y: f64) -> f64 {
    0.5 * y * libm::erfc(-y * FRAC_1_SQRT_2)
}

/// The range of arguments in which `v` may be below 128. It starts where the intervals start, with some room:
/// the code is 0 on both sides of the start. From its end on no code is negative.
fn bends(recip: f64) -> Range<f64> {
    let (least, at) = LEAST;
    let depth = -least * recip;
    let first = root(at..0.0, |y| gelu(y) * recip + 0.3_f64.min(depth));
    if depth < 0.49 {
        return first..first;
    }
    let end = root(at..0.0, |y| gelu(y) * recip + 0.5_f64.min(depth));
    root(at..-40.0, |y| gelu(y) * recip + 0.3)..end
}

/// The width of the intervals, such that a whole number of them fits between the bends.
fn width(bends: &Range<f64>, end: f64) -> f64 {
    let width = (end.min(FAR) - bends.start) / USED;
    let between = bends.end - bends.start;
    if between > 0.0 { between / (between / width).floor() } else { width }
}

/// The zero of `f`, which is negative at `ends.start` and rises towards `ends.end`.
fn root(ends: Range<f64>, f: impl Fn(f64) -> f64) -> f64 {
    let (mut negative, mut positive) = (ends.start, ends.end);
    for _ in 0..100 {
        let middle = (negative + positive) / 2.0;
        *(if f(middle) < 0.0 { &mut negative } else { &mut positive }) = middle;
    }
    positive
}

/// 1.5 * 2^23: adding it rounds a number of either sign to an integer, held in the low bits of the sum.
pub(super) const INTERVAL_ROUNDER: f32 = 1.5 * ROUNDER;
