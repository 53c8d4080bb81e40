//! `blockplane serve`: creates missing disk images, converts the arguments to the daemon's directives, and runs the daemon.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use block::{CreateOutcome, create_sparse_or_check_size};
use options::{
    BlockdevOptions, ChardevOptions, CommonChardevOptions, CommonExportOptions, CommonNodeOptions,
    DEFAULT_NULL_SIZE, Directive, Driver, ExportKind, ExportOptions, FileOptions, IothreadOptions,
    LunDeviceOptions, LunOptions, MonitorOptions, NodeRef, NullOptions, ObjectOptions, RbdOptions,
    SecretFormat, SecretOptions, ServeDevice, ServeDisk, ServeSettings, SocketAddr,
    ThrottleOptions, VhostUserBlkOptions, VhostUserScsiOptions,
};

use daemon::process::ProcessOptions;
use daemon::service::ServiceManagerConnection;
use daemon::{BoxError, run, upgrade};

use crate::announcement;

/// The name of the export, and of its node if there is one only.
const DISK_NAME: &str = "disk";

/// The name of the chardev of `--monitor`.
const MONITOR_NAME: &str = "monitor";

const SECTOR_BYTES: u32 = 512;

/// Serves the disks, which are created before, and removed again if the start fails.
pub(crate) fn run(
    options: &ServeSettings,
    service: ServiceManagerConnection,
) -> Result<(), BoxError> {
    let is_new = match upgrade::has_predecessor() {
        // The previous process created them.
        true => vec![false; options.disks.len()],
        false => create_missing_disks_if_size_given(options)?,
    };
    let mut has_started = false;
    let outcome = run::run_in_foreground(
        ProcessOptions {
            directives: &to_directives(options),
            pidfile: options.pidfile.as_deref(),
            metrics: options.metrics.as_ref(),
            confinement: &options.confinement,
            created_files: &created_disk_paths(options, &is_new),
            background: false,
        },
        service,
        || {
            has_started = true;
            announcement::print_announcement_unless_quiet(options, &is_new);
        },
    );
    // After a live upgrade `is_new` is false for every disk.
    if !has_started {
        remove_new_disks(options, &is_new);
    }
    outcome
}

/// The paths of the disks that were created.
fn created_disk_paths<'a>(options: &'a ServeSettings, is_new: &[bool]) -> Vec<&'a Path> {
    let disks = options.disks.iter().zip(is_new);
    disks
        .filter_map(|(disk, is_new)| match disk {
            ServeDisk::Path(path) if *is_new => Some(&**path),
            _ => None,
        })
        .collect()
}

/// Creates missing disks if a size is given; returns for each disk whether it is new.
fn create_missing_disks_if_size_given(options: &ServeSettings) -> Result<Vec<bool>, BoxError> {
    let mut is_new = Vec::new();
    for disk in &options.disks {
        let created = match (disk, options.size) {
            (ServeDisk::Path(path), Some(size)) => create_sparse_or_check_size(path, size),
            _ => Ok(CreateOutcome::Existed),
        };
        match created {
            Ok(created) => is_new.push(created == CreateOutcome::New),
            Err(error) => {
                remove_new_disks(options, &is_new);
                return Err(error.into());
            }
        }
    }
    Ok(is_new)
}

