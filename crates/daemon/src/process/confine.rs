//! `--user` and `--sandbox`: drops privileges before the process starts threads and opens disks, and allows the files that its
//! options name.

use std::io;
use std::path::{Path, PathBuf};

use options::{
    BlockdevOptions, Directive, Driver, ExportOptions, MetricsAddr, NbdServerAddr, NbdServerType,
    NodeRef, ObjectOptions, RbdOptions, Sandbox, SocketAddr,
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
    let files = match process.confinement.sandbox.degree {
        Sandbox::Off => {
            tracing::debug!("sandbox: off");
            return Ok(());
        }
        // Clients of monitors may add disks, whose paths are not known yet.
        Sandbox::On if has_monitor(process) => AccessibleFiles::Any,
        Sandbox::On | Sandbox::Strict => {
            linked_folders = target_folders_of_linked_files(process);
            rules = sandbox_path_rules(process, &linked_folders);
            AccessibleFiles::Only(&rules)
        }
    };
    if let Some(paths) = paths_for_ceph_clients(process) {
        ceph::start_confined_launcher(move || confine_network_clients(&paths))?;
    }
    if needs_tcp_for_nbd(process) {
        let paths = SYSTEM_PATHS.map(PathBuf::from);
        nbd::client::launcher::start_confined(move || confine_network_clients(&paths))?;
    }
    let confined = sandbox::confine_process(files)?;
    if confined.is_complete() {
        tracing::info!("sandbox: {confined}");
    } else {
        tracing::warn!("sandbox: {confined}");
    }
    Ok(())
}

/// Files that clients of servers read, above all to resolve names of hosts.
const SYSTEM_PATHS: [&str; 8] = [
    "/etc",
    "/run/systemd/resolve",
    "/usr",
    "/lib",
    "/lib64",
    "/proc",
    "/sys",
    "/dev/urandom",
];

/// Whether an export of an NBD server is reached by TCP, or one may be added.
fn needs_tcp_for_nbd(process: &ProcessOptions<'_>) -> bool {
    let mut nodes = process
        .directives
        .iter()
        .filter_map(|directive| match directive {
            Directive::Blockdev(node) => Some(bottom_of_node(node)),
            _ => None,
        });
    process.confinement.sandbox.allows_nbd
        || nodes.any(|bottom| {
            matches!(&bottom.driver, Driver::Nbd(nbd) if nbd.server_type == NbdServerType::Inet)
        })
}

/// Files that clients of Ceph clusters read: configuration, keyrings, certificates, the resolver's files. `None`: there are no
/// images, and none may be added.
fn paths_for_ceph_clients(process: &ProcessOptions<'_>) -> Option<Vec<PathBuf>> {
    let nodes = process
        .directives
        .iter()
        .filter_map(|directive| match directive {
            Directive::Blockdev(node) => Some(node),
            _ => None,
        });
    let images: Vec<_> = nodes.filter_map(image_at_bottom).collect();
    let options = process.confinement.sandbox;
    if images.is_empty() && !options.allows_rbd {
        return None;
    }
    if options.degree == Sandbox::On && has_monitor(process) {
        // The configuration of an image that is added may be anywhere.
        return Some(vec![PathBuf::from("/")]);
    }
    let configured = images.iter().filter_map(|image| image.conf.as_deref());
    // A keyring is often beside the configuration.
    let folders = configured.map(|conf| folder_of(conf).to_owned());
    Some(
        SYSTEM_PATHS
            .into_iter()
            .map(PathBuf::from)
            .chain(folders)
            .collect(),
    )
}

/// The last of a node and its inline children.
fn bottom_of_node(node: &BlockdevOptions) -> &BlockdevOptions {
    match node.driver.child_with_key() {
        Some((_, NodeRef::Inline(below))) => bottom_of_node(below),
        _ => node,
    }
}

/// The options of the image that a node and its inline children end at.
fn image_at_bottom(node: &BlockdevOptions) -> Option<&RbdOptions> {
    match &bottom_of_node(node).driver {
        Driver::Rbd(image) => Some(image),
        _ => None,
    }
}

/// Confines the calling thread, and the threads that it starts, to what clients of servers need.
fn confine_network_clients(paths: &[PathBuf]) -> io::Result<()> {
    let mut rules: Vec<_> = paths
        .iter()
        .map(|path| PathRule {
            path,
            access: Access::Read,
        })
        .collect();
    rules.push(PathRule {
        path: Path::new("/dev/null"),
        access: Access::Write,
    });
    sandbox::confine_network_client_thread(&rules).map_err(io::Error::other)
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
                if let Some(file) = bitmap_file_of_node(node) {
                    allow(folder_of(file), Access::Files);
                }
            }
            Directive::Export(export) => {
                if let Some(SocketAddr::Unix { path }) = export.kind.socket() {
                    allow(folder_of(path), Access::Sockets);
                }
                for file in pr_files_of_export(export) {
                    allow(folder_of(file), Access::Files);
                }
            }
            Directive::NbdServer(server) => {
                if let NbdServerAddr::Socket(SocketAddr::Unix { path }) = &server.addr {
                    allow(folder_of(path), Access::Sockets);
                }
            }
            Directive::Chardev(chardev) => {
                if let SocketAddr::Unix { path } = &chardev.addr {
                    allow(folder_of(path), Access::Sockets);
                }
            }
            Directive::Object(ObjectOptions::Secret(secret)) => {
                if let Some(file) = &secret.file {
                    allow(file, Access::Read);
                }
            }
            Directive::Object(ObjectOptions::TlsCreds(creds)) => allow(&creds.dir, Access::Read),
            Directive::Object(
                ObjectOptions::Iothread(_)
                | ObjectOptions::ThrottleGroup(_)
                | ObjectOptions::AuthzList(_),
            )
            | Directive::Monitor(_) => {}
        }
    }
    rules
}

/// Files with persistent reservations (`pr-file`) of an export's LUNs.
fn pr_files_of_export(export: &ExportOptions) -> impl Iterator<Item = &Path> {
    let luns = export.kind.luns().into_iter().flatten();
    luns.filter_map(|lun| lun.device.pr_file.as_deref())
}

/// Folders that symbolic links to files of reservations and bitmaps point into: such a file is replaced where the link points to.
fn target_folders_of_linked_files(process: &ProcessOptions<'_>) -> Vec<PathBuf> {
    let files = process
        .directives
        .iter()
        .flat_map(|directive| -> Vec<&Path> {
            match directive {
                Directive::Export(export) => pr_files_of_export(export).collect(),
                Directive::Blockdev(node) => bitmap_file_of_node(node).into_iter().collect(),
                _ => Vec::new(),
            }
        });
    let links = files.filter(|file| file.is_symlink());
    let files = links.filter_map(|link| link.canonicalize().ok());
    files.map(|file| folder_of(&file).to_owned()).collect()
}

/// The file for persistent dirty bitmaps of a node or its inline child.
fn bitmap_file_of_node(node: &BlockdevOptions) -> Option<&Path> {
    match (&node.driver, node.driver.child_with_key()) {
        (Driver::File(file) | Driver::HostDevice(file), _) => file.bitmap_file.as_deref(),
        (_, Some((_, NodeRef::Inline(below)))) => bitmap_file_of_node(below),
        _ => None,
    }
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
        // Without a configuration file of its own, it has Ceph's usual folder, with keyrings.
        Driver::Rbd(rbd) => {
            let conf = rbd.conf.as_deref();
            Some((conf.unwrap_or(Path::new("/etc/ceph")), Access::Read))
        }
        _ => match node.driver.child_with_key()? {
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
