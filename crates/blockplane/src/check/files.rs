//! `blockplane check --open`: hints at image files and socket folders that would make the start fail.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use options::{
    BlockdevOptions, DaemonSettingsAndDirectives, Directive, Driver, FileOptions, Locking,
    MetricsAddr, NbdServerAddr, NodeRef, ObjectOptions, SocketAddr,
};
use rustix::fs::{Access, access};

/// Examines the files of all nodes and the folders of all sockets; appends a hint for each that
/// cannot be used as configured.
pub(super) fn add_file_and_socket_hints(
    daemon: &DaemonSettingsAndDirectives,
    hints: &mut Vec<String>,
) {
    if let Some(MetricsAddr::Socket(addr)) = &daemon.metrics {
        add_socket_folder_hint(addr, hints);
    }
    let mut seen = SeenImages::default();
    for directive in &daemon.directives {
        match directive {
            Directive::Object(ObjectOptions::Secret(options)) => {
                add_unreadable_file_hint(
                    &format!("secret '{}'", options.id),
                    options.file.as_deref(),
                    hints,
                );
            }
            Directive::Blockdev(options) => add_disk_hints(options, &mut seen, hints),
            Directive::Export(options) => {
                if let Some(addr) = options.kind.socket() {
                    add_socket_folder_hint(addr, hints);
                }
            }
            Directive::NbdServer(options) => {
                if let NbdServerAddr::Socket(addr) = &options.addr {
                    add_socket_folder_hint(addr, hints);
                }
            }
            Directive::Chardev(options) if options.settings.server => {
                add_socket_folder_hint(&options.addr, hints)
            }
            _ => {}
        }
    }
}

/// Images that nodes lock, by device and inode: the first node of each, and whether it writes.
type SeenImages = HashMap<(u64, u64), (String, bool)>;

/// Hints at the disk of a node that cannot be opened as configured, or that another node locks.
fn add_disk_hints(options: &BlockdevOptions, seen: &mut SeenImages, hints: &mut Vec<String>) {
    if let Some((_, NodeRef::Inline(inside))) = options.driver.child_with_key() {
        add_disk_hints(inside, seen, hints);
    }
    if let Driver::Rbd(rbd) = &options.driver {
        let user = format!("node '{}'", options.node_name);
        add_unreadable_file_hint(&user, rbd.conf.as_deref(), hints);
    }
    let Some(file) = options.driver.file_options() else {
        return;
    };
    let wants_device = matches!(options.driver, Driver::HostDevice(_));
    let FileOptions { filename, .. } = file;
    let mut add_hint = |what: &str| {
        hints.push(format!(
            "node '{}': {} {what}",
            options.node_name,
            filename.display()
        ))
    };
    let writes = !options.settings.read_only && !options.settings.auto_read_only;
    let found = std::fs::metadata(filename);
    if let Ok(found) = &found
        && file.locking != Locking::Off
        && options.settings.active
    {
        let this = (options.node_name.clone(), writes);
        match seen.entry((found.dev(), found.ino())) {
            Entry::Occupied(other) if writes || other.get().1 => add_hint(&format!(
                "is the image of node '{}' by another name: an image that is written belongs to one node",
                other.get().0
            )),
            Entry::Occupied(_) => {}
            Entry::Vacant(entry) => drop(entry.insert(this)),
        }
    }
    match found {
        Err(error) => add_hint(&format!("cannot be examined: {error}")),
        Ok(found) if found.file_type().is_block_device() != wants_device => {
            add_hint(if wants_device {
                "is not a block device: use driver = \"file\""
            } else {
                "is not a regular file: for block devices there is driver = \"host_device\""
            })
        }
        Ok(_) if access(filename, Access::READ_OK).is_err() => add_hint("may not be read by you"),
        Ok(_) if writes && access(filename, Access::WRITE_OK).is_err() => {
            add_hint("may not be written by you: set read-only = true, or fix its permissions");
        }
        Ok(_) => {}
    }
}

/// Hints at a file that `user` reads, if it cannot be read.
fn add_unreadable_file_hint(user: &str, file: Option<&Path>, hints: &mut Vec<String>) {
    if let Some(file) = file
        && let Err(error) = access(file, Access::READ_OK)
    {
        hints.push(format!(
            "{user}: {} cannot be read: {error}",
            file.display()
        ));
    }
}

/// Hints at a folder in which a socket cannot be created.
fn add_socket_folder_hint(addr: &SocketAddr, hints: &mut Vec<String>) {
    let SocketAddr::Unix { path } = addr else {
        return;
    };
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    if let Err(error) = access(folder, Access::WRITE_OK) {
        let (path, folder) = (path.display(), folder.display());
        hints.push(format!(
            "socket {path} cannot be created in {folder}: {error}"
        ));
    }
}
