//! The HMP command `info chardev`: shows chardevs with their file names.

use super::Args;
use crate::control::Control;

/// A line for each chardev.
pub(super) fn show_chardevs(control: &Control, _: &Args<'_>) -> String {
    let all = control.chardevs.iter();
    all.map(|chardev| format!("{}: filename={}\n", chardev.id(), chardev.filename()))
        .collect()
}
