//! Sizes, counts and times: as people read them, and write them on a command line.

use std::time::Duration;

/// Three digits that matter, and what follows them: `1.5 GiB`.
pub(crate) fn shown_bytes(bytes: u64) -> String {
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

/// With a comma behind thousands: `1,234,567`.
pub(crate) fn shown_count(count: u64) -> String {
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

/// `0`, `850 ns`, `12.3 us`, `4 ms`, `2.5 s`.
pub(crate) fn shown_ns(ns: u64) -> String {
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

/// `5s`, `500ms`, `2m`; without a unit, seconds. 0 is allowed.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    const MAX_SECONDS: f64 = 1e6;
    let expected = || format!("'{text}': a time such as 500ms, 5s or 2m is expected");
    let number = text.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
    let unit = match &text[number.len()..] {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        _ => return Err(expected()),
    };
    let seconds = number.parse::<f64>().map_err(|_| expected())? * unit;
    if (0.0..=MAX_SECONDS).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(expected())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_counts_and_times_are_short() {
        for (bytes, shown) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.50 KiB"),
            (10 << 30, "10 GiB"),
            ((10 << 30) + 1, "10.0 GiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(shown_bytes(bytes), shown);
        }
        for (count, shown) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(shown_count(count), shown);
        }
        for (ns, shown) in [
            (0, "0"),
            (850, "850 ns"),
            (200_000, "200 us"),
            (12_345, "12.3 us"),
            (4_000_000, "4 ms"),
            (2_500_000_000, "2.5 s"),
        ] {
            assert_eq!(shown_ns(ns), shown);
        }
    }

    #[test]
    fn times_are_read() {
        for (text, ms) in [
            ("500ms", 500),
            ("5", 5000),
            ("1.5s", 1500),
            ("2m", 120_000),
            ("0", 0),
        ] {
            assert_eq!(time(text), Ok(Duration::from_millis(ms)));
        }
        for wrong in ["", "s", "5x", "-1s", "nan", "inf", "1e300"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }
}
