//! Names of queues: the export and the index of the queue in it, `EXPORT:INDEX` in messages.

use std::ffi::{CStr, CString};
use std::fmt;

/// A queue's export and index, in messages `EXPORT:INDEX`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueName {
    /// Ends with a zero byte, for the tools that read it out of our memory.
    export: CString,
    index: u16,
}

impl QueueName {
    /// Queue `index` of that export.
    #[must_use]
    pub fn new(export: &str, index: u16) -> Self {
        let bytes: Vec<u8> = export.bytes().take_while(|byte| *byte != 0).collect();
        QueueName {
            export: CString::new(bytes).unwrap_or_default(),
            index,
        }
    }

    /// Its export.
    #[must_use]
    pub fn export(&self) -> &CStr {
        &self.export
    }

    /// Its number there.
    #[must_use]
    pub fn index(&self) -> u16 {
        self.index
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.export.to_string_lossy(), self.index)
    }
}
