//! The trait that supplies the text of the two pages of the metrics endpoint, `/metrics` and `/`.

use crate::openmetrics::format::MetricsTextFormat;

/// Source of the text of the pages.
pub trait HttpPageSource: Send + 'static {
    /// `/metrics`: current values of all metrics.
    fn metrics_page(&self, format: MetricsTextFormat) -> String;

    /// `/`: name and version of the program, and a link to the metrics.
    fn plain_text_index(&self) -> String;
}
