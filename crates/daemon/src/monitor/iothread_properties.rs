//! QOM properties of iothreads: all of their options, which can be changed at runtime.

use options::qmp_options::{self, RunningObjectNames};
use options::{KeySpec, Problem};
use qmp::Error;
use serde_json::Value;

use super::error_conversion::{error_of_failed_action, error_of_invalid_options};
use super::property::{HasQomProperties, QomClass};
use crate::state::iothread::Iothread;

/// Name of the class.
pub(super) const CLASS: &str = "iothread";

/// Keys of options that are properties.
pub(super) fn property_keys() -> impl Iterator<Item = KeySpec> {
    let keys = qmp_options::iothread_keys().iter().copied();
    keys.filter(|key| !matches!(key.name, "qom-type" | "id"))
}

/// The class of iothreads.
pub(super) fn iothread_class() -> QomClass {
    QomClass::new(CLASS, property_keys(), |_| true)
}

impl HasQomProperties for Iothread {
    fn class(&self) -> QomClass {
        iothread_class()
    }

    fn options_to_json(&self) -> Result<Value, Error> {
        let described = self.options.to_json();
        described.map_err(|error| Error::generic(error.to_string()))
    }

    /// Validates the new options, and applies them to the running iothread.
    fn change_options(&mut self, json: &str) -> Result<(), Error> {
        let new = RunningObjectNames::updated_iothread_options(&self.options, json).map_err(
            |problem| match problem {
                Problem::Conflict { reason } => Error::generic(format!(
                    "bad thread-pool-min/thread-pool-max values: {reason}"
                )),
                problem => error_of_invalid_options(&problem),
            },
        )?;
        self.apply_options(new)
            .map_err(|failure| error_of_failed_action(&failure))
    }
}
