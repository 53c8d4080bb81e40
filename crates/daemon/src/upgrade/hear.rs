//! Messages from the new program to the one that has started it, and how long they are waited for.

use std::io;
use std::time::Instant;

use super::channel::{ALIVE, Channel, START_TIME, Said};
use super::launcher::Launcher;

/// Waits until the other program says this.
pub(crate) fn expect(
    channel: &Channel,
    what: &Said,
    launcher: &Launcher,
    alive: impl Fn(),
) -> Result<(), String> {
    match hear(channel, alive) {
        Ok(Some(said)) if said == *what => Ok(()),
        Ok(Some(Said::Failed(why))) => Err(format!("the new program cannot take over: {why}")),
        Ok(Some(_)) => Err(
            "the new program says something else than this version expects: restart instead"
                .to_owned(),
        ),
        Ok(None) => Err(format!(
            "the new program has said nothing for {} s, and was ended: see what it waits for",
            START_TIME.as_secs()
        )),
        Err(error) => Err(gone(&error, launcher)),
    }
}

/// What the other program says; `None`: nothing, for so long that nothing will come.
pub(crate) fn hear(channel: &Channel, alive: impl Fn()) -> io::Result<Option<Said>> {
    let until = Instant::now() + START_TIME;
    while !channel.is_readable_within(ALIVE)? {
        alive();
        if Instant::now() >= until {
            return Ok(None);
        }
    }
    let (said, _) = channel.recv()?;
    Ok(Some(said))
}

/// Why nothing more comes of a program, which is gone after this if it was not before.
pub(crate) fn gone(error: &io::Error, launcher: &Launcher) -> String {
    let how = launcher
        .end()
        .unwrap_or_else(|| "nobody knows how".to_owned());
    if error.kind() == io::ErrorKind::WouldBlock {
        let seconds = START_TIME.as_secs();
        return format!(
            "the new program has stopped in the middle of a message for {seconds} s, and was ended: see what it waits for"
        );
    }
    format!(
        "the new program ended before it took over ({how}): try it by itself, with --version, and see its log"
    )
}
