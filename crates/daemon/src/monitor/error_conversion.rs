//! Conversion to QMP errors: of the error of a failed action, with its own text, and of a problem with options, with QEMU's
//! message where it has the same error.

use options::Problem;
use qmp::Error;

use crate::error::BoxError;

/// Converts the error of a failed action; its text becomes the message.
pub(super) fn error_of_failed_action(failure: &BoxError) -> Error {
    Error::generic(failure.to_string())
}

/// Converts a problem with options; the message is QEMU's where it has one.
pub(super) fn error_of_invalid_options(problem: &Problem) -> Error {
    Error::generic(match problem {
        Problem::Missing { key, .. } if key == "node-name" => {
            "'node-name' must be specified for the root node".to_owned()
        }
        Problem::Missing { key, .. } => format!("Parameter '{key}' is missing"),
        Problem::UnknownKey { key, .. } => format!("Parameter '{key}' is unexpected"),
        Problem::OutOfRange { key, min, max, .. } => {
            format!("{key} value must be in range [{min}, {max}]")
        }
        Problem::Duplicate { kind, name, .. } => match *kind {
            "a node" => format!("Duplicate nodes with node-name='{name}'"),
            "an export" => format!("Block export id '{name}' is already in use"),
            _ => {
                format!("attempt to add duplicate property '{name}' to object (type 'container')")
            }
        },
        Problem::NotDefined {
            kind, name, key, ..
        } => match *kind {
            "iothread" => format!("iothread \"{name}\" not found"),
            "tls-creds-x509" => format!("No TLS credentials with id '{name}'"),
            "authz-list" => format!("there is no authz-list '{name}'"),
            "secret" => format!("No secret with id '{name}'"),
            "throttle-group" => format!("Throttle group '{name}' does not exist"),
            // QEMU has two forms of this message.
            _ if key == "node-name" => format!("Cannot find device='' nor node-name='{name}'"),
            _ => format!("Cannot find device='{name}' nor node-name='{name}'"),
        },
        other => other.to_string(),
    })
}
