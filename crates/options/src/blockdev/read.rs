//! Reads the options of `--blockdev` from a tree of values: the keys of each driver, and the settings that a child node
//! inherits.

use crate::{
    AioMode, BlockdevOptions, CommonNodeOptions, DetectZeroes, Discard, Driver, FileOptions,
    Locking, NbdOptions, NodeRef, NullOptions, Problem, RawOffsetAndSize, RbdOptions,
    ThrottleOptions,
    blockdev::{MAX_DISK_BYTES, SNAPSHOT_ACCESS_KEYS, blkdebug, nbd, rbd},
    fields::Fields,
    key::{KeySpec, UnsupportedName, read_kind},
    names::DefinedNames,
    tree::{Object, Value},
};

const UNSUPPORTED_KEYS: &[UnsupportedName] = &[
    UnsupportedName {
        name: "pr-manager",
        instead: "leave it out: persistent reservations are not passed through",
    },
    UnsupportedName {
        name: "drop-cache",
        instead: "leave it out",
    },
    UnsupportedName {
        name: "x-check-cache-dropped",
        instead: "leave it out",
    },
];

/// A driver without its options.
#[derive(Clone, Copy)]
pub(crate) enum DriverKind {
    File,
    HostDevice,
    NullCo,
    Raw,
    Nbd,
    Rbd,
    Throttle,
    Blkdebug,
    SnapshotAccess,
}

impl DriverKind {
    /// The keys that only this driver has.
    pub(crate) fn specific_keys(self) -> &'static [KeySpec] {
        match self {
            Self::File | Self::HostDevice => FileOptions::KEYS,
            Self::NullCo => NullOptions::KEYS,
            Self::Raw => RawOffsetAndSize::KEYS,
            Self::Nbd => NbdOptions::KEYS,
            Self::Rbd => RbdOptions::KEYS,
            Self::Throttle => ThrottleOptions::KEYS,
            Self::Blkdebug => blkdebug::BlkdebugSeedKey::KEYS,
            Self::SnapshotAccess => SNAPSHOT_ACCESS_KEYS,
        }
    }
}

pub(crate) const DRIVERS: &[(&str, DriverKind)] = &[
    ("file", DriverKind::File),
    ("host_device", DriverKind::HostDevice),
    ("null-co", DriverKind::NullCo),
    ("raw", DriverKind::Raw),
    ("nbd", DriverKind::Nbd),
    ("rbd", DriverKind::Rbd),
    ("throttle", DriverKind::Throttle),
    ("blkdebug", DriverKind::Blkdebug),
    ("snapshot-access", DriverKind::SnapshotAccess),
];

#[rustfmt::skip]
const UNSUPPORTED_DRIVERS: &[&str] = &[
    "blklogwrites", "blkreplay", "blkverify", "bochs", "cloop", "compress", "copy-before-write", "copy-on-read",
    "dmg", "ftp", "ftps", "gluster", "host_cdrom", "http", "https", "io_uring", "iscsi", "luks", "nfs", "null-aio", "nvme",
    "nvme-io_uring", "parallels", "preallocate", "qcow", "qcow2", "qed", "quorum", "replication", "ssh",
    "vdi", "vhdx", "virtio-blk-vfio-pci", "virtio-blk-vhost-user", "virtio-blk-vhost-vdpa", "vmdk", "vpc", "vvfat",
];

/// Reads the tree of a `--blockdev`, and adds the names that it defines.
pub(crate) fn read_and_register_blockdev(
    object: Object,
    names: &mut DefinedNames,
) -> Result<BlockdevOptions, Problem> {
    read_and_register_node(object, "", None, names).map(|(node, _)| node)
}

