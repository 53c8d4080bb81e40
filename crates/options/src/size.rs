//! Parses numbers (decimal, hexadecimal) and sizes with a suffix (`1.5G`).
//!
//! Sizes are exact: `1.5G` is computed in integers, never in floating point. A leading zero is refused, since many tools read it
//! as octal.

/// The reason why a text is not a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NumberError {
    /// It is not a number, or has a format that is not allowed here.
    Malformed,
    /// It is a number below zero.
    Negative,
    /// It is a number of 2^64 or more.
    TooLarge,
}

/// Reads a whole number, decimal or `0x` hexadecimal.
pub(crate) fn parse_integer(text: &str) -> Result<u64, NumberError> {
    if let Some(positive) = text.strip_prefix('-') {
        return match parse_integer(positive) {
            Ok(0) => Ok(0),
            Ok(_) | Err(NumberError::TooLarge) => Err(NumberError::Negative),
            Err(NumberError::Malformed | NumberError::Negative) => Err(NumberError::Malformed),
        };
    }
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => (hex, 16),
        None => (text, 10),
    };
    let ambiguous = radix == 10 && digits.len() > 1 && digits.starts_with('0');
    if digits.is_empty() || ambiguous || !digits.chars().all(|c| c.is_digit(radix)) {
        return Err(NumberError::Malformed);
    }
    u64::from_str_radix(digits, radix).map_err(|_| NumberError::TooLarge)
}

/// Reads a size on the command line of another program, such as `100M`; 0 is allowed.
///
/// # Errors
/// The text names what is expected.
pub fn parse_size_argument(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|_| "a size such as 64k, 100M or 1.5G is expected".to_owned())
}

/// Reads a size in bytes: a whole number, or a decimal number with one of the suffixes B, K, M, G,
/// T, P, E (either case, powers of 1024). A fraction of a byte is dropped.
pub(crate) fn parse_size(text: &str) -> Result<u64, NumberError> {
    if text.starts_with("0x") || text.starts_with("0X") {
        // B and E are hexadecimal digits.
        return parse_integer(text);
    }
    let shift = match text.bytes().last() {
        Some(b'b' | b'B') => 0,
        Some(b'k' | b'K') => 10,
        Some(b'm' | b'M') => 20,
        Some(b'g' | b'G') => 30,
        Some(b't' | b'T') => 40,
        Some(b'p' | b'P') => 50,
        Some(b'e' | b'E') => 60,
        _ => return parse_integer(text),
    };
    let number = &text[..text.len() - 1];
    let (whole, fraction) = match number.split_once('.') {
        // A fraction of a byte is a mistake.
        Some(_) if shift == 0 => return Err(NumberError::Malformed),
        Some((whole, fraction)) => (whole, fraction),
        None => (number, "0"),
    };
    let digits_only = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if whole.starts_with('-') {
        return parse_integer(whole).and(Err(NumberError::Malformed));
    }
    // 18 digits of fraction are finer than one byte in 2^59, and keep the product in 128 bits.
    if !digits_only(fraction) || fraction.len() > 18 {
        return Err(NumberError::Malformed);
    }
    let whole = u128::from(parse_integer(whole)?) << shift;
    let scale = fraction.bytes().fold(1_u128, |scale, _| scale * 10);
    let part = fraction
        .bytes()
        .fold(0_u128, |part, digit| part * 10 + u128::from(digit - b'0'));
    u64::try_from(whole + ((part << shift) / scale)).map_err(|_| NumberError::TooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A size with the largest suffix that divides it.
    fn shown_size(bytes: u64) -> String {
        let zeroes = if bytes == 0 {
            0
        } else {
            bytes.trailing_zeros()
        };
        let suffixes = ["", "K", "M", "G", "T", "P", "E"];
        let power = zeroes / 10;
        format!("{}{}", bytes >> (10 * power), suffixes[power as usize])
    }

    #[test]
    fn integers_are_decimal_or_hexadecimal() {
        for (text, expected) in [
            ("0", Ok(0)),
            ("-0", Ok(0)),
            ("18446744073709551615", Ok(u64::MAX)),
            ("0xFFffFFffFFffFFff", Ok(u64::MAX)),
            ("18446744073709551616", Err(NumberError::TooLarge)),
            ("-1", Err(NumberError::Negative)),
            ("-99999999999999999999", Err(NumberError::Negative)),
        ] {
            assert_eq!(parse_integer(text), expected, "{text}");
        }
        for bad in [
            "", "-", "--1", "0x", "010", "1 ", " 1", "1k", "+1", "0x-1", "١", "1_000",
        ] {
            assert_eq!(parse_integer(bad), Err(NumberError::Malformed), "{bad:?}");
        }
    }

    #[test]
    fn sizes_have_binary_suffixes() {
        for (text, expected) in [
            ("4096", Ok(4096)),
            ("0x1000", Ok(4096)),
            ("0x1B", Ok(27)),
            ("7B", Ok(7)),
            ("1k", Ok(1024)),
            ("1.5G", Ok(3 << 29)),
            ("0.0001K", Ok(0)),
            ("2t", Ok(2 << 40)),
            ("15E", Ok(15 << 60)),
            ("15.999999999999999999E", Ok(u64::MAX - 1)),
            ("16E", Err(NumberError::TooLarge)),
            ("99999999999999999999G", Err(NumberError::TooLarge)),
            ("-1G", Err(NumberError::Negative)),
        ] {
            assert_eq!(parse_size(text), expected, "{text}");
        }
        let malformed = "|G|.5G|1.G|1.5|1.5B|1kB|1.0.0G|1 G|1e3|10GiB|-G|0x1.8G|0x1K|é";
        for bad in malformed.split('|').chain(["0.0000000000000000001E"]) {
            assert_eq!(parse_size(bad), Err(NumberError::Malformed), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn a_size_reads_back_as_it_was_shown(bytes: u64) {
            prop_assert_eq!(parse_size(&shown_size(bytes)), Ok(bytes));
            prop_assert_eq!(parse_size(&shown_size(bytes << 30)), Ok(bytes << 30));
        }
    }
}
