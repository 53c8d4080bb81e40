//! Secrets in the daemon's state: reads their content when they are added, finds them for nodes, and removes them when no node
//! uses them. Nothing here shows a content.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use options::{MAX_SECRET_BYTES, SecretBytes, SecretFormat, SecretOptions};

use super::DaemonObjects;
use crate::error::BoxError;

/// A secret, with its content.
#[derive(Debug)]
pub(crate) struct Secret {
    pub options: SecretOptions,
    /// The decoded content. Ceph's option `key` is its base64.
    pub content: SecretBytes,
}

impl Secret {
    /// Decodes the content of a file, or of the options.
    fn read(options: &SecretOptions, files: SecretFiles) -> Result<Self, BoxError> {
        let id = &options.id;
        let content = match (&options.file, options.decode_data()) {
            (Some(path), _) => {
                let shown = path.display();
                let content = read_at_most(path, MAX_SECRET_BYTES + 1, files)
                    .map_err(|error| format!("secret '{id}': cannot read {shown}: {error}"))?;
                warn_if_readable_by_all(id, path);
                options
                    .decode(&content)
                    .map_err(|error| format!("secret '{id}': {shown}: {error}"))?
            }
            (None, Some(content)) => content.map_err(|error| format!("secret '{id}': {error}"))?,
            (None, None) => unreachable!("options have a file or the data"),
        };
        Ok(Secret {
            options: options.clone(),
            content,
        })
    }

    /// Refuses a key in base64 that was not decoded: encoded again it would be another key.
    fn check_is_not_encoded_ceph_key(&self) -> Result<(), BoxError> {
        /// Type (AES) of a key, its first field in Ceph's encoding.
        const KEY_TYPE_AES: [u8; 2] = [1, 0];
        let text = str::from_utf8(self.content.as_bytes()).ok();
        let decoded = text.and_then(SecretBytes::from_base64);
        let is_key = decoded.is_some_and(|key| key.as_bytes().starts_with(&KEY_TYPE_AES));
        if self.options.format == SecretFormat::Raw && is_key {
            let id = &self.options.id;
            return Err(format!(
                "secret '{id}' is a key of Ceph in base64: create it with format=base64"
            )
            .into());
        }
        Ok(())
    }
}

/// Files that a secret is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SecretFiles {
    /// All, such as the pipe of a command. Reading it may wait.
    Any,
    /// Regular files: a pipe without a writer would stop a daemon that runs.
    Regular,
}

/// Reads the beginning of a file.
pub(super) fn read_at_most(path: &Path, limit: usize, files: SecretFiles) -> io::Result<Vec<u8>> {
    let mut options = OpenOptions::new();
    options.read(true);
    if files == SecretFiles::Regular {
        // Opening a pipe waits for its writer otherwise.
        options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    }
    let file = options.open(path)?;
    if files == SecretFiles::Regular && !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut content = Vec::new();
    let limit = u64::try_from(limit).unwrap_or(u64::MAX);
    file.take(limit).read_to_end(&mut content)?;
    Ok(content)
}

/// Warns about a file with a secret that each user of the host can read. QEMU does not look.
pub(super) fn warn_if_readable_by_all(id: &str, path: &Path) {
    let found = path.metadata();
    if found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o004 != 0) {
        tracing::warn!(
            secret = id,
            path = %path.display(),
            advice = "chmod o-r, and change the secret",
            "all users of this host can read this secret's file"
        );
    }
}

impl DaemonObjects {
    /// Adds a secret. Its content is that of the old process in a live upgrade, else it is read now.
    pub fn read_and_add_secret(
        &mut self,
        options: &SecretOptions,
        files: SecretFiles,
    ) -> Result<(), BoxError> {
        let id = &options.id;
        self.check_id_is_no_default_iothread(id, "secret")?;
        let secret = match self.handover_secrets.remove(id) {
            Some(content) => Secret {
                options: options.clone(),
                content,
            },
            None => Secret::read(options, files)?,
        };
        self.secrets.push(Arc::new(secret));
        Ok(())
    }

    /// The secret of this id, if there is one.
    pub fn find_secret(&self, id: &str) -> Option<&Arc<Secret>> {
        self.secrets.iter().find(|secret| secret.options.id == id)
    }

    /// The secret of this id, which is to be the key of a Ceph user; an error if there is none, or it is none.
    pub fn require_ceph_key(&self, id: &str) -> Result<Arc<Secret>, BoxError> {
        let secret = self.find_secret(id);
        let secret = secret.ok_or_else(|| format!("there is no secret '{id}'"))?;
        secret.check_is_not_encoded_ceph_key()?;
        Ok(secret.clone())
    }

    /// Removes a secret that no node uses.
    pub fn remove_secret(&mut self, id: &str) -> Result<(), BoxError> {
        let index = self.secrets.iter().position(|s| s.options.id == id);
        let index = index.ok_or_else(|| format!("object '{id}' not found"))?;
        let in_use = |user: String| -> BoxError {
            format!("object '{id}' is in use, can not be deleted: {user}").into()
        };
        let mut nodes = self.nodes.iter();
        if let Some(open) = nodes.find(|open| open.options.driver.secret_id() == Some(id)) {
            return Err(in_use(format!("node '{}' needs it", open.node.name())));
        }
        // Commands that open nodes have copies.
        if Arc::strong_count(&self.secrets[index]) > 1 {
            let user = "a node is being opened with it; try again when that is done";
            return Err(in_use(user.to_owned()));
        }
        self.secrets.remove(index);
        Ok(())
    }
}
