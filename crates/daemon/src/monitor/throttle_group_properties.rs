//! QOM properties of throttle groups: `limits`, which can be changed while requests wait for them.

use options::qmp_options::RunningObjectNames;
use options::{KeySpec, ValueType};
use qmp::Error;
use serde_json::Value;

use super::error_conversion::error_of_invalid_options;
use super::property::{HasQomProperties, QomClass};
use crate::state::throttle_group::ThrottleGroupObject;

/// Name of the class.
pub(super) const CLASS: &str = "throttle-group";

/// All limits as one property, as in QEMU.
const LIMITS: KeySpec = KeySpec {
    name: "limits",
    placeholder: "LIMITS",
    help: "limits on operations and bytes per second",
    r#type: ValueType::Named("ThrottleLimits"),
    required: false,
};

/// The class of throttle groups.
pub(super) fn throttle_group_class() -> QomClass {
    QomClass::new(CLASS, std::iter::once(LIMITS), |_| true)
}

impl HasQomProperties for ThrottleGroupObject {
    fn class(&self) -> QomClass {
        throttle_group_class()
    }

    fn options_to_json(&self) -> Result<Value, Error> {
        let described = self.options.to_json();
        described.map_err(|error| Error::generic(error.to_string()))
    }

    /// Changes the limits that are given; the others stay, as in QEMU.
    fn change_options(&mut self, json: &str) -> Result<(), Error> {
        let new = RunningObjectNames::updated_throttle_group_options(&self.options, json);
        self.apply_options(new.map_err(|problem| error_of_invalid_options(&problem))?);
        Ok(())
    }
}
