//! Live upgrade: [`hand_over`] is the side of the program that runs, [`take_over`] that of the new one.

mod describe;
#[cfg(test)]
mod fields;
mod hand_over;
mod scsi;
mod standing;
pub(crate) mod take_over;
