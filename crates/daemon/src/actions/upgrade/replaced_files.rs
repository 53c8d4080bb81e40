//! Files that are replaced as a whole (`pr-file`, `bitmap-file`) as JSON with descriptors, which share their locks.

use iothread::Errno;
use serde_json::{Value, json};

use crate::disk::replaced_file::FileInFolder;
use crate::upgrade::state_json::{INVALID_STATE, IncomingFds, OutgoingFds};

/// An opened file, whose descriptors are added to `fds`.
pub(super) fn file_to_json(
    opened: std::io::Result<Option<FileInFolder>>,
    fds: &mut OutgoingFds,
) -> Result<Value, String> {
    let opened = opened.map_err(|error| error.to_string())?;
    let FileInFolder { folder, name, file } = opened.ok_or_else(|| Errno::BADF.to_string())?;
    let name = name.into_string();
    let name = name.map_err(|_| "its name is not UTF-8: restart instead".to_owned())?;
    Ok(json!({"folder": fds.add(folder), "name": name, "file": fds.add(file)}))
}

/// Takes an opened file out of `fds`.
pub(super) fn file_from_json(
    json: &Value,
    fds: &mut IncomingFds,
) -> Result<FileInFolder, &'static str> {
    Ok(FileInFolder {
        folder: fds.take(&json["folder"])?,
        name: json["name"].as_str().ok_or(INVALID_STATE)?.into(),
        file: fds.take(&json["file"])?,
    })
}
