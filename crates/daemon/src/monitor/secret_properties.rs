//! QOM properties of secrets: their options without the content (`data`), which no command returns.

use options::{KeySpec, qmp_options};
use qmp::Error;
use serde_json::Value;

use super::property::{HasQomProperties, QomClass};
use crate::state::secret::Secret;

/// Name of the class.
pub(super) const CLASS: &str = "secret";

/// Keys of options that are properties.
fn property_keys() -> impl Iterator<Item = KeySpec> {
    let keys = qmp_options::secret_keys().iter().copied();
    keys.filter(|key| !matches!(key.name, "qom-type" | "id" | "data"))
}

/// The class of secrets.
pub(super) fn secret_class() -> QomClass {
    QomClass::new(CLASS, property_keys(), |_| false)
}

impl HasQomProperties for Secret {
    fn class(&self) -> QomClass {
        secret_class()
    }

    fn options_to_json(&self) -> Result<Value, Error> {
        let described = self.options.to_json();
        let mut described = described.map_err(|error| Error::generic(error.to_string()))?;
        if let Some(members) = described.as_object_mut() {
            members.shift_remove("data");
        }
        Ok(described)
    }

    /// Never called: no property is writable.
    fn change_options(&mut self, _json: &str) -> Result<(), Error> {
        Err(Error::generic("a secret cannot be changed"))
    }
}
