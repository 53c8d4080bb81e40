//! The events of this process, as text.

use std::io::{self, Write};
use std::sync::{Mutex, Once, PoisonError};

use test_support::deadline::eventually;

static TEXT: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// The events since it was made, during the turn of a test.
pub struct Log(());

impl Log {
    pub fn capture() -> Self {
        static SUBSCRIBE: Once = Once::new();
        SUBSCRIBE.call_once(|| {
            let subscriber = tracing_subscriber::fmt().with_ansi(false);
            subscriber.with_writer(|| Writer).init();
        });
        TEXT.lock().unwrap_or_else(PoisonError::into_inner).clear();
        Log(())
    }

    /// Waits for a text, and returns all.
    pub fn take_when_it_has(self, part: &str) -> String {
        let text = || {
            let text = TEXT.lock().unwrap();
            String::from_utf8_lossy(&text).into_owned()
        };
        eventually(part, || text().contains(part));
        text()
    }
}

struct Writer;

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        TEXT.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
