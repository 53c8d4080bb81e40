//! `blockplane serve`: disks on one socket, with defaults for interactive use.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use block::{CreateOutcome, create_sparse};
use options::{
    BlockdevOptions, ChardevOptions, ChardevSettings, DEFAULT_NULL_SIZE, Directive, Disk, Driver,
    ExportKind, ExportOptions, ExportSettings, FileOptions, IothreadOptions, LunDevice, LunOptions,
    MonitorOptions, NodeSettings, NullOptions, ObjectOptions, Serve, ServeDevice, SocketAddr,
    VhostUserBlkOptions, VhostUserScsiOptions,
};

use daemon::process::ProcessOptions;
use daemon::service::ServiceManager;
use daemon::{BoxError, run, upgrade};

use crate::announcement;

/// The name of the export, and of its node if there is one only.
const DISK: &str = "disk";

/// The name of the chardev of `--monitor`.
const MONITOR: &str = "monitor";

const SECTOR_BYTES: u32 = 512;

pub(crate) fn run(options: &Serve, service: ServiceManager) -> Result<(), BoxError> {
    let new = match upgrade::has_predecessor() {
        // The previous process created them.
        true => vec![false; options.disks.len()],
        false => created(options)?,
    };
    let mut served = false;
    let ended = run::run_process(
        ProcessOptions {
            directives: &directives(options),
            pidfile: options.pidfile.as_deref(),
            metrics: options.metrics.as_ref(),
            confinement: &options.confinement,
            created_files: &made(options, &new),
            background: false,
        },
        service,
        || {
            served = true;
            announcement::print(options, &new);
        },
    );
    // After a live upgrade `new` is false for every disk.
    if !served {
        remove(options, &new);
    }
    ended
}

/// The paths of the disks that were created.
fn made<'a>(options: &'a Serve, new: &[bool]) -> Vec<&'a Path> {
    let disks = options.disks.iter().zip(new);
    disks
        .filter_map(|(disk, new)| match disk {
            Disk::Path(path) if *new => Some(&**path),
            _ => None,
        })
        .collect()
}

/// Creates missing disks if a size is given; returns for each disk whether it is new.
fn created(options: &Serve) -> Result<Vec<bool>, BoxError> {
    let mut new = Vec::new();
    for disk in &options.disks {
        let created = match (disk, options.size) {
            (Disk::Path(path), Some(size)) => create_sparse(path, size),
            _ => Ok(CreateOutcome::Existed),
        };
        match created {
            Ok(created) => new.push(created == CreateOutcome::New),
            Err(error) => {
                remove(options, &new);
                return Err(error.into());
            }
        }
    }
    Ok(new)
}

