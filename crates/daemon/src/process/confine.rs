//! `--user` and `--sandbox`: drops privileges before the process starts threads and opens disks, and allows the files that its
//! options name.

use std::path::{Path, PathBuf};

use options::{
    BlockdevOptions, Directive, Driver, ExportOptions, MetricsAddr, NodeRef, Sandbox, SocketAddr,
};
use sandbox::{Access, AccessibleFiles, PathRule};

use crate::error::BoxError;
use crate::process::ProcessOptions;

/// Switches to the user of `--user`.
pub(crate) fn become_user_if_set(process: &ProcessOptions<'_>) -> Result<(), BoxError> {
    if let Some(user) = &process.confinement.user {
        sandbox::become_user(user)?;
    }
    Ok(())
}

/// Enters the sandbox: drops all privileges that the process does not need.
pub(crate) fn enter_sandbox_if_on(process: &ProcessOptions<'_>) -> Result<(), BoxError> {
    let (linked_folders, rules);
    let files = match process.confinement.sandbox {
        Sandbox::Off => {
            tracing::debug!("sandbox: off");
            return Ok(());
        }
        // Clients of monitors may add disks, whose paths are not known yet.
        Sandbox::On if has_monitor(process) => AccessibleFiles::Any,
        Sandbox::On | Sandbox::Strict => {
            linked_folders = target_folders_of_linked_pr_files(process);
            rules = sandbox_path_rules(process, &linked_folders);
            AccessibleFiles::Only(&rules)
        }
    };
    let confined = sandbox::confine_process(files)?;
    if confined.is_complete() {
        tracing::info!("sandbox: {confined}");
    } else {
        tracing::warn!("sandbox: {confined}");
    }
    Ok(())
}

/// Whether a monitor's clients can give commands.
fn has_monitor(process: &ProcessOptions<'_>) -> bool {
    let mut directives = process.directives.iter();
    directives.any(|directive| matches!(directive, Directive::Monitor(_)))
}

/// Files that the process needs. /proc and /sys are read for information about descriptors, memory and devices.
fn sandbox_path_rules<'a>(
    process: &ProcessOptions<'a>,
    linked_folders: &'a [PathBuf],
) -> Vec<PathRule<'a>> {
    let mut rules = Vec::new();
    let mut allow = |path: &'a Path, access| rules.push(PathRule { path, access });
    for folder in linked_folders {
        allow(folder, Access::Files);
    }
    for path in ["/proc", "/sys"] {
        allow(Path::new(path), Access::Read);
    }
    allow(Path::new("/dev/null"), Access::Write);
    if let Some(pidfile) = process.pidfile {
        allow(folder_of(pidfile), Access::Files);
    }
    for file in process.created_files {
        allow(folder_of(file), Access::Sockets);
    }
    if let Some(MetricsAddr::Socket(SocketAddr::Unix { path })) = process.metrics {
        allow(folder_of(path), Access::Sockets);
    }
    for directive in process.directives {
        match directive {
            Directive::Blockdev(node) => {
                if let Some((path, access)) = file_and_access_of_node(node) {
                    allow(path, access);
                }
            }
            Directive::Export(export) => {
                if let SocketAddr::Unix { path } = &export.addr {
                    allow(folder_of(path), Access::Sockets);
                }
                for file in pr_files_of_export(export) {
                    allow(folder_of(file), Access::Files);
                }
            }
            Directive::Chardev(chardev) => {
                if let SocketAddr::Unix { path } = &chardev.addr {
                    allow(folder_of(path), Access::Sockets);
                }
            }
            Directive::Object(_) | Directive::Monitor(_) => {}
        }
    }
    rules
}

/// Files with persistent reservations (`pr-file`) of an export's LUNs.
fn pr_files_of_export(export: &ExportOptions) -> impl Iterator<Item = &Path> {
    let luns = export.kind.luns().into_iter().flatten();
    luns.filter_map(|lun| lun.device.pr_file.as_deref())
}

/// Folders that symbolic links to reservation files point into: such a file is replaced where the link points to.
fn target_folders_of_linked_pr_files(process: &ProcessOptions<'_>) -> Vec<PathBuf> {
    let exports = process
        .directives
        .iter()
        .filter_map(|directive| match directive {
            Directive::Export(export) => Some(export),
            _ => None,
        });
    let links = exports
        .flat_map(pr_files_of_export)
        .filter(|file| file.is_symlink());
    let files = links.filter_map(|link| link.canonicalize().ok());
    files.map(|file| folder_of(&file).to_owned()).collect()
}

/// The file that a node or its inline child opens, and the access that it needs.
fn file_and_access_of_node(node: &BlockdevOptions) -> Option<(&Path, Access)> {
    match &node.driver {
        Driver::File(file) | Driver::HostDevice(file) => {
            let access = if node.settings.read_only {
                Access::Read
            } else {
                Access::Write
            };
            Some((&file.filename, access))
        }
        _ => match node.driver.child()? {
            (_, NodeRef::Inline(below)) => file_and_access_of_node(below),
            (_, NodeRef::Name(_)) => None,
        },
    }
}

/// The folder of a file, also of one in the current folder.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
        Some(folder) => folder,
        None => Path::new("/"),
    }
}
