//! A file system whose files cannot have holes.
//!
//! Root mounts it. Others need a user namespace for that: its files are reached through a process that stays in it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// A folder on a ramfs, gone when dropped. Files in it can have no holes punched, no ranges zeroed, and no direct I/O.
pub struct Ramfs {
    path: PathBuf,
    mount: Mount,
    folder: TempDir,
}

enum Mount {
    Ours,
    /// In the namespaces of this process.
    Namespace(Child),
}

impl Ramfs {
    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Ramfs {
    fn drop(&mut self) {
        match &mut self.mount {
            Mount::Ours => {
                let umount = Command::new("umount")
                    .arg("-l")
                    .arg(self.folder.path())
                    .status();
                drop(umount);
            }
            Mount::Namespace(process) => end(process),
        }
    }
}

/// It ends with its input.
fn end(process: &mut Child) {
    drop(process.stdin.take());
    drop(process.wait());
}

/// Makes one, on a folder within `parent`. `None`: it cannot be had here, which is [reported](crate::report).
#[must_use]
pub fn ramfs_folder(parent: &Path) -> Option<Ramfs> {
    let made = TempDir::new_in(parent)
        .map_err(|error| error.to_string())
        .and_then(|folder| {
            if mounted(folder.path()) {
                return Ok(Ramfs {
                    path: folder.path().to_owned(),
                    mount: Mount::Ours,
                    folder,
                });
            }
            in_a_namespace(folder)
        });
    let report = |problem: String| {
        crate::report::not_run(&format!("no ramfs: not root, and {problem}"));
    };
    made.map_err(report).ok()
}

fn mounted(folder: &Path) -> bool {
    let mount = Command::new("mount")
        .args(["-t", "ramfs", "ramfs"])
        .arg(folder)
        .output();
    mount.is_ok_and(|mount| mount.status.success())
}

fn in_a_namespace(folder: TempDir) -> Result<Ramfs, String> {
    let script = r#"mount -t ramfs ramfs "$0" && echo mounted && read end"#;
    let mut process = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
        .arg(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("unshare(1): {error}"))?;
    let mut line = String::new();
    if let Some(output) = process.stdout.take() {
        drop(BufReader::new(output).read_line(&mut line));
    }
    if line != "mounted\n" {
        end(&mut process);
        return Err("no user namespace may mount one".to_owned());
    }
    let root = PathBuf::from(format!("/proc/{}/root", process.id()));
    let inside = folder.path().strip_prefix("/").unwrap_or(folder.path());
    Ok(Ramfs {
        path: root.join(inside),
        mount: Mount::Namespace(process),
        folder,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_file_keeps_its_data_and_refuses_holes() {
        let Some(ramfs) = ramfs_folder(&std::env::temp_dir()) else {
            return;
        };
        let path = ramfs.path().join("file");
        std::fs::write(&path, "data").expect("a file");
        let file = std::fs::OpenOptions::new().write(true).open(&path);
        let fd = file.as_ref().map(AsRawFd::as_raw_fd).expect("our file");
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: a call without memory.
        let result = unsafe { libc::fallocate(fd, mode, 0, 4) };
        let error = std::io::Error::last_os_error();
        assert_eq!((result, error.raw_os_error()), (-1, Some(libc::EOPNOTSUPP)));
        assert_eq!(std::fs::read(&path).expect("our file"), b"data");
        drop(ramfs);
        assert!(!path.exists());
    }
}
