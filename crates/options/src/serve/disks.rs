//! Parsing of the DISK arguments of `serve`, and checks of the serial numbers given for them.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::nbd_uri::{is_nbd_uri, parse_nbd_uri};
use crate::{
    RbdOptions, ServeDisk,
    tree::{Object, Value},
};

/// Parses DISK.
pub(super) fn parse_disk(word: &OsString) -> Result<ServeDisk, String> {
    match word.as_bytes() {
        b"null-co:" | b"null-co://" => Ok(ServeDisk::NullCo),
        b"" => Err("DISK is empty: expected a path or null-co:".to_owned()),
        bytes if bytes.starts_with(b"null-co:") => Err(format!(
            "DISK '{}': nothing may follow null-co: (for its size there is --size; for a file of that name write ./{0})",
            word.display()
        )),
        bytes if is_nbd_uri(bytes) => parse_nbd_uri(&word.to_string_lossy()),
        bytes if bytes.starts_with(b"rbd:") => parse_rbd_disk(word),
        bytes if bytes.ends_with(b"/") => Err(format!(
            "DISK '{}' is a directory: expected a file",
            word.display()
        )),
        _ => Ok(ServeDisk::Path(Path::new(word).to_owned())),
    }
}

/// Parses `rbd:POOL/[NAMESPACE/]IMAGE[@SNAPSHOT][:conf=FILE][:id=USER][:keyfile=FILE]`, as QEMU and Ceph write it: `keyfile` is an
/// option of Ceph. A backslash before one of the characters `:/@=\\` makes it a part of a name.
fn parse_rbd_disk(word: &OsString) -> Result<ServeDisk, String> {
    // Options of QEMU may have a key: only the image is shown.
    const FORM: &str = "rbd:POOL/[NAMESPACE/]IMAGE[@SNAPSHOT][:conf=FILE][:id=USER][:keyfile=FILE]";
    let malformed = |image: &str| {
        let image = crate::error::excerpt(image);
        format!("DISK 'rbd:{image}': expected {FORM}; for a file of that name write ./rbd:{image}")
    };
    let text = word.to_str().unwrap_or_default();
    let mut parts = split_unescaped(text.trim_start_matches("rbd:"), ':').into_iter();
    let image = parts.next().unwrap_or_default();
    let mut names = split_unescaped(image, '/');
    let image_and_snapshot = match names.pop() {
        Some(last) if (1..=2).contains(&names.len()) => split_unescaped(last, '@'),
        _ => return Err(malformed(image)),
    };
    let [pool, namespace @ ..] = names.as_slice() else {
        return Err(malformed(image));
    };
    let [name, snapshot @ ..] = image_and_snapshot.as_slice() else {
        return Err(malformed(image));
    };
    if snapshot.len() > 1 {
        return Err(malformed(image));
    }
    let mut object = Object::default();
    let mut push =
        |key: &str, value: &str| object.push(key.to_owned(), Value::Text(unescape(value)));
    push("pool", pool);
    push("image", name);
    namespace.iter().for_each(|name| push("namespace", name));
    snapshot.iter().for_each(|name| push("snapshot", name));
    let (mut conf, mut user, mut key_file) = (None, None, None);
    for option in parts {
        match option.split_once('=') {
            Some(("conf", value)) => conf = Some(value),
            Some(("id", value)) => user = Some(value),
            Some(("keyfile", "")) | None => return Err(malformed(image)),
            Some(("keyfile", value)) => key_file = Some(unescape(value).into()),
            Some((key, _)) => {
                let (image, key) = (crate::error::excerpt(image), crate::error::excerpt(key));
                return Err(format!(
                    "DISK 'rbd:{image}': '{key}' does not go with serve; conf, id, and keyfile=FILE with a key do: put it into the \
                     file of conf, or use --blockdev rbd,… without serve"
                ));
            }
        }
    }
    conf.iter().for_each(|value| push("conf", value));
    user.iter().for_each(|value| push("user", value));
    match RbdOptions::from_object(object) {
        Ok(image) => Ok(ServeDisk::Rbd {
            image: Box::new(image),
            key_file,
        }),
        Err(problem) => {
            let image = crate::error::excerpt(image);
            Err(format!("DISK 'rbd:{image}': {problem}"))
        }
    }
}

/// Splits a text at a character, except after backslashes, which stay.
fn split_unescaped(text: &str, separator: char) -> Vec<&str> {
    let mut is_escaped = false;
    text.split(|c| {
        let splits = c == separator && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        splits
    })
    .collect()
}

/// Removes backslashes before other characters.
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        out.push(match c {
            '\\' => chars.next().unwrap_or(c),
            c => c,
        });
    }
    out
}

/// Checks that options which only some disks have go with these, and that no disk behind a network is given twice.
pub(super) fn check_options_of_network_disks(
    disks: &[ServeDisk],
    has_size: bool,
    has_file_options: bool,
) -> Result<(), String> {
    let has_files = disks.iter().any(|disk| matches!(disk, ServeDisk::Path(_)));
    let mut seen: Vec<&ServeDisk> = Vec::new();
    for disk in disks {
        let (name, create, instead) = match disk {
            ServeDisk::Rbd { image, .. } => {
                let image = image.image_spec();
                let create = format!(
                    "create the image by 'rbd create --size SIZE {image}', and remove --size"
                );
                (
                    format!("rbd:{image}"),
                    create,
                    "librbd has threads of its own",
                )
            }
            ServeDisk::Nbd(nbd) => {
                let create = "the server decides its size; remove --size".to_owned();
                (nbd.uri(), create, "it is no file")
            }
            ServeDisk::Path(_) | ServeDisk::NullCo => continue,
        };
        if has_size {
            return Err(format!("--size does not go with DISK '{name}': {create}"));
        }
        if has_file_options && !has_files {
            return Err(format!(
                "--aio and --cache-direct do not go with DISK '{name}': {instead}, and the page cache is not used; remove \
                 them"
            ));
        }
        if seen.contains(&disk) {
            return Err(format!("DISK '{name}' is given twice; give each once"));
        }
        seen.push(disk);
    }
    Ok(())
}

/// Checks that each disk has a serial number of its own, or that none is given.
pub(super) fn check_serial_count_and_uniqueness(
    serials: &[String],
    disk_count: usize,
) -> Result<(), String> {
    if !serials.is_empty() && serials.len() != disk_count {
        return Err(format!(
            "--serial is given {} times for {disk_count} disks; give it once for each, in their order, or not at all",
            serials.len()
        ));
    }
    for (i, serial) in serials.iter().enumerate() {
        if serials[..i].contains(serial) {
            return Err(format!(
                "--serial '{serial}' is given twice: a guest could not distinguish these disks; give each its own"
            ));
        }
    }
    Ok(())
}
