//! Colour adjustments of 8-bit RGB images. The results equal torchvision's on a Pillow image, bit for bit.
//!
//! Brightness, contrast and saturation blend the image with black, with its mean grey level and with its grey
//! version respectively (Pillow's `ImageEnhance`, after Haeberli and Voorhies, "Image Processing by
//! Interpolation and Extrapolation"). Hue rotates the hue channel of Pillow's 8-bit HSV.

/// One colour adjustment and its strength.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Adjustment {
    /// Blends with black: factor 0 gives black, 1 the image itself, 2 twice its brightness.
    Brightness(f64),
    /// Blends with the image's mean grey level: factor 0 gives that grey everywhere, 1 the image itself.
    Contrast(f64),
    /// Blends with the grey version of the image: factor 0 gives the grey version, 1 the image itself.
    Saturation(f64),
    /// Rotates the hue by this fraction of a full turn, in -0.5..=0.5, rounded towards zero to a multiple of
    /// 1/255.
    Hue(f64),
}

impl Adjustment {
    /// Adjusts `pixels` in place: `u8` `[pixels, 3]`. Bytes after the last complete pixel are left unchanged.
    pub fn apply(self, pixels: &mut [u8]) {
        let (pixels, _) = pixels.as_chunks_mut::<3>();
        match self {
            Adjustment::Brightness(factor) => blend_all(pixels, 0, factor as f32),
            Adjustment::Contrast(factor) => blend_all(pixels, mean_grey(pixels), factor as f32),
            Adjustment::Saturation(factor) => {
                for pixel in pixels {
                    let grey = grey(*pixel);
                    *pixel = pixel.map(|byte| blend(grey, byte, factor as f32));
                }
            }
            Adjustment::Hue(turn) => {
                // torchvision's convention: the shift counts a full turn as 255, but wraps modulo 256.
                let shift = (turn * 255.0) as i32 as u8;
                for pixel in pixels {
                    let [hue, saturation, value] = to_hsv(*pixel);
                    *pixel = to_rgb([hue.wrapping_add(shift), saturation, value]);
                }
            }
        }
    }
}

/// Blends every byte with the constant `from`.
fn blend_all(pixels: &mut [[u8; 3]], from: u8, factor: f32) {
    let table: [u8; 256] = std::array::from_fn(|byte| blend(from, byte as u8, factor));
    for byte in pixels.as_flattened_mut() {
        *byte = table[usize::from(*byte)];
    }
}

/// Linear blend of `from` (factor 0) and `to` (factor 1), computed in f32, truncated and clamped to 0..=255.
fn blend(from: u8, to: u8, factor: f32) -> u8 {
    let difference = f32::from(i16::from(to) - i16::from(from));
    (f32::from(from) + factor * difference) as u8
}

/// ITU-R 601-2 luma in 16-bit fixed point, rounded: Pillow's `convert("L")`.
fn grey([red, green, blue]: [u8; 3]) -> u8 {
    let sum = u32::from(red) * 19_595 + u32::from(green) * 38_470 + u32::from(blue) * 7_471;
    ((sum + 0x8000) >> 16) as u8
}

/// The mean grey level of the pixels, rounded half up; 0 if there are none.
fn mean_grey(pixels: &[[u8; 3]]) -> u8 {
    let sum: u64 = pixels.iter().map(|&pixel| u64::from(grey(pixel))).sum();
    (sum as f64 / pixels.len().max(1) as f64 + 0.5) as u8
}

/// Pillow's 8-bit hue, saturation and value, truncated. As in Pillow, most operations are in f32 and some in
/// f64.
fn to_hsv([red, green, blue]: [u8; 3]) -> [u8; 3] {
    let (max, min) = (red.max(green).max(blue), red.min(green).min(blue));
    if max == min {
        return [0, 0, max];
    }
    let range = f32::from(max - min);
    let distance = |channel: u8| f32::from(max - channel) / range;
    let sector = if red == max {
        distance(blue) - distance(green)
    } else if green == max {
        (2.0 + f64::from(distance(red)) - f64::from(distance(blue))) as f32
    } else {
        (4.0 + f64::from(distance(green)) - f64::from(distance(red))) as f32
    };
    // The sector is in -1..=5, so this reduces the turn modulo 1.
    let turn = f64::from(sector) / 6.0 + 1.0;
    let turn = (if turn >= 1.0 { turn - 1.0 } else { turn }) as f32;
    let saturation = range / f32::from(max);
    [(f64::from(turn) * 255.0) as u8, (f64::from(saturation) * 255.0) as u8, max]
}

/// The inverse of [`to_hsv`], up to rounding: this function rounds half away from zero, as Pillow's does.
fn to_rgb([hue, saturation, value]: [u8; 3]) -> [u8; 3] {
    if saturation == 0 {
        return [value; 3];
    }
    let sixths = f64::from(hue) * 6.0 / 255.0;
    let sector = sixths as u8;
    let fraction = f64::from((sixths - f64::from(sector)) as f32);
    let saturation = f64::from((f64::from(saturation) / 255.0) as f32);
    let scaled = |part: f64| round(f64::from(value) * (1.0 - saturation * part));
    let (low, falling, rising) = (scaled(1.0), scaled(fraction), scaled(1.0 - fraction));
    match sector % 6 {
        0 => [value, rising, low],
        1 => [falling, value, low],
        2 => [low, value, rising],
        3 => [low, falling, value],
        4 => [rising, low, value],
        _ => [value, low, falling],
    }
}

/// Rounds `value`, in 0..=255, half away from zero. It compares the fraction with 0.5 because that is exact,
/// whereas adding 0.5 would round.
fn round(value: f64) -> u8 {
    let floor = value as u8;
    floor + u8::from(value - f64::from(floor) >= 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_0_and_1_return_the_blended_values() {
        for from in 0..=255 {
            for to in 0..=255 {
                assert_eq!((blend(from, to, 0.0), blend(from, to, 1.0)), (from, to));
            }
        }
        assert_eq!((blend(10, 200, 3.0), blend(200, 10, 3.0), blend(0, 3, 0.5)), (255, 0, 1));
    }

    #[test]
    fn primary_colours_have_their_hues() {
        let hue = |pixel| to_hsv(pixel)[0];
        assert_eq!([[255, 0, 0], [0, 255, 0], [0, 0, 255], [9, 9, 9]].map(hue), [0, 85, 170, 0]);
        assert_eq!(to_hsv([0, 0, 0]), [0, 0, 0]);
    }

    #[test]
    fn adjusting_no_pixels_does_nothing() {
        for adjustment in [Adjustment::Brightness(0.3), Adjustment::Contrast(0.3), Adjustment::Hue(0.1)] {
            adjustment.apply(&mut []);
        }
    }
}
