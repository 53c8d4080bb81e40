//! From the tree of an `--export` to its settings.

use std::path::PathBuf;

use crate::{
    DEFAULT_MERGE_BYTES, DEFAULT_MERGE_REQUESTS, DEFAULT_REQUEST_TIMEOUT, DEFAULT_SERVE_QUEUES,
    ExportKind, ExportOptions, MAX_MERGE_REQUESTS, MAX_QUEUE_SIZE, MAX_QUEUES, MAX_SCSI_QUEUES,
    OnError, Problem, ScsiOptions, SocketAddr, VhostUserBlkOptions, VhostUserScsiOptions,
    export::{
        lun_device,
        luns::{self, Places},
        queues,
    },
    fields::{Fields, Key, NotYet, kind},
    inherited, limits,
    names::{MAX_ID_BYTES, MAX_NODE_NAME_BYTES, Names},
    tree::Object,
};

/// Keys of every export. A new version of the daemon is given all of them.
pub(crate) const KEYS: &[Key] = &[
    Key {
        name: "type",
        value: "TYPE",
        help: "the kind of export; may be written without its key",
    },
    Key {
        name: "id",
        value: "NAME",
        help: "name of the export",
    },
    Key {
        name: "node-name",
        value: "NODE",
        help: "the node to export",
    },
    Key {
        name: "addr.type",
        value: "unix|fd",
        help: "where the VMM connects: a socket to create, or an inherited one",
    },
    Key {
        name: "addr.path",
        value: "PATH",
        help: "with addr.type=unix: path of the socket",
    },
    Key {
        name: "addr.str",
        value: "FD",
        help: "with addr.type=fd: number, or name, of a listening socket",
    },
    Key {
        name: "writable",
        value: "on|off",
        help: "let the guest write (default off)",
    },
    Key {
        name: "writethrough",
        value: "on|off",
        help: "complete a write only when it is on stable storage (default off)",
    },
    Key {
        name: "iothread",
        value: "ID",
        help: "thread that runs it; for several iothread.0=ID,iothread.1=ID (default: chosen for you)",
    },
    Key {
        name: "fixed-iothread",
        value: "on|off",
        help: "keep it on these threads (default off)",
    },
    Key {
        name: "allow-inactive",
        value: "off",
        help: "only off for now",
    },
];

/// Keys of exports with virtqueues.
pub(crate) const QUEUE_KEYS: &[Key] = &[
    Key {
        name: "num-queues",
        value: "N",
        help: "most queues a VMM may ask for, 1 to 256; of vhost-user-scsi those for commands, 1 to 254 (default 1; of vhost-user-scsi 64)",
    },
    Key {
        name: "queue-size",
        value: "N",
        help: "most entries per queue, a power of two up to 1024 (default 1024; blockplane's own)",
    },
    Key {
        name: "iothread-vq-mapping",
        value: "LIST",
        help: "which thread runs which queue: iothread-vq-mapping.0.iothread=ID with iothread-vq-mapping.0.vqs.0=N (blockplane's own)",
    },
    Key {
        name: "packed",
        value: "on|off",
        help: "offer packed queues; the VMM must ask for them too (default off; blockplane's own)",
    },
];

/// Keys of exports that are disks.
pub(crate) const DISK_KEYS: &[Key] = &[
    Key {
        name: "logical-block-size",
        value: "BYTES",
        help: "a power of two, 512 to 32768 (default 512)",
    },
    Key {
        name: "serial",
        value: "TEXT",
        help: "serial number the guest sees, at most 20 bytes, of a SCSI disk 247 (blockplane's own)",
    },
];

/// Keys of exports that are one disk with queues.
pub(crate) const BLK_KEYS: &[Key] = &[
    Key {
        name: "request-merging",
        value: "on|off",
        help: "join adjacent requests of one batch (default on; blockplane's own)",
    },
    Key {
        name: "max-merge-requests",
        value: "N",
        help: "join so many at most, up to 64; 0 or 1 = none (default 32; blockplane's own)",
    },
    Key {
        name: "max-merge-bytes",
        value: "BYTES",
        help: "join up to so many bytes (default 1M; blockplane's own)",
    },
    Key {
        name: "fixed-buffers",
        value: "on|off",
        help: "pin all guest memory for io_uring; not with a balloon (default off; blockplane's own)",
    },
    Key {
        name: "rerror",
        value: "report|ignore|stop",
        help: "reads that the disk fails: tell the guest, pretend that they succeeded, or let them wait until block-export-resume (default report; blockplane's own)",
    },
    Key {
        name: "werror",
        value: "report|ignore|enospc|stop",
        help: "the same for all other requests; enospc = stop if the disk is full, else report (default report; blockplane's own)",
    },
    Key {
        name: "request-timeout",
        value: "SECONDS",
        help: "tell of requests that take longer; 0 = never (default 30; blockplane's own)",
    },
];

