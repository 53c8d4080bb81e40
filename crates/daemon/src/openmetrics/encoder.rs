//! Encoder of metric families as text, in OpenMetrics or Prometheus' older format.
//!
//! The two formats differ in little: OpenMetrics leaves out a counter's `_total` in the lines that describe its family,
//! and has units, families of type `info`, and an end marker.

use std::fmt::Write;

use crate::openmetrics::format::MetricsTextFormat;

/// Type of a metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    /// Only grows while its labels exist. Names of samples end in `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Cumulative counts by upper bound, in samples `_bucket`, `_sum` and `_count`.
    Histogram,
    /// Always 1; the information is in the labels. Names of samples end in `_info`.
    Info,
}

impl MetricType {
    /// The type's name in a format.
    fn name(self, format: MetricsTextFormat) -> &'static str {
        match (self, format) {
            (Self::Counter, _) => "counter",
            (Self::Histogram, _) => "histogram",
            (Self::Info, MetricsTextFormat::OpenMetrics) => "info",
            (Self::Gauge, _) | (Self::Info, MetricsTextFormat::Prometheus) => "gauge",
        }
    }

    /// Suffix that names of samples add to that of the family.
    fn sample_suffix(self) -> &'static str {
        match self {
            Self::Counter => "_total",
            Self::Info => "_info",
            Self::Gauge | Self::Histogram => "",
        }
    }
}

/// A metric family: samples of one name that differ in their labels.
#[derive(Clone, Copy, Debug)]
pub struct MetricFamily {
    /// Its name, which ends with its unit and has no suffix of its type.
    pub name: &'static str,
    /// Its type.
    pub kind: MetricType,
    /// Its unit, if it has one.
    pub unit: Option<&'static str>,
    /// Description in one line.
    pub help: &'static str,
}

/// Names and values of the labels of a sample.
pub type Labels<'a> = &'a [(&'static str, &'a str)];

/// Encodes metric families one after the other.
pub struct MetricsTextEncoder {
    format: MetricsTextFormat,
    out: String,
    family: Option<MetricFamily>,
}

impl MetricsTextEncoder {
    /// Creates an encoder without families.
    #[must_use]
    pub fn new(format: MetricsTextFormat) -> Self {
        MetricsTextEncoder {
            format,
            out: String::new(),
            family: None,
        }
    }

    /// Begins a family, to which the samples that follow belong. Each family must be written once.
    pub fn begin_family(&mut self, family: MetricFamily) {
        let MetricFamily {
            name,
            kind,
            unit,
            help,
        } = family;
        let suffix = match self.format {
            MetricsTextFormat::OpenMetrics => "",
            MetricsTextFormat::Prometheus => kind.sample_suffix(),
        };
        let kind = kind.name(self.format);
        self.end_line_with(format_args!("# TYPE {name}{suffix} {kind}"));
        if let (Some(unit), MetricsTextFormat::OpenMetrics) = (unit, self.format) {
            self.end_line_with(format_args!("# UNIT {name} {unit}"));
        }
        let help = escaped(help);
        self.end_line_with(format_args!("# HELP {name}{suffix} {help}"));
        self.family = Some(family);
    }

    /// Adds a sample with an integer value.
    pub fn add_integer_sample(&mut self, labels: Labels<'_>, value: u64) {
        self.write_sample(self.sample_suffix(), labels, None, &value.to_string());
    }

    /// Adds a sample with a floating-point value.
    pub fn add_float_sample(&mut self, labels: Labels<'_>, value: f64) {
        self.write_sample(self.sample_suffix(), labels, None, &format_float(value));
    }

    /// Adds the samples of a histogram: upper bounds in ascending order with their cumulative counts, then the total
    /// count and the sum of the values.
    pub fn add_histogram(
        &mut self,
        labels: Labels<'_>,
        buckets: &[(f64, u64)],
        count: u64,
        sum: f64,
    ) {
        for (bound, count) in buckets {
            let bound = format_float(*bound);
            self.write_sample("_bucket", labels, Some(&bound), &count.to_string());
        }
        let count = count.to_string();
        self.write_sample("_bucket", labels, Some("+Inf"), &count);
        self.write_sample("_sum", labels, None, &format_float(sum));
        self.write_sample("_count", labels, None, &count);
    }

