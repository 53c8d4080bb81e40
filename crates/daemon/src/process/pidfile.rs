//! `--pidfile`: written when everything is started, locked while we run, removed at the end.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

/// A pidfile of ours.
pub(crate) struct PidFile {
    path: PathBuf,
    file: File,
}

impl PidFile {
    pub fn create(path: &Path) -> Result<Self, String> {
        let failed = |error: &dyn std::fmt::Display| {
            let path = path.display();
            format!("--pidfile: cannot write {path}: {error}")
        };
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(|error| failed(&error))?;
        // It is removed at the end, and a device is not ours to remove.
        let is_file = file.metadata().is_ok_and(|is| is.is_file());
        if !is_file {
            return Err(failed(
                &"it is there and no regular file; choose another path",
            ));
        }
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(failed(&"another process that runs holds it"));
        }
        // In one piece: whoever waits for it reads all of it.
        let line = format!("{}\n", std::process::id());
        let written = file
            .set_len(0)
            .and_then(|()| file.write_all(line.as_bytes()));
        // From here on it is ours, and is removed also if nothing can be written to it.
        let this = PidFile {
            path: path.to_owned(),
            file,
        };
        written.map(|()| this).map_err(|error| failed(&error))
    }
}

impl PidFile {
    /// Goes on with one that another process has: its lock goes with the descriptor. At no time is it empty.
    pub fn take_over(path: &Path, fd: OwnedFd) -> Result<Self, String> {
        let line = format!("{}\n", std::process::id());
        let file = File::from(fd);
        let written = file
            .write_all_at(line.as_bytes(), 0)
            .and_then(|()| file.set_len(line.len() as u64));
        let this = PidFile {
            path: path.to_owned(),
            file,
        };
        written
            .map(|()| this)
            .map_err(|error| format!("--pidfile: cannot write {}: {error}", path.display()))
    }

    /// Where it is, and another descriptor of it.
    pub fn shared(&self) -> io::Result<(&Path, OwnedFd)> {
        Ok((&self.path, self.file.try_clone()?.into()))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = std::fs::remove_file(&self.path);
    }
}
