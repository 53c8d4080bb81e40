//! The HMP command `info chardev`: shows chardevs with their file names.

use super::HmpArgs;
use crate::control::MainThread;

/// A line for each chardev.
pub(super) fn show_chardevs(control: &MainThread, _: &HmpArgs<'_>) -> String {
    let all = control.chardevs.iter();
    all.map(|chardev| format!("{}: filename={}\n", chardev.id(), chardev.qemu_filename()))
        .collect()
}
