//! Ctrl-C: noticed, so that servers that were started are ended and files removed. The second one
//! ends the program at once.

use std::time::Duration;

use commands::signals;

use crate::error::{Error, Result};

/// An error once it was pressed: for what takes long between two measurements.
pub(crate) fn check() -> Result<()> {
    if signals::termination_requested() {
        return Err(Error::Interrupted);
    }
    Ok(())
}

/// Waits for so long, or until it is pressed.
pub(crate) fn sleep(time: Duration) -> Result<()> {
    if signals::sleep(time) {
        Ok(())
    } else {
        Err(Error::Interrupted)
    }
}
