//! Output of results, where scripts and pipes read them at once.

use std::io::Write;

use crate::operator::error::{Error, Result};

/// Prints a text and a line break, and flushes.
pub(crate) fn print_and_flush(out: &mut impl Write, text: &str) -> Result<()> {
    let written = writeln!(out, "{text}").and_then(|()| out.flush());
    written.map_err(Error::io("print the result"))
}
