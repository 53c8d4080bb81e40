//! Upgrade in place: another program, most often a newer version of this one, goes on with everything that this process
//! has: listening sockets, front-ends with their queues, disks with their locks. docs/upgrade.md has the order.
//!
//! - [`launcher`]: a process that was made before this one gave its rights away, and can start the new program;
//! - [`channel`]: what the two say to each other;
//! - [`describe`]: what runs, in the words of the command line;
//! - [`hand_over`]: the old program's side, which [`hear`]s the new one; [`take_over`]: the new one's.

mod channel;
mod describe;
#[cfg(test)]
mod fields;
mod hand_over;
mod hear;
mod launcher;
mod scsi;
mod standing;
mod state;
mod take_over;

use std::sync::OnceLock;

pub(crate) use hand_over::Upgrade;
pub(crate) use launcher::{Launcher, Program};
pub(crate) use take_over::take_over;

use channel::Channel;

/// The variable that tells a new program the number of its channel.
const VARIABLE: &str = "BLOCKPLANE_TAKE_OVER";

/// The process that we are to go on for, if there is one.
static PREDECESSOR: OnceLock<Channel> = OnceLock::new();

/// Looks whether there is one.
///
/// # Safety
/// The process has one thread.
pub(crate) unsafe fn look_for_predecessor() {
    let Some(number) = std::env::var_os(VARIABLE) else {
        return;
    };
    // SAFETY: nobody else reads or writes the environment, as our caller says.
    unsafe { std::env::remove_var(VARIABLE) };
    if let Some(number) = number.to_str().and_then(|number| number.parse().ok())
        && let Some(channel) = Channel::inherit(number)
    {
        // It is looked for once.
        let _ = PREDECESSOR.set(channel);
    }
}

/// Whether we are to go on for another process.
pub(crate) fn is_wanted() -> bool {
    PREDECESSOR.get().is_some()
}

/// Tells the other process, if there is one, why it has to go on itself.
pub(crate) fn tell_failed(error: &dyn std::error::Error) {
    if let Some(channel) = PREDECESSOR.get() {
        // It sees our end as well.
        let _ = channel.send(&channel::Said::Failed(error.to_string()), &[]);
    }
}
