//! One line for each event, whatever its text has: clients choose some of it, such as names of exports, and must neither forge lines nor
//! change a terminal.

use std::io::{self, IsTerminal, Write};

use tracing_subscriber::fmt::MakeWriter;

const ESC: u8 = b'\x1b';

/// Standard error, to which events are written.
#[derive(Clone, Copy)]
pub(super) struct Lines {
    /// Events have colours.
    has_colours: bool,
}

/// Writes each event, which comes in one piece.
pub(super) struct LineWriter(Lines);

impl Lines {
    /// With colours if it is a terminal.
    pub fn of_stderr() -> Self {
        Lines {
            has_colours: io::stderr().is_terminal(),
        }
    }

    /// Whether the events have colours.
    pub fn has_colours(self) -> bool {
        self.has_colours
    }

    /// A line with its control characters escaped, except for colours.
    fn printable(self, line: &[u8]) -> Vec<u8> {
        let mut printable = Vec::with_capacity(line.len());
        for (at, byte) in line.iter().enumerate() {
            let is_colour = self.has_colours && begins_colour(&line[at..]);
            match byte.is_ascii_control() && !is_colour {
                true => printable.extend(byte.escape_ascii()),
                false => printable.push(*byte),
            }
        }
        printable
    }
}

/// Whether text begins with a sequence that sets a colour, `ESC [ numbers m` (ECMA-48, SGR).
fn begins_colour(text: &[u8]) -> bool {
    let numbers = text.strip_prefix(&[ESC, b'[']).unwrap_or_default();
    let end = numbers
        .iter()
        .find(|byte| !byte.is_ascii_digit() && **byte != b';');
    end == Some(&b'm')
}

impl MakeWriter<'_> for Lines {
    type Writer = LineWriter;

    fn make_writer(&self) -> Self::Writer {
        LineWriter(*self)
    }
}

impl Write for LineWriter {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let line = event.strip_suffix(b"\n").unwrap_or(event);
        let mut written = self.0.printable(line);
        written.extend(&event[line.len()..]);
        io::stderr().write_all(&written)?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
