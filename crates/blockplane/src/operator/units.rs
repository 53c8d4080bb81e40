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
        let bytes = [0, 1023, 1024, 1536, 10 << 30, (10 << 30) + 1, u64::MAX].map(format_bytes);
        let expected = [
            "0 B", "1023 B", "1 KiB", "1.50 KiB", "10 GiB", "10.0 GiB", "16 EiB",
        ];
        assert_eq!(bytes, expected);
        let counts = [0, 999, 1000, 1_234_567].map(format_with_thousands_separators);
        assert_eq!(counts, ["0", "999", "1,000", "1,234,567"]);
        let times = [0, 850, 200_000, 12_345, 4_000_000, 2_500_000_000].map(format_ns);
        assert_eq!(times, ["0", "850 ns", "200 us", "12.3 us", "4 ms", "2.5 s"]);
    }

    #[test]
    fn rates_fit_into_seven_characters() {
        let rates = [0.0, 0.5, 12.34, 999.9, 999_999.4, 999_999.6, 1_234_567.0];
        let expected = ["0", "0.50", "12.3", "1,000", "999,999", "1.00M", "1.23M"];
        assert_eq!(rates.map(format_rate), expected);
        // A blank stays between two columns, the narrowest of which has eight.
        assert_eq!(
            [12_345_678.0, 123_456_789.0].map(format_rate),
            ["12.3M", "123.5M"]
        );
    }
}
