//! Chooses the text format of metrics, OpenMetrics or Prometheus' older one, by a client's `Accept` header. Nothing is encoded
//! here.

/// A text format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsTextFormat {
    /// OpenMetrics text, version 1.0.0.
    OpenMetrics,
    /// Prometheus' older text format, version 0.0.4.
    Prometheus,
}

impl MetricsTextFormat {
    /// Value of the `Content-Type` header.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// The format that an `Accept` header prefers; OpenMetrics if it has no preference.
    pub(crate) fn negotiate(accept: &str) -> Self {
        let (mut openmetrics_weight, mut plain_weight) = (0, 0);
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let media_type = parts.next().unwrap_or_default().to_ascii_lowercase();
            let weight = parts.find_map(|part| part.strip_prefix("q="));
            let weight = weight.map_or(1000, parse_weight);
            match media_type.as_str() {
                "application/openmetrics-text" => {
                    openmetrics_weight = openmetrics_weight.max(weight);
                }
                // A browser displays plain text, but would save OpenMetrics as a file.
                "text/plain" | "text/*" | "text/html" => {
                    plain_weight = plain_weight.max(weight);
                }
                _ => {}
            }
        }
        if plain_weight > openmetrics_weight {
            Self::Prometheus
        } else {
            Self::OpenMetrics
        }
    }
}

/// Parses a weight from 0 to 1, as thousandths: it has at most three decimal places.
fn parse_weight(weight: &str) -> u32 {
    let weight: f32 = weight.parse().unwrap_or(0.0);
    // The clamp keeps it in range.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let thousandths = (weight.clamp(0.0, 1.0) * 1000.0) as u32;
    thousandths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_follows_the_accept_header() {
        use MetricsTextFormat::{OpenMetrics, Prometheus};
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
        for (accept, expected) in [
            (prometheus, OpenMetrics),
            (browser, Prometheus),
            ("", OpenMetrics),
            ("*/*", OpenMetrics),
            ("text/plain", Prometheus),
            (
                "text/plain;q=0.4, application/openmetrics-text; q=0.3",
                Prometheus,
            ),
            ("text/plain, application/openmetrics-text", OpenMetrics),
            (
                "application/openmetrics-text;q=0, text/plain;q=0.1",
                Prometheus,
            ),
            (";;;,q=,\u{0}", OpenMetrics),
        ] {
            assert_eq!(MetricsTextFormat::negotiate(accept), expected, "{accept}");
        }
    }
}
