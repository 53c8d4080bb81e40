//! `--object secret`: options of secrets, such as the keys of Ceph users, and the decoding of their content.
//!
//! The content is in no text that this crate makes for people: neither in errors nor in debugging output. It is not encrypted by
//! another secret (`keyid` and `iv` of QEMU): a file with permissions protects it as well as a file with that key would.

use std::{fmt, path::PathBuf};

use crate::{
    Problem, base64,
    fields::Fields,
    form::{FilePathForm, ID_FORM, NonUtf8Path, ValueForm},
    key::{KeySpec, UnsupportedName, ValueType},
    settings::{settings, words},
    tree::{Object, Value},
};

/// Longest content of a secret in bytes, encoded. Keys of Ceph have 40, files with keys of LUKS a few thousand.
pub const MAX_SECRET_BYTES: usize = 64 << 10;

settings! {
    /// `--object secret,…`. Either `data` or `file` is given.
    pub struct SecretOptions {
        /// its name, for key-secret of nodes
        pub id: String = "id", ID_FORM, required("write id=NAME, such as id=key0");
        /// file with the secret, at most 64 KiB, read once when the object is created
        pub file: Option<PathBuf> = "file", FilePathForm, optional;
        /// the secret itself; on the command line other users of the host can see it: prefer file
        pub data: Option<SecretText> = "data", SecretTextForm, optional;
        /// encoding of file or data (default raw)
        pub format: SecretFormat = "format", SecretFormat::FORM, default(SecretFormat::Raw);
    }
    beside {
        /// the type; its key may be omitted
        "qom-type", "secret", ValueType::Named("qom-type"), required;
    }
}

words! {
    /// Encoding of a secret's content.
    pub enum SecretFormat {
        /// The bytes as they are, with a line feed at the end if there is one.
        Raw = "raw",
        /// Base64, in which line feeds do not count.
        Base64 = "base64",
    }
}

/// The content of a secret as it was written. Its debugging output does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(String);

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(…)")
    }
}

/// The decoded content of a secret. Its debugging output does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretBytes(Vec<u8>);

impl SecretBytes {
    /// Takes bytes as they are.
    #[must_use]
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Decodes base64; `None` if it is not.
    #[must_use]
    pub fn from_base64(text: &str) -> Option<Self> {
        base64::decode(text.as_bytes()).map(Self)
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes in base64, the form of Ceph's option `key`.
    #[must_use]
    pub fn to_base64(&self) -> String {
        base64::encode(&self.0)
    }
}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretBytes(…)")
    }
}

/// The reason why the content of a secret cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// There is nothing.
    #[error("it is empty")]
    Empty,
    /// It is longer than [`MAX_SECRET_BYTES`].
    #[error("it is longer than {MAX_SECRET_BYTES} bytes")]
    TooLong,
    /// `format=base64`, and the content is something else.
    #[error("it is not base64: correct it, or use format=raw")]
    NotBase64,
}

impl SecretOptions {
    /// Decodes the content of `file` or `data`.
    ///
    /// # Errors
    /// It is empty, too long, or not of this format.
    pub fn decode(&self, content: &[u8]) -> Result<SecretBytes, SecretError> {
        match content {
            [] => Err(SecretError::Empty),
            _ if content.len() > MAX_SECRET_BYTES => Err(SecretError::TooLong),
            _ => match self.format {
                SecretFormat::Raw => Ok(SecretBytes(content.to_vec())),
                SecretFormat::Base64 => base64::decode(content)
                    .filter(|bytes| !bytes.is_empty())
                    .map(SecretBytes)
                    .ok_or(SecretError::NotBase64),
            },
        }
    }

    /// Decodes `data`; `None` if a file has the content.
    ///
    /// # Errors
    /// Those of [`SecretOptions::decode`], which options that were read here do not have.
    pub fn decode_data(&self) -> Option<Result<SecretBytes, SecretError>> {
        let SecretText(text) = self.data.as_ref()?;
        Some(self.decode(text.as_bytes()))
    }
}

/// The content of a secret as text.
struct SecretTextForm;

impl SecretTextForm {
    /// A key whose values have this form.
    const fn define_key(&self, name: &'static str, help: &'static str) -> KeySpec {
        KeySpec::new(name, "TEXT", help, ValueType::Str)
    }
}

impl ValueForm for SecretTextForm {
    type Value = SecretText;

    fn read(&self, key: &str, value: Value) -> Result<SecretText, Problem> {
        match value {
            Value::Text(text) | Value::String(text) => Ok(SecretText(text)),
            _ => Err(hidden_value_error(key, "a string")),
        }
    }

    fn to_value(&self, value: &SecretText) -> Result<Value, NonUtf8Path> {
        Ok(Value::String(value.0.clone()))
    }
}

/// The error for a wrong value that is not to be shown.
fn hidden_value_error(key: &str, expected: impl Into<String>) -> Problem {
    Problem::BadValue {
        key: key.to_owned(),
        value: "…".to_owned(),
        expected: expected.into(),
    }
}

const NOT_WRAPPED: &str =
    "leave it out: secrets are not encrypted by other secrets; use file=PATH, and its permissions";

const UNSUPPORTED_KEYS: &[UnsupportedName] = &[
    UnsupportedName {
        name: "keyid",
        instead: NOT_WRAPPED,
    },
    UnsupportedName {
        name: "iv",
        instead: NOT_WRAPPED,
    },
    UnsupportedName {
        name: "loaded",
        instead: "leave it out",
    },
];

/// Reads the tree of an `--object secret`.
pub(super) fn read_secret(object: Object) -> Result<SecretOptions, Problem> {
    let mut fields = Fields::with_known_keys(object, "", &[SecretOptions::KEYS], UNSUPPORTED_KEYS)?;
    fields.take_raw("qom-type");
    let secret = SecretOptions::read(&mut fields, None)?;
    match (&secret.file, secret.decode_data()) {
        (Some(_), Some(_)) => {
            let reason = "'data' and 'file' both have the secret; leave one of them out".to_owned();
            return Err(Problem::Conflict { reason });
        }
        (None, None) => {
            return Err(fields.missing_key_error("file", "write file=PATH, a file with the secret"));
        }
        (None, Some(Err(error))) => {
            let expected = match error {
                SecretError::NotBase64 => "base64, because of format=base64".to_owned(),
                SecretError::Empty | SecretError::TooLong => {
                    format!("1 to {MAX_SECRET_BYTES} bytes")
                }
            };
            return Err(hidden_value_error("data", expected));
        }
        (Some(_), None) | (None, Some(Ok(_))) => {}
    }
    fields.debug_assert_all_taken();
    Ok(secret)
}
