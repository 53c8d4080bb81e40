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
            _file: file,
        };
        written.map(|()| this).map_err(|error| failed(&error))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = std::fs::remove_file(&self.path);
    }
}
