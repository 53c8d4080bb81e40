//! QOM properties of certificates and of lists of clients: their options, which cannot be changed.

use options::{KeySpec, ToJsonError, qmp_options};
use qmp::Error;
use serde_json::Value;

use super::property::{HasQomProperties, QomClass};
use crate::state::tls::{AuthzList, TlsCreds};

/// Class of certificates.
pub(super) const CREDS_CLASS: &str = "tls-creds-x509";
/// Class of lists of clients.
pub(super) const LIST_CLASS: &str = "authz-list";

/// The class of certificates.
pub(super) fn creds_class() -> QomClass {
    class_of_keys(CREDS_CLASS, qmp_options::tls_creds_keys())
}

/// The class of lists of clients.
pub(super) fn list_class() -> QomClass {
    class_of_keys(LIST_CLASS, qmp_options::authz_list_keys())
}

fn class_of_keys(name: &'static str, keys: &[KeySpec]) -> QomClass {
    let keys = keys.iter().copied();
    let properties = keys.filter(|key| !matches!(key.name, "qom-type" | "id"));
    QomClass::new(name, properties, |_| false)
}

fn described(json: Result<Value, ToJsonError>) -> Result<Value, Error> {
    json.map_err(|error| Error::generic(error.to_string()))
}

impl HasQomProperties for TlsCreds {
    fn class(&self) -> QomClass {
        creds_class()
    }

    fn options_to_json(&self) -> Result<Value, Error> {
        described(self.options.to_json())
    }

    /// Never called: no property is writable.
    fn change_options(&mut self, _json: &str) -> Result<(), Error> {
        Err(Error::generic("certificates cannot be changed"))
    }
}

impl HasQomProperties for AuthzList {
    fn class(&self) -> QomClass {
        list_class()
    }

    fn options_to_json(&self) -> Result<Value, Error> {
        described(self.options.to_json())
    }

    /// Never called: no property is writable.
    fn change_options(&mut self, _json: &str) -> Result<(), Error> {
        Err(Error::generic("a list of clients cannot be changed"))
    }
}
