//! Sizes and times as people write them on a command line.

use std::time::Duration;

/// `512`, `4k`, `1M`, `10G`: bytes, with suffixes that are powers of 1024.
///
/// # Errors
/// The text says what is expected.
pub fn bytes(text: &str) -> Result<u64, String> {
    let expected = || format!("'{text}': a size such as 512, 4k, 1M or 10G is expected");
    let digits = text.trim_end_matches(|suffix: char| suffix.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "k" | "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(expected()),
    };
    let number: u64 = digits.parse().map_err(|_| expected())?;
    number.checked_mul(1 << shift).ok_or_else(expected)
}

/// The size of a file to be made, of whole pages: direct I/O may want no less.
///
/// # Errors
/// The text says what is expected.
pub fn file_bytes(text: &str) -> Result<u64, String> {
    let is_good = |bytes: &u64| *bytes > 0 && bytes.is_multiple_of(4096);
    let bytes = Some(bytes(text)?).filter(is_good);
    bytes.ok_or_else(|| "a multiple of 4k, and not 0, is expected".to_owned())
}

/// A request's size: a multiple of 512 from 512 to 1M.
///
/// # Errors
/// The text says what is expected.
pub fn block_bytes(text: &str) -> Result<u32, String> {
    let is_good = |bytes: &u32| (512..=1 << 20).contains(bytes) && bytes.is_multiple_of(512);
    let bytes = u32::try_from(bytes(text)?).ok().filter(is_good);
    bytes.ok_or_else(|| "a multiple of 512 from 512 to 1M is expected".to_owned())
}

/// How long something is done: at least a millisecond.
///
/// # Errors
/// The text says what is expected.
pub fn time(text: &str) -> Result<Duration, String> {
    commands::time::parse_at_least_ms(1, text)
}

/// Bytes as they were written: 4k, 1M, 512.
#[must_use]
pub fn shown_bytes(bytes: u32) -> String {
    match bytes {
        bytes if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        bytes if bytes.is_multiple_of(1 << 10) => format!("{}k", bytes >> 10),
        bytes => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_with_units() {
        let texts = ["512", "4k", "1M", "2G"];
        assert_eq!(texts.map(bytes), [512, 4096, 1 << 20, 2 << 30].map(Ok));
        for wrong in ["", "k", "4x", "-1", "1.5k", "99999999999999T", "4 k"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
        assert_eq!([4096, 1536].map(shown_bytes), ["4k", "1536"]);
    }
}
