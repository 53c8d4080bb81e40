//! From the tree of a `--blockdev` to its settings: which keys each driver takes, and what a child
//! written in place inherits from its parent.

use std::path::PathBuf;

use crate::{
    AioMode, BlkdebugOptions, BlockdevOptions, DEFAULT_NULL_SIZE, Discard, Driver, FileOptions,
    Locking, NodeRef, NullOptions, Problem, RawOptions,
    blockdev::blkdebug,
    fields::{Fields, Key, NotYet, kind},
    names::{MAX_NODE_NAME_BYTES, Names},
    tree::{Object, Value},
};

pub(crate) const COMMON_KEYS: &[Key] = &[
    Key {
        name: "driver",
        value: "DRIVER",
        help: "what is behind the node; may be written without its key",
    },
    Key {
        name: "node-name",
        value: "NAME",
        help: "the name exports and other nodes refer to it by",
    },
    Key {
        name: "read-only",
        value: "on|off",
        help: "refuse writes (default off)",
    },
    Key {
        name: "auto-read-only",
        value: "on|off",
        help: "become read-only if it cannot be opened for writing (default off)",
    },
    Key {
        name: "discard",
        value: "unmap|ignore",
        help: "free the space a guest discards, or not (default ignore)",
    },
    Key {
        name: "cache.direct",
        value: "on|off",
        help: "bypass the host's page cache, O_DIRECT (default on where the file system can)",
    },
    Key {
        name: "cache.no-flush",
        value: "on|off",
        help: "ignore flushes; loses data when the host stops (default off)",
    },
    Key {
        name: "active",
        value: "on|off",
        help: "lock the image and use it, or leave it to another program until an export or blockdev-set-active needs it (default on)",
    },
    Key {
        name: "detect-zeroes",
        value: "off",
        help: "only off for now",
    },
    Key {
        name: "force-share",
        value: "off",
        help: "only off for now",
    },
];

pub(crate) const FILE_KEYS: &[Key] = &[
    Key {
        name: "filename",
        value: "PATH",
        help: "the file or device",
    },
    Key {
        name: "aio",
        value: "threads|native|io_uring",
        help: "how requests reach the kernel (default found by trying: io_uring, else native, with cache.direct=off threads)",
    },
    Key {
        name: "locking",
        value: "auto|on|off",
        help: "lock it against other writers (default auto)",
    },
    Key {
        name: "aio-max-batch",
        value: "N",
        help: "most requests per call to the kernel, 0 = the iothread's (default 0)",
    },
];

pub(crate) const NULL_KEYS: &[Key] = &[
    Key {
        name: "size",
        value: "SIZE",
        help: "size of the disk (default 1G)",
    },
    Key {
        name: "read-zeroes",
        value: "on|off",
        help: "reads return zeroes instead of whatever is in the buffer (default off)",
    },
    Key {
        name: "latency-ns",
        value: "NS",
        help: "how long each request takes (default 0)",
    },
];

pub(crate) const RAW_KEYS: &[Key] = &[
    Key {
        name: "file",
        value: "NODE",
        help: "the node below: its node-name, or its own keys as file.driver=…,file.…",
    },
    Key {
        name: "offset",
        value: "SIZE",
        help: "where the disk starts in the node below (default 0)",
    },
    Key {
        name: "size",
        value: "SIZE",
        help: "size of the disk, a multiple of 512 (default: up to the end)",
    },
];

const KEYS_NOT_YET: &[NotYet] = &[
    NotYet {
        name: "pr-manager",
        instead: "leave it out: persistent reservations are not passed through",
    },
    NotYet {
        name: "drop-cache",
        instead: "leave it out",
    },
    NotYet {
        name: "x-check-cache-dropped",
        instead: "leave it out",
    },
];

/// A driver before its options are known.
#[derive(Clone, Copy)]
pub(crate) enum Which {
    File,
    HostDevice,
    NullCo,
    Raw,
    Blkdebug,
}

impl Which {
    /// The keys that it adds to those of every driver.
    pub(crate) fn keys(self) -> &'static [Key] {
        match self {
            Self::File | Self::HostDevice => FILE_KEYS,
            Self::NullCo => NULL_KEYS,
            Self::Raw => RAW_KEYS,
            Self::Blkdebug => blkdebug::KEYS,
        }
    }
}

pub(crate) const DRIVERS: &[(&str, Which)] = &[
    ("file", Which::File),
    ("host_device", Which::HostDevice),
    ("null-co", Which::NullCo),
    ("raw", Which::Raw),
    ("blkdebug", Which::Blkdebug),
];

