//! The terminal that `top` draws on: its own screen, keys without echo; and all as before at the end.

use std::io::{Write, stdin, stdout};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::operator::error::{Error, Result};

const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l";
const LEAVE: &[u8] = b"\x1b[?25h\x1b[?1049l";

/// What a terminal is when nobody knows.
const USUAL_SIZE: (usize, usize) = (80, 24);

/// A terminal that is drawn on. Dropping it, also in a panic, restores it.
pub(super) struct Terminal {
    before: Termios,
    /// What is on it, and for which size.
    drawn: Option<(String, (usize, usize))>,
}

/// What was pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Pause,
    Queues,
    Left,
    Right,
    Up,
    Down,
}

/// Columns and rows of the terminal that standard output is, if it is one that says so.
pub(super) fn size() -> Option<(usize, usize)> {
    let size = tcgetwinsize(stdout()).ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col.into(), size.ws_row.into()))
}

impl Terminal {
    /// Takes the terminal over.
    pub fn open() -> Result<Self> {
        let before = tcgetattr(stdin()).map_err(Error::io("look at the terminal"))?;
        let mut terminal = Terminal {
            before,
            drawn: None,
        };
        terminal.enter()?;
        Ok(terminal)
    }

    /// Takes it over again, after [`Terminal::leave`] or whatever others did with it.
    pub fn enter(&mut self) -> Result<()> {
        let mut raw = self.before.clone();
        // Ctrl-C and Ctrl-Z stay signals.
        raw.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        // In the background it stops us here, until we are in the foreground.
        retry_on_intr(|| tcsetattr(stdin(), OptionalActions::Now, &raw))
            .map_err(Error::io("set the terminal up"))?;
        self.drawn = None;
        write(ENTER)
    }

    /// Gives it back as it was.
    pub fn leave(&self) {
        // It may be gone; then there is nothing to restore.
        let _ = write(LEAVE);
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }

    /// Columns and rows.
    pub fn size(&self) -> (usize, usize) {
        size().unwrap_or(USUAL_SIZE)
    }

    /// Shows a text of whole lines instead of what is there.
    pub fn draw(&mut self, text: String) -> Result<()> {
        let now = Some((text, self.size()));
        if now == self.drawn {
            return Ok(());
        }
        if let Some((text, _)) = &now {
            let lines: Vec<&str> = text.lines().collect();
            write(format!("\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\r\n")).as_bytes())?;
        }
        self.drawn = now;
        Ok(())
    }

    /// Waits for keys, for so long at most; a signal ends it early, and so does what can be read from `other`.
    pub fn keys(&self, other: impl AsFd, wait: Duration) -> Result<Vec<Key>> {
        let stdin = stdin();
        let mut fds = [
            PollFd::new(&stdin, PollFlags::IN),
            PollFd::new(&other, PollFlags::IN),
        ];
        let wait = Timespec::try_from(wait).ok();
        match poll(&mut fds, wait.as_ref()) {
            Ok(_) if !fds[0].revents().is_empty() => {}
            Ok(_) | Err(Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(Error::io("wait for a key")(error)),
        }
        let mut bytes = [0; 256];
        match rustix::io::read(&stdin, &mut bytes) {
            // The terminal is gone.
            Ok(0) => Ok(vec![Key::Quit]),
            Ok(count) => Ok(Key::all(&bytes[..count])),
            Err(Errno::INTR) => Ok(Vec::new()),
            Err(error) => Err(Error::io("read a key")(error)),
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.leave();
    }
}

fn write(bytes: &[u8]) -> Result<()> {
    let mut out = stdout().lock();
    let written = out.write_all(bytes).and_then(|()| out.flush());
    written.map_err(Error::io("draw on the terminal"))
}

impl Key {
    /// Those that were pressed since the last look; a terminal sends an arrow as three bytes at once.
    fn all(mut bytes: &[u8]) -> Vec<Key> {
        let mut keys = Vec::new();
        while let [first, rest @ ..] = bytes {
            let (key, rest) = match (first, rest) {
                (0x1b, [b'[' | b'O', arrow, rest @ ..]) => (Key::of_arrow(*arrow), rest),
                (b'q' | b'Q' | 0x1b, rest) => (Some(Key::Quit), rest),
                (b' ', rest) => (Some(Key::Pause), rest),
                (b'\t', rest) => (Some(Key::Queues), rest),
                (_, rest) => (None, rest),
            };
            keys.extend(key);
            bytes = rest;
        }
        keys
    }

    fn of_arrow(last: u8) -> Option<Key> {
        match last {
            b'A' => Some(Key::Up),
            b'B' => Some(Key::Down),
            b'C' => Some(Key::Right),
            b'D' => Some(Key::Left),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_come_together_all_count() {
        let keys = Key::all(b"\x1b[B\x1b[B\t x\x1bOA\x1b[H");
        assert_eq!(
            keys,
            [Key::Down, Key::Down, Key::Queues, Key::Pause, Key::Up]
        );
        assert_eq!(Key::all(b"\x1b"), [Key::Quit]);
        assert_eq!(Key::all(b"q"), [Key::Quit]);
    }
}
