//! Error answers of requests.

use serde_json::{Value, json};

/// The classes that clients tell errors apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Any other error: the text says what is wrong.
    Generic,
    /// There is no such command, or not now.
    CommandNotFound,
    /// There is no such object.
    DeviceNotFound,
}

impl Class {
    /// Its name on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Class::Generic => "GenericError",
            Class::CommandNotFound => "CommandNotFound",
            Class::DeviceNotFound => "DeviceNotFound",
        }
    }
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Its class.
    pub class: Class,
    /// What is wrong, for people.
    pub text: String,
}

impl Error {
    /// Of the class that most are of.
    pub fn generic(text: impl Into<String>) -> Self {
        Error {
            class: Class::Generic,
            text: text.into(),
        }
    }

    /// An object that is not there.
    pub fn device_not_found(text: impl Into<String>) -> Self {
        Error {
            class: Class::DeviceNotFound,
            text: text.into(),
        }
    }

    pub(crate) fn no_command(text: impl Into<String>) -> Self {
        Error {
            class: Class::CommandNotFound,
            text: text.into(),
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({"class": self.class.name(), "desc": self.text})
    }
}
