//! Modules of a live upgrade: [`handover`] is the old process, [`restore`] the new one.

#[cfg(test)]
mod assert_all_differ;
mod bitmaps;
mod command_line;
mod handover;
mod paused_export;
mod replaced_files;
pub(crate) mod restore;
mod scsi_state;
mod tls_files;
