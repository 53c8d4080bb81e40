//! The face for people: one disk on one socket.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use block::{Created, create_sparse};
use options::{
    BlockdevOptions, ChardevOptions, DEFAULT_MERGE_BYTES, DEFAULT_MERGE_REQUESTS,
    DEFAULT_NULL_SIZE, Directive, Disk, Driver, ExportKind, ExportOptions, FileOptions,
    IothreadOptions, MonitorOptions, NullOptions, ObjectOptions, Serve, SocketAddr,
    VhostUserBlkOptions,
};

use crate::daemon::Process;
use crate::service::Service;
use crate::{Failure, attach, daemon};

const NODE: &str = "disk";

/// The chardev of `--monitor`.
const MONITOR: &str = "monitor";

const SECTOR_BYTES: u32 = 512;

pub(crate) fn run(options: &Serve, service: Service) -> Result<(), Failure> {
    let created = match (&options.disk, options.size) {
        (Disk::Path(path), Some(size)) => Some(create_sparse(path, size)?),
        _ => None,
    };
    let new = created == Some(Created::New);
    let mut served = false;
    let ended = daemon::run_until_signalled(
        Process {
            directives: &directives(options),
            pidfile: options.pidfile.as_deref(),
            metrics: options.metrics.as_ref(),
        },
        None,
        service,
        || {
            served = true;
            attach::announce(options, new);
        },
    );
    if let (false, true, Disk::Path(path)) = (served, new, &options.disk) {
        // Nobody has ever had this disk. Gone already is as good.
        let _ = std::fs::remove_file(path);
    }
    ended
}

/// The same in the words of the other face.
fn directives(options: &Serve) -> Vec<Directive> {
    let iothreads: Vec<String> = (0..options.iothreads)
        .map(|index| format!("io{index}"))
        .collect();
    let mut directives: Vec<Directive> = iothreads
        .iter()
        .enumerate()
        .map(|(index, id)| Directive::Object(iothread(options, id, index)))
        .collect();
    let driver = driver(options);
    let block_size = options
        .logical_block_size
        .unwrap_or_else(|| usual_block_size(options));
    directives.push(Directive::Blockdev(BlockdevOptions {
        node_name: NODE.to_owned(),
        read_only: options.read_only,
        auto_read_only: false,
        discard: options.discard,
        cache_direct: Some(options.cache_direct),
        cache_no_flush: false,
        driver,
    }));
    directives.push(Directive::Export(ExportOptions {
        id: NODE.to_owned(),
        node_name: NODE.to_owned(),
        writable: !options.read_only,
        writethrough: options.write_through,
        iothreads,
        fixed_iothread: true,
        kind: ExportKind::VhostUserBlk(VhostUserBlkOptions {
            addr: SocketAddr::Unix {
                path: options.socket_path(),
            },
            num_queues: options.num_queues,
            queue_size: options.queue_size,
            logical_block_size: block_size,
            serial: options.serial.clone(),
            request_merging: options.request_merging,
            max_merge_requests: DEFAULT_MERGE_REQUESTS,
            max_merge_bytes: DEFAULT_MERGE_BYTES,
            packed: options.packed,
            fixed_buffers: false,
        }),
    }));
    if let Some(path) = &options.monitor {
        directives.push(Directive::Chardev(ChardevOptions {
            id: MONITOR.to_owned(),
            addr: SocketAddr::Unix { path: path.clone() },
            server: true,
            wait: false,
        }));
        directives.push(Directive::Monitor(MonitorOptions {
            chardev: MONITOR.to_owned(),
            pretty: false,
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

fn driver(options: &Serve) -> Driver {
    let Disk::Path(path) = &options.disk else {
        return Driver::NullCo(NullOptions {
            size: options.size.unwrap_or(DEFAULT_NULL_SIZE),
            read_zeroes: false,
            latency_ns: 0,
        });
    };
    let file = FileOptions {
        filename: path.clone(),
        aio: options.aio,
        locking: options.locking,
        aio_max_batch: 0,
    };
    if is_block_device(path) {
        Driver::HostDevice(file)
    } else {
        Driver::File(file)
    }
}

/// What is on a block device was written in its own blocks; an image is the same on any disk.
fn usual_block_size(options: &Serve) -> u32 {
    let Disk::Path(path) = &options.disk else {
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
