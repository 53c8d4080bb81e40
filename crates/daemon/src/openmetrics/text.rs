//! Families of samples as text.
//!
//! The two formats differ in little: OpenMetrics names a counter without `_total` in front of its samples,
//! says units, knows families that describe (`info`), and has an end.

use std::fmt::Write;

use crate::openmetrics::accept::Format;

/// What the samples of a family are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, while its labels exist. Samples end in `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts of what was at most so large, in `_bucket`, `_sum` and `_count`.
    Histogram,
    /// Always 1; what it says is in its labels. Samples end in `_info`.
    Info,
}

impl Kind {
    fn name(self, format: Format) -> &'static str {
        match (self, format) {
            (Self::Counter, _) => "counter",
            (Self::Histogram, _) => "histogram",
            (Self::Info, Format::OpenMetrics) => "info",
            (Self::Gauge, _) | (Self::Info, Format::Prometheus) => "gauge",
        }
    }

    /// What the names of its samples have behind that of the family.
    fn suffix(self) -> &'static str {
        match self {
            Self::Counter => "_total",
            Self::Info => "_info",
            Self::Gauge | Self::Histogram => "",
        }
    }
}

/// Samples of one name.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Its name, which ends with its unit and has no suffix of its kind.
    pub name: &'static str,
    /// What its samples are.
    pub kind: Kind,
    /// Its unit, if it has one.
    pub unit: Option<&'static str>,
    /// What it means, in a line.
    pub help: &'static str,
}

/// Names and values that tell samples of a family apart.
pub type Labels<'a> = &'a [(&'static str, &'a str)];

/// Families that are written one after the other.
pub struct Text {
    format: Format,
    out: String,
    family: Option<Family>,
}

impl Text {
    /// Nothing yet.
    #[must_use]
    pub fn new(format: Format) -> Self {
        Text {
            format,
            out: String::new(),
            family: None,
        }
    }

    /// Begins a family, which must not have been there before: samples that follow are its.
    pub fn family(&mut self, family: Family) {
        let Family {
            name,
            kind,
            unit,
            help,
        } = family;
        let suffix = match self.format {
            Format::OpenMetrics => "",
            Format::Prometheus => kind.suffix(),
        };
        let said = kind.name(self.format);
        self.line(format_args!("# TYPE {name}{suffix} {said}"));
        if let (Some(unit), Format::OpenMetrics) = (unit, self.format) {
            self.line(format_args!("# UNIT {name} {unit}"));
        }
        let help = escaped(help);
        self.line(format_args!("# HELP {name}{suffix} {help}"));
        self.family = Some(family);
    }

    /// A whole number of the family.
    pub fn count(&mut self, labels: Labels<'_>, value: u64) {
        self.sample(self.suffix(), labels, None, &value.to_string());
    }

    /// A number of the family that may have a fraction.
    pub fn number(&mut self, labels: Labels<'_>, value: f64) {
        self.sample(self.suffix(), labels, None, &float(value));
    }

    /// A histogram of the family: upper bounds in ascending order with how many were at most so large, how many
    /// there are in all, and their sum.
    pub fn histogram(&mut self, labels: Labels<'_>, below: &[(f64, u64)], all: u64, sum: f64) {
        for (bound, count) in below {
            let bound = float(*bound);
            self.sample("_bucket", labels, Some(&bound), &count.to_string());
        }
        let all = all.to_string();
        self.sample("_bucket", labels, Some("+Inf"), &all);
        self.sample("_sum", labels, None, &float(sum));
        self.sample("_count", labels, None, &all);
    }

    /// The text.
    #[must_use]
    pub fn done(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.out.push_str("# EOF\n");
        }
        self.out
    }

    fn suffix(&self) -> &'static str {
        self.family.map_or("", |family| family.kind.suffix())
    }

    fn sample(&mut self, suffix: &str, labels: Labels<'_>, bound: Option<&str>, value: &str) {
        let name = self.family.map_or("", |family| family.name);
        self.out.push_str(name);
        self.out.push_str(suffix);
        let labels = labels
            .iter()
            .copied()
            .chain(bound.map(|bound| ("le", bound)));
        let mut open = '{';
        for (name, value) in labels {
            self.out.push(open);
            open = ',';
            // Strings take everything.
            let _ = write!(self.out, "{name}=\"{}\"", escaped(value));
        }
        if open == ',' {
            self.out.push('}');
        }
        self.line(format_args!(" {value}"));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Strings take everything.
        let _ = self.out.write_fmt(line);
        self.out.push('\n');
    }
}

/// With what would end a value or a line written otherwise.
fn escaped(text: &str) -> std::borrow::Cow<'_, str> {
    if !text.contains(['\\', '"', '\n']) {
        return text.into();
    }
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
        .into()
}

/// With a point, or with an exponent of two digits at least, as Go writes it: bounds are compared as text.
fn float(value: f64) -> String {
    let text = format!("{value:?}");
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let (sign, exponent) = match exponent.strip_prefix('-') {
                Some(exponent) => ('-', exponent),
                None => ('+', exponent),
            };
            format!("{digits}e{sign}{exponent:0>2}")
        }
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(format: Format) -> String {
        let mut text = Text::new(format);
        text.family(Family {
            name: "x_build",
            kind: Kind::Info,
            unit: None,
            help: "what \"it\" is",
        });
        text.count(&[("version", "a\\b\"c\nd")], 1);
        text.family(Family {
            name: "x_cpu_seconds",
            kind: Kind::Counter,
            unit: Some("seconds"),
            help: "time",
        });
        text.number(&[], 1.5e-7);
        text.family(Family {
            name: "x_wait_seconds",
            kind: Kind::Histogram,
            unit: Some("seconds"),
            help: "waits",
        });
        text.histogram(&[("q", "0")], &[(0.5, 1), (1.0, 3)], 4, 12.0);
        text.done()
    }

    #[test]
    fn openmetrics() {
        let expected = r#"# TYPE x_build info
# HELP x_build what \"it\" is
x_build_info{version="a\\b\"c\nd"} 1
# TYPE x_cpu_seconds counter
# UNIT x_cpu_seconds seconds
# HELP x_cpu_seconds time
x_cpu_seconds_total 1.5e-07
# TYPE x_wait_seconds histogram
# UNIT x_wait_seconds seconds
# HELP x_wait_seconds waits
x_wait_seconds_bucket{q="0",le="0.5"} 1
x_wait_seconds_bucket{q="0",le="1.0"} 3
x_wait_seconds_bucket{q="0",le="+Inf"} 4
x_wait_seconds_sum{q="0"} 12.0
x_wait_seconds_count{q="0"} 4
# EOF
"#;
        assert_eq!(all(Format::OpenMetrics), expected);
    }

    #[test]
    fn the_older_format_names_samples_and_has_no_units_and_no_end() {
        let text = all(Format::Prometheus);
        let comments: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("# TYPE"))
            .collect();
        let expected = [
            "# TYPE x_build_info gauge",
            "# TYPE x_cpu_seconds_total counter",
            "# TYPE x_wait_seconds histogram",
        ];
        assert_eq!(comments, expected);
        assert!(!text.contains("UNIT") && !text.contains("EOF"));
        let samples = |format| -> Vec<String> {
            let text = all(format);
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            lines.map(str::to_owned).collect()
        };
        assert_eq!(samples(Format::OpenMetrics), samples(Format::Prometheus));
    }
}
