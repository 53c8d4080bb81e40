//! Terminal control for `top`: alternate screen, keys without echo, and restoring both at the end.

use std::io::{Write, stdin, stdout};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::operator::error::{Error, Result};

/// Switches to the alternate screen and hides the cursor.
const ENTER_SEQUENCE: &[u8] = b"\x1b[?1049h\x1b[?25l";
/// The inverse of [`ENTER_SEQUENCE`].
const LEAVE_SEQUENCE: &[u8] = b"\x1b[?25h\x1b[?1049l";

/// The assumed size of a terminal that does not report one.
const DEFAULT_SIZE: (usize, usize) = (80, 24);

/// A terminal in drawing mode. Dropping it, also in a panic, restores the terminal.
pub(super) struct Terminal {
    settings_before: Termios,
    /// The text on the screen, and the size it was drawn for.
    last_drawn: Option<(String, (usize, usize))>,
}

/// A key that was pressed.
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

/// Columns and rows of the terminal on standard output, if it reports them.
pub(super) fn stdout_window_size() -> Option<(usize, usize)> {
    let size = tcgetwinsize(stdout()).ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col.into(), size.ws_row.into()))
}

impl Terminal {
    /// Switches the terminal to drawing mode.
    pub fn open() -> Result<Self> {
        let settings_before =
            tcgetattr(stdin()).map_err(Error::io("read the terminal's settings"))?;
        let mut terminal = Terminal {
            settings_before,
            last_drawn: None,
        };
        terminal.enter_drawing_mode()?;
        Ok(terminal)
    }

    /// Switches to drawing mode again, after [`Terminal::leave_drawing_mode`] or after other programs used the
    /// terminal.
    pub fn enter_drawing_mode(&mut self) -> Result<()> {
        let mut settings = self.settings_before.clone();
        // Ctrl-C and Ctrl-Z stay signals.
        settings.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        // A process in the background is stopped here until it is in the foreground.
        retry_on_intr(|| tcsetattr(stdin(), OptionalActions::Now, &settings))
            .map_err(Error::io("change the terminal's settings"))?;
        self.last_drawn = None;
        write_to_terminal(ENTER_SEQUENCE)
    }

    /// Restores the terminal as it was before.
    pub fn leave_drawing_mode(&self) {
        // The terminal may be gone; ignore the errors.
        let _ = write_to_terminal(LEAVE_SEQUENCE);
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.settings_before);
    }

    /// The number of columns and rows, or the usual ones if the terminal does not report them.
    pub fn size_or_default(&self) -> (usize, usize) {
        stdout_window_size().unwrap_or(DEFAULT_SIZE)
    }

    /// Replaces the screen with a text of whole lines.
    pub fn draw_if_changed(&mut self, text: String) -> Result<()> {
        let new = Some((text, self.size_or_default()));
        if new == self.last_drawn {
            return Ok(());
        }
        if let Some((text, _)) = &new {
            let lines: Vec<&str> = text.lines().collect();
            write_to_terminal(
                format!("\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\r\n")).as_bytes(),
            )?;
        }
        self.last_drawn = new;
        Ok(())
    }

    /// Waits for keys, at most for `wait`; a signal or a readable `wake_fd` ends the wait early.
    pub fn wait_for_keys(&self, wake_fd: impl AsFd, wait: Duration) -> Result<Vec<Key>> {
        let stdin = stdin();
        let mut fds = [
            PollFd::new(&stdin, PollFlags::IN),
            PollFd::new(&wake_fd, PollFlags::IN),
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
            Ok(count) => Ok(Key::parse_all(&bytes[..count])),
            Err(Errno::INTR) => Ok(Vec::new()),
            Err(error) => Err(Error::io("read a key")(error)),
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.leave_drawing_mode();
    }
}

/// Writes to the terminal at once.
fn write_to_terminal(bytes: &[u8]) -> Result<()> {
    let mut out = stdout().lock();
    let written = out.write_all(bytes).and_then(|()| out.flush());
    written.map_err(Error::io("draw on the terminal"))
}

impl Key {
    /// The keys in the bytes of one read; a terminal sends an arrow as three bytes at once.
    fn parse_all(mut bytes: &[u8]) -> Vec<Key> {
        let mut keys = Vec::new();
        while let [first, rest @ ..] = bytes {
            let (key, rest) = match (first, rest) {
                (0x1b, [b'[' | b'O', arrow, rest @ ..]) => (Key::from_arrow(*arrow), rest),
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

    /// The arrow whose sequence ends with a byte.
    fn from_arrow(last: u8) -> Option<Key> {
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
    fn keys_read_at_once_are_all_parsed() {
        let keys = Key::parse_all(b"\x1b[B\x1b[B\t x\x1bOA\x1b[H");
        assert_eq!(
            keys,
            [Key::Down, Key::Down, Key::Queues, Key::Pause, Key::Up]
        );
        assert_eq!(Key::parse_all(b"\x1b"), [Key::Quit]);
        assert_eq!(Key::parse_all(b"q"), [Key::Quit]);
    }
}