/// Removes the new disks after a failed start.
fn remove(options: &Serve, new: &[bool]) {
    for (disk, new) in options.disks.iter().zip(new) {
        if let (Disk::Path(path), true) = (disk, new) {
            // It may be removed already.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The node name of each disk.
fn nodes(options: &Serve) -> Vec<String> {
    match options.disks.len() {
        1 => vec![DISK.to_owned()],
        number => (0..number).map(|disk| format!("{DISK}{disk}")).collect(),
    }
}

/// The options in terms of the daemon's directives.
fn directives(options: &Serve) -> Vec<Directive> {
    let iothreads: Vec<String> = (0..options.iothreads)
        .map(|index| format!("io{index}"))
        .collect();
    let mut directives: Vec<Directive> = iothreads
        .iter()
        .enumerate()
        .map(|(index, id)| Directive::Object(iothread(options, id, index)))
        .collect();
    let nodes = nodes(options);
    let driven = nodes.iter().zip(&options.disks);
    directives.extend(driven.map(|(node_name, disk)| {
        Directive::Blockdev(BlockdevOptions {
            node_name: node_name.clone(),
            settings: NodeSettings {
                read_only: options.read_only,
                discard: options.discard,
                cache_direct: Some(options.cache_direct),
                ..NodeSettings::defaults()
            },
            driver: driver(options, disk),
        })
    }));
    directives.push(Directive::Export(ExportOptions {
        id: DISK.to_owned(),
        node_name: nodes[0].clone(),
        addr: SocketAddr::Unix {
            path: options.socket_path(),
        },
        iothreads,
        settings: ExportSettings {
            writable: !options.read_only,
            writethrough: options.write_through,
            fixed_iothread: true,
        },
        kind: kind(options, &nodes),
    }));
    if let Some(path) = &options.monitor {
        directives.push(Directive::Chardev(ChardevOptions {
            addr: SocketAddr::Unix { path: path.clone() },
            settings: ChardevSettings {
                id: MONITOR.to_owned(),
                server: true,
                wait: Some(false),
                ..ChardevSettings::defaults()
            },
        }));
        directives.push(Directive::Monitor(MonitorOptions {
            chardev: MONITOR.to_owned(),
            ..MonitorOptions::defaults()
        }));
    }
    directives
}

fn iothread(options: &Serve, id: &str, index: usize) -> ObjectOptions {
    ObjectOptions::Iothread(IothreadOptions {
        poll_max_ns: options.poll_max_ns,
        poll_cpu_max: options.poll_cpu_max,
        cpu_affinity: options.cpu_affinity.get(index).cloned().unwrap_or_default(),
        aio_max_batch: options.aio_max_batch,
        aio_max_events: options.aio_max_events,
        ..IothreadOptions::new(id.to_owned())
    })
}

fn kind(options: &Serve, nodes: &[String]) -> ExportKind {
    match options.device {
        ServeDevice::VirtioBlk => ExportKind::VhostUserBlk(VhostUserBlkOptions {
            num_queues: options.num_queues,
            queue_size: options.queue_size,
            logical_block_size: block_size(options, &options.disks[0]),
            serial: options.serials.first().cloned(),
            request_merging: options.request_merging,
            packed: options.packed,
            ..VhostUserBlkOptions::defaults()
        }),
        ServeDevice::VirtioScsi => ExportKind::VhostUserScsi {
            queues: VhostUserScsiOptions {
                num_queues: options.num_queues,
                queue_size: options.queue_size,
                packed: options.packed,
            },
            luns: luns(options, nodes),
        },
        ServeDevice::Lsi53c895a => ExportKind::VfioUserLsi53c895a {
            luns: luns(options, nodes),
        },
    }
}

/// The disks at their SCSI addresses.
fn luns(options: &Serve, nodes: &[String]) -> Vec<LunOptions> {
    let disks = (0..).zip(nodes.iter().zip(&options.disks));
    let lun = |(number, (node_name, disk)): (u16, (&String, &Disk))| {
        let (target, lun) = options.device.place(number);
        let given = options.serials.get(usize::from(number)).cloned();
        LunOptions {
            node_name: node_name.clone(),
            target,
            lun,
            writable: !options.read_only,
            device: LunDevice {
                logical_block_size: block_size(options, disk),
                serial: Some(given.unwrap_or_else(|| default_serial(options, disk, number))),
                ..LunDevice::defaults()
            },
        }
    };
    disks.map(lun).collect()
}

/// The serial number of a disk without `--serial`, made from its path: a guest takes disks of several daemons with the
/// same serial number for paths to one disk.
fn default_serial(options: &Serve, disk: &Disk, number: u16) -> String {
    let path = match disk {
        Disk::Path(path) => path.clone(),
        Disk::NullCo => {
            let mut path = options.socket_path().into_os_string();
            path.push(format!(":{number}"));
            path.into()
        }
    };
    // If it cannot be made absolute, the path as given has to do.
    let path = std::path::absolute(&path).unwrap_or(path);
    let name = daemon::world_wide_name(path.as_os_str().as_encoded_bytes());
    format!("{name:016x}")
}

fn driver(options: &Serve, disk: &Disk) -> Driver {
    let Disk::Path(path) = disk else {
        return Driver::NullCo(NullOptions {
            size: options.size.unwrap_or(DEFAULT_NULL_SIZE),
            ..NullOptions::defaults()
        });
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
fn block_size(options: &Serve, disk: &Disk) -> u32 {
    if let Some(bytes) = options.logical_block_size {
        return bytes;
    }
    let Disk::Path(path) = disk else {
        return SECTOR_BYTES;
    };
    if !is_block_device(path) {
        return SECTOR_BYTES;
    }
    let device = std::fs::File::open(path);
    // A device that cannot be opened is reported when the node is.
    let found = device
        .ok()
        .and_then(|device| rustix::fs::ioctl_blksszget(&device).ok());
    found.unwrap_or(SECTOR_BYTES)
}

fn is_block_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
}
