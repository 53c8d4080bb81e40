//! The write cache, as the driver knows it: whether a write that has completed may still be lost with the host.

use crate::plan::{Config, DriverFeatures};

/// What was negotiated and set.
#[derive(Clone, Copy, Debug)]
pub struct WriteCache {
    /// What the driver has negotiated.
    pub driver: DriverFeatures,
    /// As the device was made.
    made: bool,
    /// As the configuration space has it.
    pub mode: bool,
    /// The device may already make writes stable, or may still do so.
    turning: bool,
}

impl WriteCache {
    /// Of a device that was just reset.
    pub fn new(config: &Config, driver: DriverFeatures) -> Self {
        let made = !config.write_through;
        WriteCache {
            driver,
            made,
            mode: made,
            turning: false,
        }
    }

    /// Whether the device has a write cache, by what it was last set to.
    pub fn is_on(&self) -> bool {
        let DriverFeatures { flush, config_wce } = self.driver;
        flush && if config_wce { self.mode } else { self.made }
    }

    /// Whether each write that completes is stable, so that the driver relies on it.
    pub fn writes_are_stable(&self) -> bool {
        !self.is_on() && !self.turning
    }

    /// The driver sets the mode; true: it relies on that when the device has [answered](Self::is_off), not before.
    pub fn set(&mut self, write_back: bool) -> bool {
        let was_on = self.is_on();
        self.mode = write_back;
        self.turning = was_on && !self.is_on();
        self.turning
    }

    /// The device has answered: the cache is off.
    pub fn is_off(&mut self) {
        self.turning = false;
    }
}