const KEYS_NOT_YET: &[NotYet] = &[
    NotYet {
        name: "addr.abstract",
        instead: "use a path in the file system",
    },
    NotYet {
        name: "addr.tight",
        instead: "use a path in the file system",
    },
    NotYet {
        name: "rerror",
        instead: "leave it out: SCSI disks report errors, as sense data",
    },
    NotYet {
        name: "werror",
        instead: "leave it out: SCSI disks report errors, as sense data",
    },
    NotYet {
        name: "request-timeout",
        instead: "leave it out: it is for vhost-user-blk",
    },
];

/// A kind of export: its keys, and what reads them.
#[derive(Clone, Copy)]
pub(crate) struct Type {
    pub keys: &'static [&'static [Key]],
    read: fn(&mut Fields, &Names, String) -> Result<ExportOptions, Problem>,
}

pub(crate) const TYPES: &[(&str, Type)] = &[
    (
        "vhost-user-blk",
        Type {
            keys: &[KEYS, QUEUE_KEYS, DISK_KEYS, BLK_KEYS],
            read: disk,
        },
    ),
    (
        "vhost-user-scsi",
        Type {
            keys: &[KEYS, QUEUE_KEYS, DISK_KEYS, luns::KEYS, lun_device::KEYS],
            read: virtio_controller,
        },
    ),
    (
        "vfio-user-lsi53c895a",
        Type {
            keys: &[KEYS, DISK_KEYS, luns::KEYS, lun_device::KEYS],
            read: controller,
        },
    ),
];

/// The places of virtio-scsi: a byte for the target and 14 bits for the unit (virtio specification 1.2, section 5.6.6.1).
pub(crate) const VIRTIO_PLACES: Places = Places {
    max_target: 255,
    max_lun: 16_383,
    initiator: None,
    max_disks: 256,
    may_be_empty: true,
};

/// The target that the LSI 53C895A is itself.
pub(crate) const LSI_ADAPTER: u16 = 7;

/// The places of the LSI 53C895A: its bus has 16 bits, and IDENTIFY has six for the unit.
pub(crate) const LSI_PLACES: Places = Places {
    max_target: 15,
    max_lun: 63,
    initiator: Some(LSI_ADAPTER),
    max_disks: 15 * 64,
    may_be_empty: false,
};

const TYPES_NOT_YET: &[&str] = &["nbd", "fuse", "vduse-blk"];

#[derive(Clone, Copy)]
enum AddrType {
    Unix,
    Fd,
}

const ON_READ_ERROR: [(&str, OnError); 3] = [
    ("report", OnError::Report),
    ("ignore", OnError::Ignore),
    ("stop", OnError::Stop),
];

const ON_WRITE_ERROR: [(&str, OnError); 4] = [
    ("report", OnError::Report),
    ("ignore", OnError::Ignore),
    ("enospc", OnError::NoSpace),
    ("stop", OnError::Stop),
];

/// A day: in seconds.
const MAX_TIMEOUT: u64 = 86_400;

const ADDR_TYPES: &[(&str, AddrType)] = &[("unix", AddrType::Unix), ("fd", AddrType::Fd)];

const ADDR_TYPES_NOT_YET: &[NotYet] = &[
    NotYet {
        name: "inet",
        instead: "guest memory can only be shared over unix or fd",
    },
    NotYet {
        name: "vsock",
        instead: "guest memory can only be shared over unix or fd",
    },
];

