//! The terminal that `top` draws on: its own screen, keys without echo; and all as before at the end.

use std::io::{Read, Write, stdin, stdout};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::error::{Error, Result};

const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l";
const LEAVE: &[u8] = b"\x1b[?25h\x1b[?1049l";

/// What a terminal is when nobody knows.
pub(super) const USUAL_SIZE: (usize, usize) = (80, 24);

/// A terminal that is drawn on. Dropping it, also in a panic, restores it.
pub(super) struct Terminal {
    before: Termios,
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

impl Terminal {
    /// Takes the terminal over.
    pub fn open() -> Result<Self> {
        let before = tcgetattr(stdin()).map_err(Error::io("look at the terminal"))?;
        let mut raw = before.clone();
        // Ctrl-C stays a signal.
        raw.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        tcsetattr(stdin(), OptionalActions::Now, &raw).map_err(Error::io("set the terminal up"))?;
        let terminal = Terminal { before };
        terminal.write(ENTER)?;
        Ok(terminal)
    }

    /// Columns and rows.
    pub fn size(&self) -> (usize, usize) {
        match tcgetwinsize(stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                (size.ws_col.into(), size.ws_row.into())
            }
            _ => USUAL_SIZE,
        }
    }

    /// Shows a text of whole lines instead of what is there.
    pub fn draw(&self, text: &str) -> Result<()> {
        let lines: Vec<&str> = text.lines().collect();
        let screen = format!("\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\r\n"));
        self.write(screen.as_bytes())
    }

    /// Waits for a key, for so long at most; a signal ends it early.
    pub fn key(&self, wait: Duration) -> Result<Option<Key>> {
        let stdin = stdin();
        let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
        let wait = Timespec::try_from(wait).ok();
        match poll(&mut fds, wait.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(Error::io("wait for a key")(error)),
        }
        let mut bytes = [0; 16];
        match stdin.lock().read(&mut bytes) {
            // The terminal is gone.
            Ok(0) => Ok(Some(Key::Quit)),
            Ok(count) => Ok(Key::of(&bytes[..count])),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(Error::io("read a key")(error)),
        }
    }

    fn write(&self, bytes: &[u8]) -> Result<()> {
        let mut out = stdout().lock();
        let written = out.write_all(bytes).and_then(|()| out.flush());
        written.map_err(Error::io("draw on the terminal"))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may be gone; then there is nothing to restore.
        let _ = self.write(LEAVE);
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }
}

impl Key {
    fn of(bytes: &[u8]) -> Option<Key> {
        match bytes {
            b"q" | b"Q" | b"\x1b" => Some(Key::Quit),
            b" " => Some(Key::Pause),
            b"\t" => Some(Key::Queues),
            [0x1b, b'[' | b'O', arrow] => match arrow {
                b'A' => Some(Key::Up),
                b'B' => Some(Key::Down),
                b'C' => Some(Key::Right),
                b'D' => Some(Key::Left),
                _ => None,
            },
            _ => None,
        }
    }
}
