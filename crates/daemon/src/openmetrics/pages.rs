//! The pages that the endpoint serves.

use crate::openmetrics::accept::Format;

/// Where their text comes from.
pub trait Pages: Send + 'static {
    /// `/metrics`: all figures as they are now.
    fn figures(&self, format: Format) -> String;

    /// `/`: who this is, and where its figures are.
    fn index(&self) -> String;
}
