//! Code that the commands of all programs share: argument parsing and exit status, signals, durations, and
//! escaping of text for terminals and for SVG images.
//!
//! - [`main`]: parses arguments, runs a command, and returns its exit status; [`usage_error_text`]: the text of wrong
//!   arguments;
//! - [`printable`]: text that is safe to print on a terminal;
//! - [`signals`]: requests to terminate, to suspend and to resume;
//! - [`time`]: durations on a command line;
//! - [`xml`]: text in SVG images.
//!
//! It has no command of its own.

mod program;
pub mod signals;
pub mod time;
pub mod xml;

pub use program::{
    HELP_COLUMNS, main, must_be_escaped, printable, printable_in_line, printable_path,
    usage_error_text,
};