/// Reads a node, which inherits settings if it is written inside of another. Also returns whether the node or a node below it is
/// read-only.
fn read_and_register_node(
    object: Object,
    prefix: &str,
    inherited: Option<&CommonNodeOptions>,
    names: &mut DefinedNames,
) -> Result<(BlockdevOptions, bool), Problem> {
    let kind = read_kind(&object, prefix, "driver", DRIVERS, UNSUPPORTED_DRIVERS)?;
    let unsupported = match kind {
        DriverKind::Blkdebug => blkdebug::UNSUPPORTED_KEYS,
        DriverKind::Nbd => nbd::UNSUPPORTED_KEYS,
        DriverKind::Rbd => rbd::UNSUPPORTED_KEYS,
        _ => UNSUPPORTED_KEYS,
    };
    let tables = [CommonNodeOptions::KEYS, kind.specific_keys()];
    let mut fields = Fields::with_known_keys(object, prefix, &tables, unsupported)?;
    fields.take_raw("driver");
    let name = fields.take_typed("node-name", names.form_of_new_node_name())?;
    if name.is_none() && inherited.is_none() {
        let expected = "write node-name=NAME, such as node-name=disk0";
        return Err(fields.missing_key_error("node-name", expected));
    }
    let given = rbd::GivenSettings::of(&fields);
    let mut settings = CommonNodeOptions::read(&mut fields, inherited)?;
    if inherited.is_some_and(|parent| parent.active) && !settings.active {
        let reason = format!(
            "'{}=off' contradicts the node above it, which is active; set active=off there",
            fields.full_key("active")
        );
        return Err(Problem::Conflict { reason });
    }
    let mut below_is_read_only = false;
    let mut child_node = |fields: &mut Fields, name, names: &mut DefinedNames| {
        let (node, read_only) = read_and_register_child(fields, name, &settings, names)?;
        below_is_read_only = read_only;
        Ok::<_, Problem>(node)
    };
    let driver = match kind {
        DriverKind::File => Driver::File(read_file_options(&mut fields, &settings)?),
        DriverKind::HostDevice => Driver::HostDevice(read_file_options(&mut fields, &settings)?),
        DriverKind::NullCo => Driver::NullCo(NullOptions::read(&mut fields, None)?),
        DriverKind::Raw => Driver::Raw {
            part: read_raw_offset_and_size(&mut fields)?,
            file: child_node(&mut fields, "file", names)?,
        },
        DriverKind::Nbd => Driver::Nbd(nbd::read_nbd_options(
            &mut fields,
            &mut settings,
            given.cache_direct,
            names,
        )?),
        DriverKind::Rbd => Driver::Rbd(rbd::read_rbd_options(
            &mut fields,
            &mut settings,
            &given,
            names,
        )?),
        DriverKind::Throttle => {
            let member = ThrottleOptions::read(&mut fields, None)?;
            let (key, group) = (fields.full_key("throttle-group"), &member.throttle_group);
            names.check_object_defined(&key, "throttle-group", group)?;
            let file = child_node(&mut fields, "file", names)?;
            Driver::Throttle { file, member }
        }
        DriverKind::Blkdebug => Driver::Blkdebug {
            injected: blkdebug::read_inject_errors_and_seed(&mut fields)?,
            image: child_node(&mut fields, "image", names)?,
        },
        DriverKind::SnapshotAccess => Driver::SnapshotAccess {
            file: child_node(&mut fields, "file", names)?,
        },
    };
    if settings.force_share && !settings.read_only {
        let reason = format!(
            "'{}=on' can only be used with read-only images; set read-only=on as well",
            fields.full_key("force-share")
        );
        return Err(Problem::Conflict { reason });
    }
    if settings.detect_zeroes == DetectZeroes::Unmap && settings.discard != Discard::Unmap {
        let reason = format!(
            "setting '{}' to unmap is not allowed without setting '{}' to unmap as well",
            fields.full_key("detect-zeroes"),
            fields.full_key("discard")
        );
        return Err(Problem::Conflict { reason });
    }
    fields.debug_assert_all_taken();
    let is_snapshot = matches!(driver, Driver::SnapshotAccess { .. });
    let read_only = settings.read_only || below_is_read_only || is_snapshot;
    let node_name = name.unwrap_or_else(|| names.generate_node_name());
    names.add_node(&node_name, read_only)?;
    register_locked_image(&driver, prefix, &node_name, &settings, names)?;
    let node = BlockdevOptions {
        node_name,
        settings,
        driver,
    };
    Ok((node, read_only))
}

