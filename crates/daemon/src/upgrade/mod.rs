//! Upgrade in place: another program, most often a newer version of this one, goes on with everything that this process
//! has: listening sockets, front-ends with their queues, disks with their locks. docs/upgrade.md has the order.
//!
//! This is what the two programs need to reach each other:
//!
//! - [`launcher`]: a process that was made before this one gave its rights away, and can start the new program;
//! - [`channel`]: the messages between the two; [`hear`] waits for one;
//! - [`state`]: descriptors and places of queues in them.
//!
//! What each of them does is in [`crate::actions::upgrade`].

pub(crate) mod channel;
pub(crate) mod hear;
pub(crate) mod launcher;
pub(crate) mod state;

use std::sync::OnceLock;
use std::time::Duration;

use channel::Channel;

/// The variable that tells a new program the number of its channel.
const VARIABLE: &str = "BLOCKPLANE_TAKE_OVER";

/// The process that we are to go on for, if there is one.
pub(crate) static PREDECESSOR: OnceLock<Channel> = OnceLock::new();

/// Looks whether there is one.
///
/// # Safety
/// The process has one thread.
pub unsafe fn look_for_predecessor() {
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
#[must_use]
pub fn is_wanted() -> bool {
    PREDECESSOR.get().is_some()
}

/// Tells the other process, if there is one, why it has to go on itself.
pub fn tell_failed(error: &dyn std::error::Error) {
    if let Some(channel) = PREDECESSOR.get() {
        // It sees our end as well.
        let _ = channel.send(&channel::Said::Failed(error.to_string()), &[]);
    }
}

/// Another process has everything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Upgrade {
    /// Its number.
    pub pid: i64,
    /// From the first queue that took no more to the last that goes on.
    pub pause: Duration,
}
