//! From the tree of a `--blockdev` to its settings: which keys each driver takes, and what a child
//! written in place inherits from its parent.

use crate::{
    AioMode, BlockdevOptions, Discard, Driver, FileOptions, Locking, NodeRef, NodeSettings,
    NullOptions, Problem, RawOptions,
    blockdev::{MAX_DISK_BYTES, blkdebug},
    fields::Fields,
    form::NODE_NAME,
    key::{Key, NotYet, kind},
    names::Names,
    tree::{Object, Value},
};

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
            Self::File | Self::HostDevice => FileOptions::KEYS,
            Self::NullCo => NullOptions::KEYS,
            Self::Raw => RawOptions::KEYS,
            Self::Blkdebug => blkdebug::BlkdebugKeys::KEYS,
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

/// Reads the tree of one `--blockdev` and notes the names in it.
pub(crate) fn parse(object: Object, names: &mut Names) -> Result<BlockdevOptions, Problem> {
    node(object, "", None, names).map(|(node, _)| node)
}

/// Reads one node, which inherits settings if it was written in place. Also returns whether the node, or something below it,
/// refuses writes.
fn node(
    object: Object,
    prefix: &str,
    inherited: Option<&NodeSettings>,
    names: &mut Names,
) -> Result<(BlockdevOptions, bool), Problem> {
    let which = kind(&object, prefix, "driver", DRIVERS, DRIVERS_NOT_YET)?;
    let not_yet = match which {
        Which::Blkdebug => blkdebug::NOT_YET,
        _ => KEYS_NOT_YET,
    };
    let tables = [NodeSettings::KEYS, which.keys()];
    let mut fields = Fields::new(object, prefix, &tables, not_yet)?;
    fields.take("driver");
    let name = fields.value("node-name", &NODE_NAME)?;
    if name.is_none() && inherited.is_none() {
        let expected = "write node-name=NAME, such as node-name=disk0";
        return Err(fields.missing("node-name", expected));
    }
    let settings = NodeSettings::read(&mut fields, inherited)?;
    if inherited.is_some_and(|parent| parent.active) && !settings.active {
        let reason = format!(
            "'{}=off' contradicts the node in front of it, which is active; set active=off there",
            fields.path("active")
        );
        return Err(Problem::Conflict { reason });
    }
    let mut read_only = settings.read_only;
    let mut child = |fields: &mut Fields, name| {
        let (node, below_is_read_only) = child(fields, name, &settings, names)?;
        read_only |= below_is_read_only;
        Ok::<_, Problem>(node)
    };
    let driver = match which {
        Which::File => Driver::File(file(&mut fields, settings.cache_direct)?),
        Which::HostDevice => Driver::HostDevice(file(&mut fields, settings.cache_direct)?),
        Which::NullCo => Driver::NullCo(NullOptions::read(&mut fields, None)?),
        Which::Raw => Driver::Raw {
            part: part(&mut fields)?,
            file: child(&mut fields, "file")?,
        },
        Which::Blkdebug => Driver::Blkdebug {
            injected: blkdebug::read_blkdebug(&mut fields)?,
            image: child(&mut fields, "image")?,
        },
    };
    fields.finish();
    let node_name = name.unwrap_or_else(|| names.unnamed_node());
    names.add_node(&node_name, read_only)?;
    if let Driver::File(file) | Driver::HostDevice(file) = &driver
        && file.locking != Locking::Off
        && settings.active
    {
        let writes = !settings.read_only && !settings.auto_read_only;
        let key = format!("{prefix}filename");
        names.add_image(&key, &file.filename, &node_name, writes)?;
    }
    let node = BlockdevOptions {
        node_name,
        settings,
        driver,
    };
    Ok((node, read_only))
}

fn file(fields: &mut Fields, cache_direct: Option<bool>) -> Result<FileOptions, Problem> {
    let file = FileOptions::read(fields, None)?;
    if file.aio == Some(AioMode::Native) && cache_direct == Some(false) {
        let reason = format!(
            "'{}=native' contradicts '{}=off': the kernel would block on every buffered request; use io_uring or threads",
            fields.path("aio"),
            fields.path("cache.direct")
        );
        return Err(Problem::Conflict { reason });
    }
    Ok(file)
}

/// The part of a node that `raw` shows.
fn part(fields: &mut Fields) -> Result<RawOptions, Problem> {
    let part = RawOptions::read(fields, None)?;
    if part.offset + part.size.unwrap_or(0) > MAX_DISK_BYTES {
        let reason = format!(
            "'{}' and '{}' together go beyond 2^63 bytes",
            fields.path("offset"),
            fields.path("size")
        );
        return Err(Problem::Conflict { reason });
    }
    Ok(part)
}

/// Also returns whether the node below refuses writes.
fn child(
    fields: &mut Fields,
    name: &'static str,
    own: &NodeSettings,
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
            let inherited = NodeSettings {
                discard: Discard::Unmap,
                ..own.clone()
            };
            let (node, read_only) = node(object, &format!("{key}."), Some(&inherited), names)?;
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
