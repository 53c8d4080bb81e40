//! The secret key of a client: never printed, and overwritten when it is dropped.

use std::ffi::CStr;
use std::fmt;
use std::sync::atomic::{Ordering, compiler_fence};

/// A secret key in base64, as `ceph auth get-key` prints it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key {
    /// The text and a zero byte.
    text: Box<[u8]>,
}

/// Refusal of a key. It has no part of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key is not base64: it should be as `ceph auth get-key client.NAME` prints it")]
pub struct KeyError;

impl Key {
    /// A key from its text, which is overwritten.
    ///
    /// # Errors
    /// [`KeyError`]: not base64, or empty.
    pub fn new(text: String) -> Result<Self, KeyError> {
        let mut given = text.into_bytes();
        let trimmed = given.trim_ascii();
        let key = is_base64(trimmed).then(|| {
            // With its whole capacity at once: growing would leave a copy.
            let mut text = Vec::with_capacity(trimmed.len() + 1);
            text.extend_from_slice(trimmed);
            text.push(0);
            Key {
                text: text.into_boxed_slice(),
            }
        });
        overwrite(&mut given);
        key.ok_or(KeyError)
    }

    /// The text with each occurrence of the key replaced: librados' log has one that it cannot decode.
    pub(crate) fn redact(&self, text: &str) -> String {
        let key = self.as_c_str().to_str().unwrap_or_default();
        text.replace(key, "(hidden)")
    }

    /// The text for librados.
    pub(crate) fn as_c_str(&self) -> &CStr {
        // The text is base64, so that its only zero byte is the last one.
        CStr::from_bytes_with_nul(&self.text).unwrap_or_default()
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        overwrite(&mut self.text);
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(hidden)")
    }
}

/// Whether the bytes are base64 with its padding (RFC 4648, section 4), and not empty.
fn is_base64(text: &[u8]) -> bool {
    let padding = text.iter().rev().take_while(|byte| **byte == b'=').count();
    let digits = &text[..text.len() - padding];
    !digits.is_empty()
        && padding <= 2
        && text.len().is_multiple_of(4)
        && digits
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'))
}

/// Writes zeroes that the compiler does not remove.
fn overwrite(bytes: &mut [u8]) {
    for byte in bytes {
        // SAFETY: a reference is valid for writes.
        unsafe { std::ptr::write_volatile(byte, 0) };
    }
    compiler_fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "AQBZ3kFlVnKdIRAAbVfU/2PT+XnS1rpWPDuCkA==";

    #[test]
    fn a_key_is_never_printed() {
        let key = Key::new(format!("{TEXT}\n")).unwrap();
        assert_eq!(key.as_c_str().to_str(), Ok(TEXT), "without the line end");
        let options = crate::ClusterOptions {
            key: Some(key.clone()),
            ..Default::default()
        };
        for printed in [format!("{key:?}"), format!("{options:#?}")] {
            assert!(printed.contains("Key(hidden)"), "{printed}");
            assert!(!printed.contains("AQBZ"), "{printed}");
        }
        let text = format!("failed to decode key '{TEXT}'");
        assert_eq!(key.redact(&text), "failed to decode key '(hidden)'");
    }

    #[test]
    fn text_that_is_not_base64_is_refused() {
        for text in [
            "",
            "\n",
            "====",
            "abc",
            "abc!",
            "ab\0=",
            "a===",
            "AQBZ AQBZ",
        ] {
            assert_eq!(Key::new(text.to_owned()), Err(KeyError), "{text:?}");
        }
    }

    #[test]
    fn overwriting_leaves_zeroes() {
        let mut bytes = *b"secret";
        overwrite(&mut bytes);
        assert_eq!(bytes, [0; 6]);
    }
}
