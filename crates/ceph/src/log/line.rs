//! Lines of the log of librados: `TIME THREAD LEVEL TEXT`.

/// The severity of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    /// Level -1.
    Error,
    /// Level 0.
    Warning,
    /// Levels that a configuration has asked for, and lines of another form.
    Debug,
}

/// A line without time and thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line<'a> {
    pub(super) severity: Severity,
    pub(super) text: &'a str,
}

/// Splits a line.
pub(super) fn parse(line: &str) -> Line<'_> {
    split(line).unwrap_or(Line {
        severity: Severity::Debug,
        text: line.trim(),
    })
}

fn split(line: &str) -> Option<Line<'_>> {
    let (_time, rest) = line.trim().split_once(' ')?;
    let (thread, rest) = rest.trim_start().split_once(' ')?;
    let (level, text) = rest.trim_start().split_once(' ')?;
    u64::from_str_radix(thread, 16).ok()?;
    let severity = match level.parse::<i32>().ok()? {
        ..0 => Severity::Error,
        0 => Severity::Warning,
        1.. => Severity::Debug,
    };
    Some(Line {
        severity,
        text: text.trim_start(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_severities_and_a_line_of_another_form_is_kept_as_it_is() {
        for (rest, severity, text) in [
            (
                "-1 monclient(hunting): refused",
                Severity::Error,
                "monclient(hunting): refused",
            ),
            (" 0 librbd: slow\n", Severity::Warning, "librbd: slow"),
            ("20 librbd: details", Severity::Debug, "librbd: details"),
        ] {
            let line = format!("2026-01-02T03:04:05.678+0000 7f0a1b2c3d40 {rest}");
            assert_eq!(parse(&line), Line { severity, text }, "{line}");
        }
        for text in ["", "--- begin dump ---", "a b c d", "time 7f0a level text"] {
            let severity = Severity::Debug;
            assert_eq!(parse(text), Line { severity, text });
        }
    }
}
