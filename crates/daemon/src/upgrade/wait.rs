//! Receives messages of the new program in a live upgrade with a timeout, and words the errors; kills a program whose channel fails.

use std::io;
use std::time::Duration;

use super::channel::{KEEP_ALIVE_INTERVAL, UpgradeMessage};
use super::launcher::{LauncherConnection, StartedProgram};

/// Receives a message that must be `expected`, within `timeout`. Calls `keep_alive` regularly meanwhile.
pub(crate) fn expect_message_or_kill_on_io_error(
    started: &StartedProgram,
    expected: &UpgradeMessage,
    timeout: Duration,
    launcher: &LauncherConnection,
    keep_alive: impl Fn(),
) -> Result<(), String> {
    match recv_or_timeout_with_keep_alive(started, timeout, keep_alive) {
        Ok(Some(message)) if message == *expected => Ok(()),
        Ok(Some(UpgradeMessage::Failed(reason))) => {
            Err(format!("the new program cannot take over: {reason}"))
        }
        Ok(Some(_)) => Err(
            "the new program sent a message that this version does not expect: restart instead"
                .to_owned(),
        ),
        Ok(None) => Err(format!(
            "the new program did not respond for {} s and was killed: find out what it waits for",
            timeout.as_secs()
        )),
        Err(error) => Err(kill_and_describe_error(&error, started, launcher)),
    }
}

/// Receives a message; `None` after the timeout. Calls `keep_alive` regularly meanwhile.
pub(crate) fn recv_or_timeout_with_keep_alive(
    started: &StartedProgram,
    timeout: Duration,
    keep_alive: impl Fn(),
) -> io::Result<Option<UpgradeMessage>> {
    let channel = &started.channel;
    let mut waited = Duration::ZERO;
    while !channel.is_readable_within(KEEP_ALIVE_INTERVAL)? {
        keep_alive();
        // No clock: it would run on while both processes are frozen.
        waited += KEEP_ALIVE_INTERVAL;
        if waited >= timeout {
            return Ok(None);
        }
    }
    let (message, _) = channel.recv()?;
    Ok(Some(message))
}

/// Error message for a broken channel. Kills the new program if it has not exited.
pub(crate) fn kill_and_describe_error(
    error: &io::Error,
    started: &StartedProgram,
    launcher: &LauncherConnection,
) -> String {
    let status = launcher
        .kill_program()
        .unwrap_or_else(|| "its exit status is unknown".to_owned());
    if error.kind() == io::ErrorKind::WouldBlock {
        let seconds = started.stall_timeout.as_secs();
        return format!(
            "the new program stalled in the middle of a message for {seconds} s and was killed: find out what it waits for"
        );
    }
    format!(
        "the new program exited before it took over ({status}): run it with --version, and see its log"
    )
}
