//! Dropped privileges, before the process has threads and opens disks: `--user`, `--sandbox`.

use std::path::{Path, PathBuf};

use options::{
    BlockdevOptions, Directive, Driver, ExportOptions, MetricsAddr, NodeRef, Sandbox, SocketAddr,
};
use sandbox::{Access, Files, Rule};

use crate::failure::Failure;
use crate::process::Process;

/// Becomes who the user wants.
pub(crate) fn become_user(process: &Process<'_>) -> Result<(), Failure> {
    if let Some(user) = &process.confinement.user {
        sandbox::become_user(user)?;
    }
    Ok(())
}

/// Gives away what `process` does not need.
pub(crate) fn confine(process: &Process<'_>) -> Result<(), Failure> {
    let (linked, rules);
    let files = match process.confinement.sandbox {
        Sandbox::Off => {
            tracing::debug!("sandbox: off");
            return Ok(());
        }
        // It may add disks, and nobody knows yet where they are.
        Sandbox::On if has_monitor(process) => Files::Any,
        Sandbox::On | Sandbox::Strict => {
            linked = linked_folders(process);
            rules = rules_of(process, &linked);
            Files::Only(&rules)
        }
    };
    let confined = sandbox::confine(files)?;
    if confined.is_complete() {
        tracing::info!("sandbox: {confined}");
    } else {
        tracing::warn!("sandbox: {confined}");
    }
    Ok(())
}

fn has_monitor(process: &Process<'_>) -> bool {
    let mut directives = process.directives.iter();
    directives.any(|directive| matches!(directive, Directive::Monitor(_)))
}

/// What a process has to do with files. What it finds out about descriptors, memory and devices stands in
/// /proc and /sys.
fn rules_of<'a>(process: &Process<'a>, linked: &'a [PathBuf]) -> Vec<Rule<'a>> {
    let mut rules = Vec::new();
    let mut allow = |path: &'a Path, access| rules.push(Rule { path, access });
    for folder in linked {
        allow(folder, Access::Files);
    }
    for path in ["/proc", "/sys"] {
        allow(Path::new(path), Access::Read);
    }
    allow(Path::new("/dev/null"), Access::Write);
    if let Some(pidfile) = process.pidfile {
        allow(folder_of(pidfile), Access::Files);
    }
    for made in process.made {
        allow(folder_of(made), Access::Sockets);
    }
    if let Some(MetricsAddr::Socket(SocketAddr::Unix { path })) = process.metrics {
        allow(folder_of(path), Access::Sockets);
    }
    for directive in process.directives {
        match directive {
            Directive::Blockdev(node) => {
                if let Some((path, access)) = disk_of(node) {
                    allow(path, access);
                }
            }
            Directive::Export(export) => {
                if let SocketAddr::Unix { path } = &export.addr {
                    allow(folder_of(path), Access::Sockets);
                }
                for file in pr_files(export) {
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

/// What keeps the reservations of an export's units.
fn pr_files(export: &ExportOptions) -> impl Iterator<Item = &Path> {
    let luns = export.kind.luns().into_iter().flatten();
    luns.filter_map(|lun| lun.device.pr_file.as_deref())
}

/// Such a file is replaced where its name leads to, which may be another folder.
fn linked_folders(process: &Process<'_>) -> Vec<PathBuf> {
    let exports = process
        .directives
        .iter()
        .filter_map(|directive| match directive {
            Directive::Export(export) => Some(export),
            _ => None,
        });
    let links = exports.flat_map(pr_files).filter(|file| file.is_symlink());
    let files = links.filter_map(|link| link.canonicalize().ok());
    files.map(|file| folder_of(&file).to_owned()).collect()
}

/// What a node opens, itself or as one that is written in place below it.
fn disk_of(node: &BlockdevOptions) -> Option<(&Path, Access)> {
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
            (_, NodeRef::Inline(below)) => disk_of(below),
            (_, NodeRef::Name(_)) => None,
        },
    }
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
        Some(folder) => folder,
        None => Path::new("/"),
    }
}
