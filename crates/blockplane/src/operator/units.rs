//! Formatting of sizes, counts, rates and times for people.

/// A size with three significant digits and a binary unit: `1.50 GiB`.
pub(crate) fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let exponent = (bytes.ilog2() / 10).min(6);
    let value = bytes as f64 / (1_u64 << (10 * exponent)) as f64;
    let unit = UNITS[exponent as usize - 1];
    if value.fract() == 0.0 {
        format!("{value} {unit}")
    } else if value < 9.995 {
        format!("{value:.2} {unit}")
    } else if value < 99.95 {
        format!("{value:.1} {unit}")
    } else {
        format!("{value:.0} {unit}")
    }
}

/// A count with thousands separators: `1,234,567`.
pub(crate) fn format_with_thousands_separators(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A rate with about three significant digits, in at most seven characters: `12,345`, `0.53`, `1.02M`.
pub(crate) fn format_rate(value: f64) -> String {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate, far below 2^64"
    )]
    let whole = value.round() as u64;
    match value {
        0.0 => "0".to_owned(),
        _ if value < 9.995 => format!("{value:.2}"),
        _ if value < 999.5 => format!("{value:.1}"),
        _ if value < 999_999.5 => format_with_thousands_separators(whole),
        _ if value < 9.995e6 => format!("{:.2}M", value / 1e6),
        _ => format!("{:.1}M", value / 1e6),
    }
}

/// A time with its unit: `0`, `850 ns`, `12.3 us`, `4 ms`, `2.5 s`.
pub(crate) fn format_ns(ns: u64) -> String {
    let (value, unit) = match ns {
        0 => return "0".to_owned(),
        1..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (ns as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
        _ => (ns as f64 / 1e9, "s"),
    };
    if value.fract() == 0.0 || value >= 99.95 {
        format!("{value:.0} {unit}")
    } else {
        format!("{value:.1} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_counts_and_times_have_few_digits() {
        for (bytes, shown) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.50 KiB"),
            (10 << 30, "10 GiB"),
            ((10 << 30) + 1, "10.0 GiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(format_bytes(bytes), shown);
        }
        for (count, shown) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(format_with_thousands_separators(count), shown);
        }
        for (ns, shown) in [
            (0, "0"),
            (850, "850 ns"),
            (200_000, "200 us"),
            (12_345, "12.3 us"),
            (4_000_000, "4 ms"),
            (2_500_000_000, "2.5 s"),
        ] {
            assert_eq!(format_ns(ns), shown);
        }
    }

    #[test]
    fn rates_fit_into_seven_characters() {
        for (value, text) in [
            (0.0, "0"),
            (0.5, "0.50"),
            (12.34, "12.3"),
            (999.9, "1,000"),
            (999_999.4, "999,999"),
            (999_999.6, "1.00M"),
            (1_234_567.0, "1.23M"),
            (12_345_678.0, "12.3M"),
            (123_456_789.0, "123.5M"),
        ] {
            assert_eq!(format_rate(value), text);
            // A blank stays between two columns, the narrowest of which has eight.
            assert!(text.len() <= 7, "{text}");
        }
    }
}
