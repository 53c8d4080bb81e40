//! `info chardev`.

use super::Words;
use crate::control::Control;

pub(super) fn chardevs(control: &Control, _: &Words<'_>) -> String {
    let all = control.chardevs.iter();
    all.map(|chardev| format!("{}: filename={}\n", chardev.id(), chardev.filename()))
        .collect()
}