    /// Ends the text and returns it.
    #[must_use]
    pub fn finish(mut self) -> String {
        if self.format == MetricsTextFormat::OpenMetrics {
            self.out.push_str("# EOF\n");
        }
        self.out
    }

    /// Suffix that the type of the current family gives to names of samples.
    fn sample_suffix(&self) -> &'static str {
        self.family.map_or("", |family| family.kind.sample_suffix())
    }

    /// Writes the line of a sample; `bound` is the upper bound of a histogram's bucket.
    fn write_sample(&mut self, suffix: &str, labels: Labels<'_>, bound: Option<&str>, value: &str) {
        let name = self.family.map_or("", |family| family.name);
        self.out.push_str(name);
        self.out.push_str(suffix);
        let labels = labels
            .iter()
            .copied()
            .chain(bound.map(|bound| ("le", bound)));
        let mut separator = '{';
        for (name, value) in labels {
            self.out.push(separator);
            separator = ',';
            // Writing to a string cannot fail.
            let _ = write!(self.out, "{name}=\"{}\"", escaped(value));
        }
        if separator == ',' {
            self.out.push('}');
        }
        self.end_line_with(format_args!(" {value}"));
    }

    fn end_line_with(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.out.write_fmt(line);
        self.out.push('\n');
    }
}

/// Escapes characters that would end a value or a line.
fn escaped(text: &str) -> std::borrow::Cow<'_, str> {
    if !text.contains(['\\', '"', '\n']) {
        return text.into();
    }
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
        .into()
}

/// Formats a number with a point, or with an exponent of at least two digits, as Go does: bounds are compared as text.
fn format_float(value: f64) -> String {
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

    fn encode_samples(format: MetricsTextFormat) -> String {
        let mut text = MetricsTextEncoder::new(format);
        text.begin_family(MetricFamily {
            name: "x_build",
            kind: MetricType::Info,
            unit: None,
            help: "what \"it\" is",
        });
        text.add_integer_sample(&[("version", "a\\b\"c\nd")], 1);
        text.begin_family(MetricFamily {
            name: "x_cpu_seconds",
            kind: MetricType::Counter,
            unit: Some("seconds"),
            help: "time",
        });
        text.add_float_sample(&[], 1.5e-7);
        text.begin_family(MetricFamily {
            name: "x_wait_seconds",
            kind: MetricType::Histogram,
            unit: Some("seconds"),
            help: "waits",
        });
        text.add_histogram(&[("q", "0")], &[(0.5, 1), (1.0, 3)], 4, 12.0);
        text.finish()
    }

    #[test]
    fn openmetrics_has_units_and_an_end_marker() {
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
        assert_eq!(encode_samples(MetricsTextFormat::OpenMetrics), expected);
    }

    #[test]
    fn prometheus_format_has_full_sample_names_and_no_units_or_end_marker() {
        let parts = |format, prefix: &str| -> Vec<String> {
            let text = encode_samples(format);
            let lines = text.lines().filter(|line| line.starts_with(prefix));
            lines.map(str::to_owned).collect()
        };
        let prometheus = MetricsTextFormat::Prometheus;
        let types = [
            "# TYPE x_build_info gauge",
            "# TYPE x_cpu_seconds_total counter",
            "# TYPE x_wait_seconds histogram",
        ];
        assert_eq!(parts(prometheus, "# TYPE"), types);
        assert_eq!(parts(prometheus, "# UNIT"), [""; 0]);
        assert_eq!(parts(prometheus, "# EOF"), [""; 0]);
        let samples = parts(MetricsTextFormat::OpenMetrics, "x_");
        assert_eq!(samples, parts(prometheus, "x_"));
    }
}
