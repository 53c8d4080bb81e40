//! The new process's channel to its predecessor in a live upgrade; in submodules the messages between the two processes,
//! their encoding, and the start of the new program.
//!
//! In a live upgrade a new process, usually of a newer version, takes over everything that this process has: listening sockets,
//! front-ends with their queues, disks with their locks. docs/upgrade.md describes the protocol.
//!
//! - [`launcher`]: a helper process, forked before the daemon drops privileges, that can start the new program;
//! - [`channel`]: messages between the two; [`wait`] receives them with a timeout;
//! - [`state_json`]: conversion of the state in these messages.
//!
//! The steps of both sides are in [`crate::actions::upgrade`].

pub(crate) mod channel;
pub(crate) mod launcher;
pub(crate) mod state_json;
pub(crate) mod wait;

use std::sync::OnceLock;
use std::time::Duration;

use channel::UpgradeChannel;

/// Environment variable with the descriptor number of the new program's channel.
const CHANNEL_VARIABLE: &str = "BLOCKPLANE_TAKE_OVER";

/// Channel to the process that this one replaces, if there is one.
pub(crate) static PREDECESSOR_CHANNEL: OnceLock<UpgradeChannel> = OnceLock::new();

/// Opens the channel to the predecessor, if this process was started for a live upgrade.
///
/// # Safety
/// The process has one thread.
pub unsafe fn init_predecessor_channel() {
    let Some(number) = std::env::var_os(CHANNEL_VARIABLE) else {
        return;
    };
    // SAFETY: no other thread reads or writes the environment, as the caller guarantees.
    unsafe { std::env::remove_var(CHANNEL_VARIABLE) };
    if let Some(number) = number.to_str().and_then(|number| number.parse().ok())
        && let Some(channel) = UpgradeChannel::from_inherited_fd(number)
    {
        // Not set before: the variable is removed by the first call.
        let _ = PREDECESSOR_CHANNEL.set(channel);
    }
}

/// Whether this process was started for a live upgrade.
#[must_use]
pub fn has_predecessor() -> bool {
    PREDECESSOR_CHANNEL.get().is_some()
}

/// Sends the predecessor, if there is one, the reason why this process cannot take over.
pub fn report_failure_to_predecessor(error: &dyn std::error::Error) {
    if let Some(channel) = PREDECESSOR_CHANNEL.get() {
        // If sending fails, the predecessor still sees that the channel is closed.
        let _ = channel.send(&channel::UpgradeMessage::Failed(error.to_string()), &[]);
    }
}

/// A completed live upgrade.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompletedHandover {
    /// PID of the new process.
    pub pid: i64,
    /// Time from when the first queue stopped admitting requests until the last one resumed.
    pub pause: Duration,
}
