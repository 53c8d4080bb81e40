//! The target of a copy: a new file, a block device, or an export of an NBD server. The daemon opens it as a node.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::operator::client::Client;
use crate::operator::error::{Error, Result};

/// The daemon waits for a server's handshake for less, and its error says more than that of this limit.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

/// A target. A file that it has made is removed when it is dropped, unless it is [kept](Target::keep), or the daemon may have it open.
#[derive(Debug)]
pub(crate) struct Target {
    /// The path, absolute, or the URI.
    pub name: String,
    /// The options of the node, without its name.
    options: Value,
    new_file: Option<PathBuf>,
    may_be_open: bool,
}

impl Target {
    /// The target of a copy of all that a disk of so many bytes has. A file is made, for the daemon's user alone.
    ///
    /// # Errors
    /// [`Error::TargetExists`] for a file, [`Error::TargetUri`], [`Error::TargetKind`], [`Error::Io`].
    pub fn of_full_copy(client: &Client, text: &Path, bytes: u64) -> Result<Target> {
        let mut target = Target::existing(text)?;
        if target.options["driver"] == "file" {
            let path = PathBuf::from(&target.name);
            let mut new = File::options();
            let file = new.write(true).create_new(true).mode(0o600).open(&path);
            let file = file.map_err(|error| match error.kind() {
                std::io::ErrorKind::AlreadyExists => Error::TargetExists(path.clone()),
                _ => Error::io(format!("create {}", path.display()))(error),
            })?;
            target.new_file = Some(path.clone());
            if let Some((user, group)) = client.peer() {
                // Without the right to do that, it is for the user of this command.
                let _ = fchown(&file, Some(user), Some(group));
            }
            // The daemon flushes what it writes; this is for the name and the size.
            let folder = path.parent().map(File::open).transpose();
            let made = file.set_len(bytes).and_then(|()| file.sync_all());
            let made = made.and_then(|()| folder?.map_or(Ok(()), |folder| folder.sync_all()));
            made.map_err(Error::io(format!("create {}", path.display())))?;
        }
        Ok(target)
    }

    /// The target as it is.
    ///
    /// # Errors
    /// [`Error::TargetUri`], [`Error::TargetKind`].
    pub fn existing(text: &Path) -> Result<Target> {
        if options::is_nbd_uri(text.as_os_str().as_bytes()) {
            let uri = text.to_string_lossy().into_owned();
            let mut options = options::nbd_uri_to_json(&uri).map_err(Error::TargetUri)?;
            options["discard"] = json!("unmap");
            return Ok(Target {
                options,
                name: uri,
                new_file: None,
                may_be_open: false,
            });
        }
        // The daemon may have another working directory.
        let path = std::path::absolute(text).unwrap_or_else(|_| text.to_owned());
        let driver = match fs::metadata(&path).map(|metadata| metadata.file_type()) {
            Ok(kind) if kind.is_block_device() => "host_device",
            Ok(kind) if !kind.is_file() => return Err(Error::TargetKind(path)),
            _ => "file",
        };
        let name = path.to_string_lossy().into_owned();
        Ok(Target {
            options: json!({"driver": driver, "filename": name, "discard": "unmap"}),
            name,
            new_file: None,
            may_be_open: false,
        })
    }

    /// Whether there is something to write over: all but a file that is missing.
    pub fn is_there(&self) -> bool {
        self.options["driver"] == "nbd" || Path::new(&self.name).exists()
    }

    /// Refuses a file that is larger than the disk: it is another file, or the disk was resized.
    ///
    /// # Errors
    /// [`Error::TargetIsLarger`].
    pub fn check_is_not_larger(&self, bytes: u64) -> Result<()> {
        let found = fs::metadata(&self.name).ok().filter(fs::Metadata::is_file);
        match found.is_some_and(|found| found.len() > bytes) {
            true => Err(Error::TargetIsLarger {
                path: self.name.clone().into(),
                bytes,
            }),
            false => Ok(()),
        }
    }

    /// Lets requests wait for a new connection for so many seconds, if it is an export of an NBD server.
    pub fn set_reconnect_delay(&mut self, seconds: u32) {
        if self.options["driver"] == "nbd" {
            self.options["reconnect-delay"] = json!(seconds);
        }
    }

    /// Makes the daemon open it as a node of this name.
    ///
    /// # Errors
    /// An error reply of the daemon, or an error of [`Client`].
    pub fn open(&mut self, client: &mut Client, node_name: &str) -> Result<()> {
        let mut node = self.options.clone();
        node["node-name"] = json!(node_name);
        client.wait_at_least(OPEN_TIMEOUT);
        let opened = client.execute_to_end("blockdev-add", node);
        self.may_be_open = !matches!(opened, Err(Error::Command { .. }));
        opened.map(drop)
    }

    /// Makes the daemon close the node.
    ///
    /// # Errors
    /// The same.
    pub fn close(&mut self, client: &mut Client, node_name: &str) -> Result<()> {
        client.execute_with("blockdev-del", json!({"node-name": node_name}))?;
        self.may_be_open = false;
        Ok(())
    }

    /// Makes the daemon close the node of a copy that has failed. The error says what has failed, and that the node is still there if it
    /// cannot be closed.
    pub fn close_after(&mut self, failed: Error, client: &mut Client, node_name: &str) -> Error {
        match self.close(client, node_name) {
            Err(error @ Error::Command { .. }) => Error::TargetStays {
                failed: failed.into(),
                node: node_name.to_owned(),
                reason: error.into(),
            },
            // The daemon is gone, which is what has failed.
            Ok(()) | Err(_) => failed,
        }
    }

    /// Leaves a new file.
    pub fn keep(&mut self) {
        self.new_file = None;
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(path) = &self.new_file
            && !self.may_be_open
        {
            // What remains of it is no copy; the error that is reported says why.
            let _ = fs::remove_file(path);
        }
    }
}
