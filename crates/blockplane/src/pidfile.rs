//! `--pidfile`: written when everything is started, locked while we run, removed at the end.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

/// A pidfile of ours.
pub(crate) struct PidFile {
    path: PathBuf,
    _file: File,
}

impl PidFile {
    pub fn create(path: &Path) -> Result<Self, String> {
        let failed = |error: &dyn std::fmt::Display| {
            format!("--pidfile: cannot write {}: {error}", path.display())
        };
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(|error| failed(&error))?;
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(failed(&"another process that runs holds it"));
        }
        file.set_len(0).map_err(|error| failed(&error))?;
        // In one piece: whoever waits for it reads all of it.
        let line = format!("{}\n", std::process::id());
        file.write_all(line.as_bytes())
            .map_err(|error| failed(&error))?;
        Ok(PidFile {
            path: path.to_owned(),
            _file: file,
        })
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = std::fs::remove_file(&self.path);
    }
}