/// Adds the image of a node to those that nodes lock.
fn register_locked_image(
    driver: &Driver,
    prefix: &str,
    node_name: &str,
    settings: &CommonNodeOptions,
    names: &mut DefinedNames,
) -> Result<(), Problem> {
    if settings.force_share {
        return Ok(());
    }
    match driver {
        Driver::File(file) | Driver::HostDevice(file)
            if file.locking != Locking::Off && settings.active =>
        {
            let writes = !settings.read_only && !settings.auto_read_only;
            let key = format!("{prefix}filename");
            names.add_image_file(&key, &file.filename, node_name, writes)
        }
        Driver::Rbd(rbd) => rbd::register_locked_image(rbd, prefix, node_name, settings, names),
        _ => Ok(()),
    }
}

/// Reads the options of `file` and `host_device`, and checks that `aio` goes with `cache.direct`.
fn read_file_options(
    fields: &mut Fields,
    settings: &CommonNodeOptions,
) -> Result<FileOptions, Problem> {
    let cache_direct = settings.cache_direct;
    let file = FileOptions::read(fields, None)?;
    if file.bitmap_file.is_some() && !settings.active {
        let reason = format!(
            "'{}' contradicts active=off: its bitmaps would miss what another program writes meanwhile",
            fields.full_key("bitmap-file")
        );
        return Err(Problem::Conflict { reason });
    }
    if file.aio == Some(AioMode::Native) && cache_direct == Some(false) {
        let reason = format!(
            "'{}=native' contradicts '{}=off': the kernel would block on every buffered request; use io_uring or threads",
            fields.full_key("aio"),
            fields.full_key("cache.direct")
        );
        return Err(Problem::Conflict { reason });
    }
    Ok(file)
}

/// Reads `offset` and `size` of `raw`: the part of the node below that it shows.
fn read_raw_offset_and_size(fields: &mut Fields) -> Result<RawOffsetAndSize, Problem> {
    let part = RawOffsetAndSize::read(fields, None)?;
    if part.offset + part.size.unwrap_or(0) > MAX_DISK_BYTES {
        let reason = format!(
            "'{}' and '{}' together go beyond 2^63 bytes",
            fields.full_key("offset"),
            fields.full_key("size")
        );
        return Err(Problem::Conflict { reason });
    }
    Ok(part)
}

/// Reads the node below: its name, or its own keys. Also returns whether it is read-only.
fn read_and_register_child(
    fields: &mut Fields,
    name: &'static str,
    parent: &CommonNodeOptions,
    names: &mut DefinedNames,
) -> Result<(NodeRef, bool), Problem> {
    let key = fields.full_key(name);
    Ok(match fields.take_raw(name) {
        Some(Value::Text(name) | Value::String(name)) => {
            let read_only = names.node_is_read_only(&key, &name)?;
            (NodeRef::Name(name), read_only)
        }
        Some(Value::Object(object)) => {
            // The parent has decided about discards, so the child executes those that reach it, and has detected zeroes.
            let inherited = CommonNodeOptions {
                discard: Discard::Unmap,
                detect_zeroes: DetectZeroes::Off,
                ..parent.clone()
            };
            let (node, read_only) =
                read_and_register_node(object, &format!("{key}."), Some(&inherited), names)?;
            (NodeRef::Inline(Box::new(node)), read_only)
        }
        Some(other) => {
            let expected = "a node-name or a node's own keys".to_owned();
            return Err(Problem::BadValue {
                key,
                value: other.excerpt(),
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
