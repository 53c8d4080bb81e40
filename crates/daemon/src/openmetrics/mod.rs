//! An endpoint for Prometheus and what speaks like it: figures as text, over HTTP.
//!
//! - [`Text`] writes families of samples, in either of the two formats;
//! - [`Server`] is a thread that serves them, to few clients at a time, none of which it trusts.
//!
//! What is measured is not known here.

mod accept;
mod client;
mod door;
mod http;
mod limits;
mod pages;
mod server;
mod text;

pub(crate) use accept::Format;
pub(crate) use door::Door;
pub(crate) use pages::Pages;
pub(crate) use server::Server;
pub(crate) use text::{Family, Kind, Labels, Text};
