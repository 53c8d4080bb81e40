//! HTTP endpoint that serves metrics to Prometheus and compatible scrapers, whatever the metrics are.
//!
//! - [`MetricsTextEncoder`] writes families of samples in either of the two text formats;
//! - [`HttpServer`] is a thread that serves them to a small number of untrusted clients.
//!
//! Which metrics there are is the business of [`crate::metrics`].

mod client;
mod encoder;
mod format;
mod http;
mod limits;
mod listener;
mod pages;
mod server;

pub(crate) use encoder::{Labels, MetricFamily, MetricType, MetricsTextEncoder};
pub(crate) use format::MetricsTextFormat;
pub(crate) use listener::HttpListener;
pub(crate) use pages::HttpPageSource;
pub(crate) use server::HttpServer;
