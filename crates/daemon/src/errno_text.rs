//! Text of an errno without its number, as QEMU shows it.

use std::io;

/// The text of an error without its number, as QEMU shows it.
pub(crate) fn errno_text(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((text, _)) => text.to_owned(),
        None => text,
    }
}
