//! `--pidfile`: written when everything is started, locked while the process runs, removed at the end.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

/// The pidfile of this process. Dropping it removes the file.
pub(crate) struct PidFile {
    path: PathBuf,
    file: File,
}

impl PidFile {
    /// Locks the file and writes the PID.
    pub fn lock_and_write(path: &Path) -> Result<Self, String> {
        let failed = |error: &dyn std::fmt::Display| {
            let path = path.display();
            format!("--pidfile: cannot write {path}: {error}")
        };
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(|error| failed(&error))?;
        // It is removed at the end, which must not happen to a device.
        let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
        if !is_file {
            return Err(failed(
                &"it exists and is not a regular file; choose another path",
            ));
        }
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(failed(&"it is locked by another process"));
        }
        // It is overwritten now and removed at the end, which must not happen to an image that was named by mistake.
        if !is_empty_or_pid(&file).map_err(|error| failed(&error))? {
            return Err(failed(
                &"it exists and is no pidfile: its content is not a process ID; choose another path, or remove it",
            ));
        }
        // One write, so that a reader never sees a part of it.
        let line = format!("{}\n", std::process::id());
        let written = file
            .set_len(0)
            .and_then(|()| file.write_all(line.as_bytes()));
        // From here on the file belongs to this process, and is removed even if writing to it has failed.
        let this = PidFile {
            path: path.to_owned(),
            file,
        };
        written.map(|()| this).map_err(|error| failed(&error))
    }
}

/// Whether a file has the content of a pidfile: nothing, or a number.
fn is_empty_or_pid(file: &File) -> io::Result<bool> {
    let mut content = [0; 32];
    let len = file.read_at(&mut content, 0)?;
    let text = content[..len].trim_ascii();
    Ok(len < content.len() && text.iter().all(u8::is_ascii_digit))
}

impl PidFile {
    /// Takes over the pidfile of the predecessor. The lock belongs to the open file, which both share. The file is never
    /// empty.
    pub fn take_over_and_write_pid(path: &Path, fd: OwnedFd) -> Result<Self, String> {
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

    /// Its path, and a duplicate of its descriptor.
    pub fn path_and_duplicated_fd(&self) -> io::Result<(&Path, OwnedFd)> {
        Ok((&self.path, self.file.try_clone()?.into()))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // It may have been removed already, and another daemon may have made its own there since.
        let identity =
            |metadata: io::Result<Metadata>| metadata.ok().map(|it| (it.dev(), it.ino()));
        let own = identity(self.file.metadata());
        if own.is_some() && own == identity(std::fs::metadata(&self.path)) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