/// Reads the tree of one `--export` and notes its name.
pub(crate) fn parse(object: Object, names: &mut Names) -> Result<ExportOptions, Problem> {
    let r#type = kind(&object, "", "type", TYPES, TYPES_NOT_YET)?;
    let mut fields = Fields::new(object, "", r#type.keys, KEYS_NOT_YET)?;
    fields.take("type");
    let id = fields
        .identifier("id", MAX_ID_BYTES)?
        .ok_or_else(|| missing("id", "write id=NAME, such as id=export0"))?;
    let export = (r#type.read)(&mut fields, names, id)?;
    fields.finish();
    names.add_export(&export.id, export.kind.addr())?;
    Ok(export)
}

fn missing(key: &str, expected: &str) -> Problem {
    Problem::Missing {
        key: key.to_owned(),
        expected: expected.to_owned(),
    }
}

/// What every export has.
fn export(
    fields: &mut Fields,
    id: String,
    node_name: String,
    writable: bool,
    iothreads: Vec<String>,
    kind: ExportKind,
) -> Result<ExportOptions, Problem> {
    Ok(ExportOptions {
        writethrough: fields.boolean("writethrough")?.unwrap_or(false),
        fixed_iothread: fields.boolean("fixed-iothread")?.unwrap_or(false),
        id,
        node_name,
        writable,
        iothreads,
        kind,
    })
}

fn writable(fields: &mut Fields) -> Result<bool, Problem> {
    fields.must_be_off(
        "allow-inactive",
        "leave it out: an export makes its nodes active",
    )?;
    Ok(fields.boolean("writable")?.unwrap_or(false))
}

fn disk(fields: &mut Fields, names: &Names, id: String) -> Result<ExportOptions, Problem> {
    let node_name = fields
        .identifier("node-name", MAX_NODE_NAME_BYTES)?
        .ok_or_else(|| {
            missing(
                "node-name",
                "write node-name=NODE with the node-name of a --blockdev",
            )
        })?;
    let writable = writable(fields)?;
    luns::check_node(names, "node-name", &node_name, writable)?;
    let addr = addr(fields)?;
    // As that of qemu-storage-daemon, which has this type.
    let num_queues = num_queues(fields, MAX_QUEUES, 1)?;
    let disk = VhostUserBlkOptions {
        num_queues,
        queue_size: queue_size(fields)?,
        logical_block_size: logical_block_size(fields)?,
        serial: serial(fields)?,
        request_merging: fields.boolean("request-merging")?.unwrap_or(true),
        max_merge_requests: max_merge_requests(fields)?,
        max_merge_bytes: fields
            .size("max-merge-bytes", 0, i64::MAX.unsigned_abs())?
            .unwrap_or(DEFAULT_MERGE_BYTES),
        packed: fields.boolean("packed")?.unwrap_or(false),
        rerror: fields
            .choice("rerror", &ON_READ_ERROR, &[])?
            .unwrap_or(OnError::Report),
        werror: fields
            .choice("werror", &ON_WRITE_ERROR, &[])?
            .unwrap_or(OnError::Report),
        request_timeout: fields
            .number("request-timeout", 0, MAX_TIMEOUT)?
            .unwrap_or(DEFAULT_REQUEST_TIMEOUT),
        fixed_buffers: fields.boolean("fixed-buffers")?.unwrap_or(false),
        addr,
    };
    let iothreads = queues::iothreads(fields, names, num_queues)?;
    let kind = ExportKind::VhostUserBlk(disk);
    export(fields, id, node_name, writable, iothreads, kind)
}

/// A controller with virtqueues.
fn virtio_controller(
    fields: &mut Fields,
    names: &Names,
    id: String,
) -> Result<ExportOptions, Problem> {
    let writable = writable(fields)?;
    let luns = luns::luns(fields, names, &VIRTIO_PLACES, writable)?;
    let num_queues = num_queues(fields, MAX_SCSI_QUEUES, DEFAULT_SERVE_QUEUES)?;
    // Those for control and events come first.
    let iothreads = queues::iothreads(fields, names, num_queues + 2)?;
    let first = luns.first();
    let node_name = first.map_or_else(String::new, |lun| lun.node_name.clone());
    let controller = VhostUserScsiOptions {
        scsi: ScsiOptions {
            addr: addr(fields)?,
            luns,
        },
        num_queues,
        queue_size: queue_size(fields)?,
        packed: fields.boolean("packed")?.unwrap_or(false),
    };
    let kind = ExportKind::VhostUserScsi(controller);
    export(fields, id, node_name, writable, iothreads, kind)
}

/// A controller that is one device on one iothread.
fn controller(fields: &mut Fields, names: &Names, id: String) -> Result<ExportOptions, Problem> {
    let writable = writable(fields)?;
    let luns = luns::luns(fields, names, &LSI_PLACES, writable)?;
    let addr = addr(fields)?;
    let iothreads = queues::iothreads(fields, names, 1)?;
    if let [_, second, ..] = iothreads.as_slice() {
        let reason = format!(
            "'iothread' names '{second}' as well: this device has no queues to spread, and runs on one iothread"
        );
        return Err(Problem::Conflict { reason });
    }
    let node_name = luns[0].node_name.clone();
    let kind = ExportKind::VfioUserLsi53c895a(ScsiOptions { addr, luns });
    export(fields, id, node_name, writable, iothreads, kind)
}

fn addr(fields: &mut Fields) -> Result<SocketAddr, Problem> {
    let Some(addr_type) = fields.choice("addr.type", ADDR_TYPES, ADDR_TYPES_NOT_YET)? else {
        let expected =
            "write addr.type=unix,addr.path=PATH, or addr.type=fd,addr.str=FD".to_owned();
        return Err(Problem::Missing {
            key: "addr.type".to_owned(),
            expected,
        });
    };
    let (used, other, written) = match addr_type {
        AddrType::Unix => ("addr.path", "addr.str", "unix"),
        AddrType::Fd => ("addr.str", "addr.path", "fd"),
    };
    if fields.take(other).is_some() {
        let reason =
            format!("'{other}' does not belong to 'addr.type={written}', which takes '{used}'");
        return Err(Problem::Conflict { reason });
    }
    match addr_type {
        AddrType::Unix => {
            let path = fields.required(
                "addr.path",
                "write addr.path=PATH with the path of the socket to create",
            )?;
            if !limits::is_socket_path(path.as_bytes()) {
                return Err(fields.bad_text("addr.path", &path, limits::SOCKET_EXPECTED));
            }
            Ok(SocketAddr::Unix {
                path: PathBuf::from(path),
            })
        }
        AddrType::Fd => {
            let text = fields.required(
                "addr.str",
                "write addr.str=FD with the number or name of a listening socket",
            )?;
            inherited::read(&text)
                .ok_or_else(|| fields.bad_text("addr.str", &text, inherited::EXPECTED))
        }
    }
}

fn num_queues(fields: &mut Fields, most: u16, default: u16) -> Result<u16, Problem> {
    let number = fields.number("num-queues", 1, most.into())?;
    Ok(number
        .and_then(|n| u16::try_from(n).ok())
        .unwrap_or(default))
}

fn max_merge_requests(fields: &mut Fields) -> Result<u16, Problem> {
    let number = fields.number("max-merge-requests", 0, MAX_MERGE_REQUESTS.into())?;
    Ok(number
        .and_then(|n| u16::try_from(n).ok())
        .unwrap_or(DEFAULT_MERGE_REQUESTS))
}

fn queue_size(fields: &mut Fields) -> Result<u16, Problem> {
    let Some(entries) = fields.number("queue-size", 0, u64::MAX)? else {
        return Ok(MAX_QUEUE_SIZE);
    };
    limits::queue_size(entries).ok_or_else(|| {
        fields.bad_text(
            "queue-size",
            &entries.to_string(),
            limits::QUEUE_SIZE_EXPECTED,
        )
    })
}

pub(super) fn logical_block_size(fields: &mut Fields) -> Result<u32, Problem> {
    let Some(bytes) = fields.size("logical-block-size", 0, u64::MAX)? else {
        return Ok(512);
    };
    limits::block_size(bytes).ok_or_else(|| {
        fields.bad_text(
            "logical-block-size",
            &bytes.to_string(),
            limits::BLOCK_SIZE_EXPECTED,
        )
    })
}

fn serial(fields: &mut Fields) -> Result<Option<String>, Problem> {
    let Some(serial) = fields.string("serial")? else {
        return Ok(None);
    };
    if limits::is_serial(&serial) {
        return Ok(Some(serial));
    }
    Err(fields.bad_text("serial", &serial, limits::SERIAL_EXPECTED))
}
