//! Error of a QMP command: its class and text, and its JSON.

use serde_json::{Value, json};

/// The class of an error, for programs; people read the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// Any other error: the text says what is wrong.
    Generic,
    /// There is no such command, or it is not allowed now.
    CommandNotFound,
    /// There is no such object.
    DeviceNotFound,
    /// There is no such block job.
    DeviceNotActive,
}

impl ErrorClass {
    /// The name in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ErrorClass::Generic => "GenericError",
            ErrorClass::CommandNotFound => "CommandNotFound",
            ErrorClass::DeviceNotFound => "DeviceNotFound",
            ErrorClass::DeviceNotActive => "DeviceNotActive",
        }
    }
}

/// The reason why a command failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Its class.
    pub class: ErrorClass,
    /// What is wrong, for people.
    pub text: String,
}

impl Error {
    /// An error of class [`ErrorClass::Generic`].
    pub fn generic(text: impl Into<String>) -> Self {
        Error {
            class: ErrorClass::Generic,
            text: text.into(),
        }
    }

    /// An error of class [`ErrorClass::DeviceNotFound`].
    pub fn device_not_found(text: impl Into<String>) -> Self {
        Error {
            class: ErrorClass::DeviceNotFound,
            text: text.into(),
        }
    }

    /// An error of class [`ErrorClass::DeviceNotActive`].
    pub fn device_not_active(text: impl Into<String>) -> Self {
        Error {
            class: ErrorClass::DeviceNotActive,
            text: text.into(),
        }
    }

    /// An error of class [`ErrorClass::CommandNotFound`].
    pub(crate) fn command_not_found(text: impl Into<String>) -> Self {
        Error {
            class: ErrorClass::CommandNotFound,
            text: text.into(),
        }
    }

    /// The error as it is in a response.
    pub(crate) fn to_json(&self) -> Value {
        json!({"class": self.class.name(), "desc": self.text})
    }
}
