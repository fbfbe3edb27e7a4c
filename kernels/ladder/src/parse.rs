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