#[rustfmt::skip]
const DRIVERS_NOT_YET: &[&str] = &[
    "blklogwrites", "blkreplay", "blkverify", "bochs", "cloop", "compress", "copy-before-write", "copy-on-read",
    "dmg", "ftp", "ftps", "gluster", "host_cdrom", "http", "https", "io_uring", "iscsi", "luks", "nbd", "nfs", "null-aio", "nvme",
    "nvme-io_uring", "parallels", "preallocate", "qcow", "qcow2", "qed", "quorum", "rbd", "replication", "snapshot-access", "ssh",
    "throttle", "vdi", "vhdx", "virtio-blk-vfio-pci", "virtio-blk-vhost-user", "virtio-blk-vhost-vdpa", "vmdk", "vpc", "vvfat",
];

/// What a child written in place takes from its parent where it says nothing itself.
#[derive(Clone, Copy)]
struct Inherited {
    read_only: bool,
    auto_read_only: bool,
    discard: Discard,
    cache_direct: Option<bool>,
    cache_no_flush: bool,
    active: bool,
}

impl Inherited {
    /// What a node without a parent starts from.
    const ROOT: Self = Self {
        read_only: false,
        auto_read_only: false,
        discard: Discard::Ignore,
        cache_direct: None,
        cache_no_flush: false,
        active: true,
    };
}

/// Reads the tree of one `--blockdev` and notes the names in it.
pub(crate) fn parse(object: Object, names: &mut Names) -> Result<BlockdevOptions, Problem> {
    node(object, "", Inherited::ROOT, names).map(|(node, _)| node)
}

/// Reads one node. Also returns whether the node, or something below it, refuses writes.
fn node(
    object: Object,
    prefix: &str,
    inherited: Inherited,
    names: &mut Names,
) -> Result<(BlockdevOptions, bool), Problem> {
    let which = kind(&object, prefix, "driver", DRIVERS, DRIVERS_NOT_YET)?;
    let not_yet = match which {
        Which::Blkdebug => blkdebug::NOT_YET,
        _ => KEYS_NOT_YET,
    };
    let mut fields = Fields::new(object, prefix, &[COMMON_KEYS, which.keys()], not_yet)?;
    fields.take("driver");
    let name = fields.identifier("node-name", MAX_NODE_NAME_BYTES)?;
    if name.is_none() && prefix.is_empty() {
        let expected = "write node-name=NAME, such as node-name=disk0".to_owned();
        return Err(Problem::Missing {
            key: "node-name".to_owned(),
            expected,
        });
    }
    let discards = [
        ("unmap", Discard::Unmap),
        ("ignore", Discard::Ignore),
        ("on", Discard::Unmap),
        ("off", Discard::Ignore),
    ];
    let own = Inherited {
        read_only: fields.boolean("read-only")?.unwrap_or(inherited.read_only),
        auto_read_only: fields
            .boolean("auto-read-only")?
            .unwrap_or(inherited.auto_read_only),
        discard: fields
            .choice("discard", &discards, &[])?
            .unwrap_or(inherited.discard),
        cache_direct: fields.boolean("cache.direct")?.or(inherited.cache_direct),
        cache_no_flush: fields
            .boolean("cache.no-flush")?
            .unwrap_or(inherited.cache_no_flush),
        active: fields.boolean("active")?.unwrap_or(inherited.active),
    };
    if inherited.active && !own.active && !prefix.is_empty() {
        let reason = format!(
            "'{}=off' contradicts the node in front of it, which is active; set active=off there",
            fields.path("active")
        );
        return Err(Problem::Conflict { reason });
    }
    let not_detected = "leave it out: zeroes are written as they are";
    let not_yet = [
        NotYet {
            name: "on",
            instead: not_detected,
        },
        NotYet {
            name: "unmap",
            instead: not_detected,
        },
    ];
    fields.choice("detect-zeroes", &[("off", ())], &not_yet)?;
    fields.must_be_off(
        "force-share",
        "use locking=off to open a file that somebody else writes",
    )?;
    let mut read_only = own.read_only;
    let driver = match which {
        Which::File => Driver::File(file(&mut fields, own.cache_direct)?),
        Which::HostDevice => Driver::HostDevice(file(&mut fields, own.cache_direct)?),
        Which::NullCo => Driver::NullCo(NullOptions {
            size: fields
                .size("size", 0, MAX_DISK_BYTES)?
                .unwrap_or(DEFAULT_NULL_SIZE),
            read_zeroes: fields.boolean("read-zeroes")?.unwrap_or(false),
            latency_ns: fields.number("latency-ns", 0, u64::MAX)?.unwrap_or(0),
        }),
        Which::Raw => {
            let (raw, below_is_read_only) = raw(&mut fields, own, names)?;
            read_only |= below_is_read_only;
            Driver::Raw(raw)
        }
        Which::Blkdebug => {
            let injected = blkdebug::injected(&mut fields)?;
            let (image, below_is_read_only) = child(&mut fields, "image", own, names)?;
            read_only |= below_is_read_only;
            Driver::Blkdebug(BlkdebugOptions { image, injected })
        }
    };
    fields.finish();
    let node_name = name.unwrap_or_else(|| names.unnamed_node());
    names.add_node(&node_name, read_only)?;
    if let Driver::File(file) | Driver::HostDevice(file) = &driver
        && file.locking != Locking::Off
        && own.active
    {
        let writes = !own.read_only && !own.auto_read_only;
        let key = format!("{prefix}filename");
        names.add_image(&key, &file.filename, &node_name, writes)?;
    }
    let node = BlockdevOptions {
        node_name,
        read_only: own.read_only,
        auto_read_only: own.auto_read_only,
        discard: own.discard,
        cache_direct: own.cache_direct,
        cache_no_flush: own.cache_no_flush,
        active: own.active,
        driver,
    };
    Ok((node, read_only))
}

