//! Loop devices: real block devices without hardware, also with 4096-byte logical sectors.
//!
//! They need root and the kernel's loop driver; [`unusable`] says whether this machine has both.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// A file attached to a loop device; detached when dropped.
#[derive(Debug)]
pub struct LoopDevice(PathBuf);

impl LoopDevice {
    /// Attaches `file` with logical sectors of `sector_bytes` bytes.
    ///
    /// # Errors
    /// What losetup(8) said.
    pub fn attach(file: &Path, sector_bytes: u32) -> Result<Self, String> {
        let output = losetup(|c| {
            c.args(["--find", "--show", "--sector-size"])
                .arg(sector_bytes.to_string())
                .arg(file)
        })?;
        let path = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Ok(Self(PathBuf::from(path)))
    }

    /// The device node.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(e) = losetup(|c| c.arg("--detach").arg(&self.0)) {
            eprintln!("{} stays attached: {e}", self.0.display());
        }
    }
}

/// Why loop devices cannot be used here, found out once by trying.
pub fn unusable() -> Option<&'static str> {
    static REASON: OnceLock<Option<String>> = OnceLock::new();
    REASON
        .get_or_init(|| {
            let dir = tempfile::tempdir().map_err(|e| e.to_string());
            let attached = dir.and_then(|dir| {
                let path = dir.path().join("probe");
                let file = File::create_new(&path).map_err(|e| e.to_string())?;
                file.set_len(1 << 20).map_err(|e| e.to_string())?;
                LoopDevice::attach(&path, 4096).map(drop)
            });
            attached.err()
        })
        .as_deref()
}

fn losetup(arguments: impl FnOnce(&mut Command) -> &mut Command) -> Result<Output, String> {
    let mut command = Command::new("losetup");
    let output = arguments(&mut command)
        .output()
        .map_err(|e| format!("losetup: {e}"))?;
    if output.status.success() {
        Ok(output)
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}
