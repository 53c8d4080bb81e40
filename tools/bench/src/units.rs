//! Sizes and times as people write them on a command line.

use std::time::Duration;

/// `512`, `4k`, `1M`, `10G`: bytes, with suffixes that are powers of 1024.
///
/// # Errors
/// The text says what is expected.
pub fn bytes(text: &str) -> Result<u64, String> {
    let expected = || format!("'{text}': a size such as 512, 4k, 1M or 10G is expected");
    let digits = text.trim_end_matches(|suffix: char| suffix.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
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
    match bytes(text)? {
        bytes @ 4096.. if bytes.is_multiple_of(4096) => Ok(bytes),
        _ => Err("a multiple of 4k, and not 0, is expected".to_owned()),
    }
}

/// A part of a disk; for all of it, nothing is said.
///
/// # Errors
/// The text says what is expected.
pub fn span_bytes(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        0 => Err("at least a block is expected; leave it out to use the whole disk".to_owned()),
        bytes => Ok(bytes),
    }
}

/// A request's size: a multiple of 512 from 512 to 1M.
///
/// # Errors
/// The text says what is expected.
pub fn block_bytes(text: &str) -> Result<u32, String> {
    const MAX: u32 = 1 << 20;
    match u32::try_from(bytes(text)?) {
        Ok(bytes @ 512..=MAX) if bytes.is_multiple_of(512) => Ok(bytes),
        _ => Err("a multiple of 512 from 512 to 1M is expected".to_owned()),
    }
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
pub fn shown_bytes(bytes: u64) -> String {
    for (shift, suffix) in [(30, "G"), (20, "M"), (10, "k")] {
        if bytes > 0 && bytes.is_multiple_of(1 << shift) {
            return format!("{}{suffix}", bytes >> shift);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_with_units() {
        for (text, value) in [
            ("512", 512),
            ("4k", 4096),
            ("4K", 4096),
            ("1M", 1 << 20),
            ("2GiB", 2 << 30),
        ] {
            assert_eq!(bytes(text), Ok(value));
        }
        for wrong in ["", "k", "4x", "-1", "1.5k", "99999999999999T", "4 k"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
        assert_eq!(block_bytes("1M"), Ok(1 << 20));
        for wrong in ["0", "511", "513", "2M", "99T"] {
            assert!(block_bytes(wrong).is_err(), "{wrong}");
        }
        assert_eq!(shown_bytes(4096), "4k");
        assert_eq!(shown_bytes(1536), "1536");
        assert_eq!(shown_bytes(0), "0");
    }
}
