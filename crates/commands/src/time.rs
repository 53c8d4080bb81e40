//! Parses durations on a command line, such as `500ms` or `5s`.

use std::time::Duration;

/// Parses a duration such as `5s`, `500ms`, `1.5m` or `8h`; without a unit, in seconds. 0 is allowed.
///
/// # Errors
/// The text names what is expected.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    const MAX_SECONDS: f64 = 1e6;
    let expected = || format!("'{text}': a time such as 500ms, 5s or 2m is expected");
    let number = text.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
    let unit = match &text[number.len()..] {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(expected()),
    };
    let seconds = number.parse::<f64>().map_err(|_| expected())? * unit;
    if (0.0..=MAX_SECONDS).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err(expected())
    }
}

/// Parses a duration of at least `ms` milliseconds.
///
/// # Errors
/// The text names what is expected.
pub fn parse_at_least_ms(ms: u64, text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Ok(time) if time < Duration::from_millis(ms) => Err(format!("at least {ms}ms is expected")),
        time => time,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_known_units() {
        for (text, ms) in [
            ("500ms", 500),
            ("5s", 5000),
            ("5", 5000),
            ("1.5s", 1500),
            ("2m", 120_000),
            ("2min", 120_000),
            ("1h", 3_600_000),
            ("0", 0),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)));
        }
        for wrong in ["", "s", "5x", "-1s", "nan", "inf", "1e300"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_duration_may_have_a_minimum() {
        let minimum = Duration::from_millis(100);
        assert_eq!(parse_at_least_ms(100, "0.1"), Ok(minimum));
        let error = "at least 100ms is expected".to_owned();
        assert_eq!(parse_at_least_ms(100, "99ms"), Err(error));
        assert!(parse_at_least_ms(1, "soon").is_err());
    }
}
