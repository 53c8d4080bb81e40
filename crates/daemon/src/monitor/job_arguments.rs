//! Arguments that commands for jobs have in common.

use block::CopyFailure;
use iothread::OnError;
use qmp::{Arguments, Error};
use serde_json::Value;

use crate::control::{MainThread, run_on_main_thread};

/// Sends the main thread the failure of a copy that a guest has waited for, with the number of its job.
pub(super) fn report_failed_copy(
    control: &MainThread,
) -> impl Fn(u64, CopyFailure) + Send + Sync + use<> {
    let sender = control.message_sender.clone();
    move |number, failure| {
        run_on_main_thread(&sender, move |control| {
            control.on_failed_write_copy(number, failure);
        });
    }
}

/// Reads a speed in bytes per second.
pub(super) fn read_speed(data: &Arguments) -> Result<u64, Error> {
    let speed = data.get("speed").map_or(Some(0), Value::as_i64);
    let speed = speed.and_then(|speed| u64::try_from(speed).ok());
    speed.ok_or_else(|| Error::generic("Parameter 'speed' expects a non-negative value"))
}

/// The policy of this name. There is no device whose own policy `auto` could be.
pub(super) fn on_error(name: Option<&str>) -> OnError {
    match name {
        Some("ignore") => OnError::Ignore,
        Some("stop") => OnError::Stop,
        Some("enospc") => OnError::NoSpace,
        _ => OnError::Report,
    }
}
