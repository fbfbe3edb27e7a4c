//! Parsers of argument values, for clap.

/// Parses a whole number of at least 1.
///
/// # Errors
/// `text` is not such a number.
pub fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if n >= 1 => Ok(n),
        _ => Err("must be a whole number from 1".to_owned()),
    }
}

/// Parses a positive number.
///
/// # Errors
/// `text` is not such a number.
pub fn positive(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(x) if x > 0.0 && f64::is_finite(x) => Ok(x),
        _ => Err("must be a positive number".to_owned()),
    }
}

/// The most seconds that one measurement may take.
pub const MOST_SECONDS: f64 = 3600.0;

/// Parses the seconds of a measurement.
///
/// # Errors
/// `text` is not a positive number, or is above [`MOST_SECONDS`].
pub fn seconds(text: &str) -> Result<f64, String> {
    match positive(text) {
        Ok(seconds) if seconds <= MOST_SECONDS => Ok(seconds),
        _ => Err(format!("must be a positive number of at most {MOST_SECONDS}")),
    }
}

/// The most threads that an option may ask for.
pub const MOST_THREADS: usize = 1024;

/// The most images of a batch that an option may ask for.
pub const MOST_IMAGES: usize = 1 << 16;

/// Parses a number of threads; 0 is one per core.
///
/// # Errors
/// `text` is not a whole number, or is above [`MOST_THREADS`].
pub fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if n <= MOST_THREADS => Ok(n),
        _ => Err(format!("must be a whole number from 0 (one per core) to {MOST_THREADS}")),
    }
}

/// Parses a number of images of a batch.
///
/// # Errors
/// `text` is not a whole number from 1 to [`MOST_IMAGES`].
pub fn batch(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (1..=MOST_IMAGES).contains(&n) => Ok(n),
        _ => Err(format!("must be a whole number from 1 to {MOST_IMAGES}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_part_of_the_value() {
        assert_eq!((threads("0"), threads("1024")), (Ok(0), Ok(1024)));
        assert!(threads("1025").is_err() && threads("-1").unwrap_err().contains("1024"));
        assert_eq!((batch("1"), batch("65536")), (Ok(1), Ok(65536)));
        assert_eq!((seconds("0.01"), seconds("3600")), (Ok(0.01), Ok(3600.0)));
        assert!(
            seconds("0").is_err() && seconds("inf").is_err() && seconds("1e9").unwrap_err().contains("3600")
        );
        assert!(batch("0").is_err() && batch("65537").is_err() && batch("99999999999999999999").is_err());
    }
}