/// Removes the new disks after a failed start.
fn remove_new_disks(options: &ServeSettings, is_new: &[bool]) {
    for (disk, is_new) in options.disks.iter().zip(is_new) {
        if let (ServeDisk::Path(path), true) = (disk, is_new) {
            // It may be removed already.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The node name of each disk.
fn node_names(options: &ServeSettings) -> Vec<String> {
    match options.disks.len() {
        1 => vec![DISK_NAME.to_owned()],
        number => (0..number)
            .map(|disk| format!("{DISK_NAME}{disk}"))
            .collect(),
    }
}

/// The daemon's directives (iothreads, nodes, export, monitor) that do what the options say.
fn to_directives(options: &ServeSettings) -> Vec<Directive> {
    let iothreads: Vec<String> = (0..options.iothreads)
        .map(|index| format!("io{index}"))
        .collect();
    let mut directives: Vec<Directive> = iothreads
        .iter()
        .enumerate()
        .map(|(index, id)| Directive::Object(iothread_options(options, id, index)))
        .collect();
    let node_names = node_names(options);
    let nodes = node_names.iter().zip(&options.disks);
    directives.extend(nodes.clone().filter_map(|(node_name, disk)| {
        let file = key_file_of_disk(disk)?;
        Some(Directive::Object(key_secret(node_name, file)))
    }));
    if let Some(limits) = &options.limits {
        let group = ObjectOptions::ThrottleGroup((**limits).clone());
        directives.push(Directive::Object(group));
    }
    directives.extend(
        nodes.map(|(node_name, disk)| Directive::Blockdev(node_options(options, node_name, disk))),
    );
    directives.push(Directive::Export(ExportOptions {
        id: DISK_NAME.to_owned(),
        node_name: node_names[0].clone(),
        iothreads,
        settings: CommonExportOptions {
            writable: !options.read_only && !options.disks.iter().all(ServeDisk::is_snapshot),
            writethrough: options.write_through,
            fixed_iothread: true,
            allow_inactive: false,
        },
        kind: build_export_kind(options, &node_names),
    }));
    if let Some(path) = &options.monitor {
        directives.push(Directive::Chardev(ChardevOptions {
            addr: SocketAddr::Unix { path: path.clone() },
            settings: CommonChardevOptions {
                id: MONITOR_NAME.to_owned(),
                server: true,
                wait: Some(false),
                ..CommonChardevOptions::defaults()
            },
        }));
        directives.push(Directive::Monitor(MonitorOptions {
            chardev: MONITOR_NAME.to_owned(),
            ..MonitorOptions::defaults()
        }));
    }
    directives
}

/// The node of a disk, with a node in front of it that throttles if there are limits.
fn node_options(options: &ServeSettings, node_name: &str, disk: &ServeDisk) -> BlockdevOptions {
    let node = BlockdevOptions {
        node_name: node_name.to_owned(),
        settings: CommonNodeOptions {
            read_only: options.read_only || disk.is_snapshot(),
            discard: options.discard,
            cache_direct: match disk {
                ServeDisk::Rbd { .. } | ServeDisk::Nbd(_) => None,
                ServeDisk::Path(_) | ServeDisk::NullCo => Some(options.cache_direct),
            },
            ..CommonNodeOptions::defaults()
        },
        driver: node_driver(options, node_name, disk),
    };
    let Some(limits) = &options.limits else {
        return node;
    };
    BlockdevOptions {
        node_name: node_name.to_owned(),
        settings: node.settings.clone(),
        driver: Driver::Throttle {
            member: ThrottleOptions {
                throttle_group: limits.id.clone(),
            },
            file: NodeRef::Inline(Box::new(BlockdevOptions {
                node_name: format!("{node_name}-storage"),
                ..node
            })),
        },
    }
}

/// The file with the key of the user that an image needs.
fn key_file_of_disk(disk: &ServeDisk) -> Option<&Path> {
    match disk {
        ServeDisk::Rbd { key_file, .. } => key_file.as_deref(),
        ServeDisk::Path(_) | ServeDisk::NullCo | ServeDisk::Nbd(_) => None,
    }
}

/// The id of the secret that a node needs.
fn key_secret_id(node_name: &str) -> String {
    format!("{node_name}-key")
}

/// The secret that a node needs.
fn key_secret(node_name: &str, file: &Path) -> ObjectOptions {
    ObjectOptions::Secret(SecretOptions {
        id: key_secret_id(node_name),
        file: Some(file.to_owned()),
        data: None,
        format: SecretFormat::Base64,
    })
}

/// The options of the iothread with an index.
fn iothread_options(options: &ServeSettings, id: &str, index: usize) -> ObjectOptions {
    ObjectOptions::Iothread(IothreadOptions {
        poll_max_ns: options.poll_max_ns,
        poll_cpu_max: options.poll_cpu_max,
        cpu_affinity: options.cpu_affinity.get(index).cloned().unwrap_or_default(),
        aio_max_batch: options.aio_max_batch,
        aio_max_events: options.aio_max_events,
        ..IothreadOptions::new(id.to_owned())
    })
}

/// The type of the export, with its queues and its disks.
fn build_export_kind(options: &ServeSettings, node_names: &[String]) -> ExportKind {
    let addr = SocketAddr::Unix {
        path: options.socket_path_or_default(),
    };
    match options.device {
        ServeDevice::VirtioBlk => ExportKind::VhostUserBlk {
            addr,
            disk: VhostUserBlkOptions {
                num_queues: options.num_queues,
                queue_size: options.queue_size,
                logical_block_size: logical_block_size(options, &options.disks[0]),
                serial: options.serials.first().cloned(),
                request_merging: options.request_merging,
                packed: options.packed,
                ..VhostUserBlkOptions::defaults()
            },
        },
        ServeDevice::VirtioScsi => ExportKind::VhostUserScsi {
            addr,
            queues: VhostUserScsiOptions {
                num_queues: options.num_queues,
                queue_size: options.queue_size,
                packed: options.packed,
            },
            luns: lun_options(options, node_names),
        },
        ServeDevice::Lsi53c895a => ExportKind::VfioUserLsi53c895a {
            addr,
            luns: lun_options(options, node_names),
        },
    }
}

/// The disks at their SCSI addresses.
fn lun_options(options: &ServeSettings, node_names: &[String]) -> Vec<LunOptions> {
    let disks = (0..).zip(node_names.iter().zip(&options.disks));
    let lun_of_disk = |(number, (node_name, disk)): (u16, (&String, &ServeDisk))| {
        let (target, lun) = options.device.target_and_lun(number);
        let given_serial = options.serials.get(usize::from(number)).cloned();
        LunOptions {
            node_name: node_name.clone(),
            target,
            lun,
            writable: !options.read_only && !disk.is_snapshot(),
            device: LunDeviceOptions {
                logical_block_size: logical_block_size(options, disk),
                serial: Some(given_serial.unwrap_or_else(|| default_serial(options, disk, number))),
                ..LunDeviceOptions::defaults()
            },
        }
    };
    disks.map(lun_of_disk).collect()
}

/// The serial number of a disk without `--serial`, made from its path or the name of its image: a guest takes disks of several
/// daemons with the same serial number for paths to one disk.
fn default_serial(options: &ServeSettings, disk: &ServeDisk, number: u16) -> String {
    let path = match disk {
        ServeDisk::Path(path) => path.clone(),
        ServeDisk::Rbd { image, .. } => {
            let image = format!("rbd:{}", image.image_spec());
            return serial_of_name(image.as_bytes());
        }
        ServeDisk::Nbd(nbd) => return serial_of_name(nbd.uri().as_bytes()),
        ServeDisk::NullCo => {
            let mut path = options.socket_path_or_default().into_os_string();
            path.push(format!(":{number}"));
            path.into()
        }
    };
    // If it cannot be made absolute, the path as given has to do.
    let path = std::path::absolute(&path).unwrap_or(path);
    serial_of_name(path.as_os_str().as_encoded_bytes())
}

/// The serial number of the disk with this name.
fn serial_of_name(name: &[u8]) -> String {
    format!("{:016x}", daemon::world_wide_name(name))
}

/// The driver of a disk's node, which depends on whether its path is a device.
fn node_driver(options: &ServeSettings, node_name: &str, disk: &ServeDisk) -> Driver {
    let path = match disk {
        ServeDisk::Path(path) => path,
        ServeDisk::Rbd { image, key_file } => {
            return Driver::Rbd(RbdOptions {
                locking: options.locking,
                key_secret: key_file.as_ref().map(|_| key_secret_id(node_name)),
                ..(**image).clone()
            });
        }
        ServeDisk::Nbd(nbd) => return Driver::Nbd((**nbd).clone()),
        ServeDisk::NullCo => {
            return Driver::NullCo(NullOptions {
                size: options.size.unwrap_or(DEFAULT_NULL_SIZE),
                ..NullOptions::defaults()
            });
        }
    };
    let file = FileOptions {
        filename: path.clone(),
        aio: options.aio,
        locking: options.locking,
        ..FileOptions::defaults()
    };
    if is_block_device(path) {
        Driver::HostDevice(file)
    } else {
        Driver::File(file)
    }
}

/// The logical block size: of a block device its own, because its content depends on it; of an image always 512 bytes.
fn logical_block_size(options: &ServeSettings, disk: &ServeDisk) -> u32 {
    if let Some(bytes) = options.logical_block_size {
        return bytes;
    }
    let ServeDisk::Path(path) = disk else {
        return SECTOR_BYTES;
    };
    if !is_block_device(path) {
        return SECTOR_BYTES;
    }
    let device = std::fs::File::open(path);
    // A device that cannot be opened is reported when the node is.
    let block_size = device
        .ok()
        .and_then(|device| rustix::fs::ioctl_blksszget(&device).ok());
    block_size.unwrap_or(SECTOR_BYTES)
}

/// Whether the path names a block device that exists.
fn is_block_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
}
