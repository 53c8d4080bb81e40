//! File systems that tests mount, such as one that is soon full.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// A file system on a temporary folder, unmounted when dropped.
#[derive(Debug)]
pub struct MountedFolder(TempDir);

impl MountedFolder {
    /// Mounts it, with these arguments of mount(8). `None`: it cannot be had here, which is [reported](crate::report).
    #[must_use]
    pub fn mount(arguments: &[&str]) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        match mount.args(arguments).arg(folder.path()).output() {
            Ok(mounted) if mounted.status.success() => Some(MountedFolder(folder)),
            other => {
                crate::report::not_run(&format!("cannot mount {arguments:?}: {other:?}"));
                None
            }
        }
    }

    /// Mounts a tmpfs of so many KiB.
    #[must_use]
    pub fn small_tmpfs(kib: u64) -> Option<Self> {
        Self::mount(&["-t", "tmpfs", "-o", &format!("size={kib}k"), "tmpfs"])
    }

    /// Gives a tmpfs another size.
    #[track_caller]
    pub fn resize_tmpfs(&self, kib: u64) {
        let mut mount = Command::new("mount");
        mount.args(["-o", &format!("remount,size={kib}k")]);
        assert!(mount.arg(self.path()).status().unwrap().success());
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl AsRef<Path> for MountedFolder {
    fn as_ref(&self) -> &Path {
        self.path()
    }
}

impl Drop for MountedFolder {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}