/// Largest offset the kernel's file interface has (`off_t`).
const MAX_DISK_BYTES: u64 = i64::MAX.unsigned_abs();

fn file(fields: &mut Fields, cache_direct: Option<bool>) -> Result<FileOptions, Problem> {
    let filename = fields.required("filename", "write filename=PATH")?;
    if filename.is_empty() || filename.contains('\0') {
        return Err(fields.bad_text("filename", &filename, "a path"));
    }
    let direct = cache_direct != Some(false);
    let modes = [
        ("threads", AioMode::Threads),
        ("native", AioMode::Native),
        ("io_uring", AioMode::IoUring),
    ];
    let aio = fields.choice("aio", &modes, &[])?;
    if aio == Some(AioMode::Native) && !direct {
        let reason = format!(
            "'{}=native' contradicts '{}=off': the kernel would block on every buffered request; use io_uring or threads",
            fields.path("aio"),
            fields.path("cache.direct")
        );
        return Err(Problem::Conflict { reason });
    }
    let lockings = [
        ("auto", Locking::Auto),
        ("on", Locking::On),
        ("off", Locking::Off),
    ];
    Ok(FileOptions {
        filename: PathBuf::from(filename),
        aio,
        locking: fields
            .choice("locking", &lockings, &[])?
            .unwrap_or(Locking::Auto),
        aio_max_batch: fields
            .number_u32("aio-max-batch", 0, u32::MAX)?
            .unwrap_or(0),
    })
}

/// Also returns whether the node below refuses writes.
fn raw(
    fields: &mut Fields,
    own: Inherited,
    names: &mut Names,
) -> Result<(RawOptions, bool), Problem> {
    const SECTOR_BYTES: u64 = 512;
    let offset = fields.size("offset", 0, MAX_DISK_BYTES)?.unwrap_or(0);
    let size = fields.size("size", 0, MAX_DISK_BYTES)?;
    if let Some(size) = size.filter(|size| !size.is_multiple_of(SECTOR_BYTES)) {
        return Err(fields.bad_text("size", &size.to_string(), "a multiple of 512 bytes"));
    }
    if offset + size.unwrap_or(0) > MAX_DISK_BYTES {
        let reason = format!(
            "'{}' and '{}' together go beyond 2^63 bytes",
            fields.path("offset"),
            fields.path("size")
        );
        return Err(Problem::Conflict { reason });
    }
    let (file, read_only) = child(fields, "file", own, names)?;
    Ok((RawOptions { file, offset, size }, read_only))
}

/// Also returns whether the node below refuses writes.
fn child(
    fields: &mut Fields,
    name: &'static str,
    own: Inherited,
    names: &mut Names,
) -> Result<(NodeRef, bool), Problem> {
    let key = fields.path(name);
    Ok(match fields.take(name) {
        Some(Value::Text(name) | Value::String(name)) => {
            let read_only = names.node_is_read_only(&key, &name)?;
            (NodeRef::Name(name), read_only)
        }
        Some(Value::Object(object)) => {
            // The parent has already decided about discards; what reaches the child is wanted.
            let inherited = Inherited {
                discard: Discard::Unmap,
                ..own
            };
            let (node, read_only) = node(object, &format!("{key}."), inherited, names)?;
            (NodeRef::Inline(Box::new(node)), read_only)
        }
        Some(other) => {
            let expected = "a node-name or a node's own keys".to_owned();
            return Err(Problem::BadValue {
                key,
                value: other.shown(),
                expected,
            });
        }
        None => {
            let expected =
                format!("write {name}=NODE-NAME, or {name}.driver=file,{name}.filename=PATH");
            return Err(Problem::Missing { key, expected });
        }
    })
}
