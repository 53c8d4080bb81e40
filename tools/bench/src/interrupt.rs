//! Ctrl-C handling: a measurement ends its servers and removes its files. The second one
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
    if signals::sleep_unless_terminated(time) {
        Ok(())
    } else {
        Err(Error::Interrupted)
    }
}
