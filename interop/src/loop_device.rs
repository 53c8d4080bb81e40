//! Loop devices: real block devices without hardware, also with 4096-byte logical sectors.
//!
//! They need root and the kernel's loop driver.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A file attached to a loop device; detached when dropped.
#[derive(Debug)]
pub struct LoopDevice(PathBuf);

impl LoopDevice {
    /// Attaches `file` with logical sectors of `sector_bytes` bytes.
    ///
    /// # Errors
    /// What losetup(8) said.
    pub fn attach(file: &Path, sector_bytes: u32) -> Result<Self, String> {
        let mut losetup = Command::new("losetup");
        losetup.args([
            "--find",
            "--show",
            "--sector-size",
            &sector_bytes.to_string(),
        ]);
        let output = losetup.arg(file).output();
        let output = output.map_err(|error| format!("losetup: {error}"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        match output.status.success() {
            true => Ok(Self(PathBuf::from(text(&output.stdout)))),
            false => Err(text(&output.stderr)),
        }
    }

    /// The device node.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let detached = Command::new("losetup")
            .arg("--detach")
            .arg(&self.0)
            .status();
        if !detached.is_ok_and(|status| status.success()) {
            eprintln!("{} stays attached", self.0.display());
        }
    }
}
