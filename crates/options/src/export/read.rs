//! Reads the options of `--export` from a tree of values: the keys of each type of export, and the address of its
//! socket.

use crate::{
    CommonExportOptions, ExportKind, ExportOptions, LunDeviceOptions, NbdExportOptions, Problem,
    SocketAddr, VhostUserBlkOptions, VhostUserScsiOptions,
    export::{
        SOCKET_KEYS,
        luns::{self, LunLimits},
        queues,
    },
    fields::Fields,
    form::{ChoiceForm, ID_FORM, NODE_NAME_FORM},
    key::{KeySpec, UnsupportedName, read_kind},
    names::DefinedNames,
    socket,
    tree::Object,
};

const UNSUPPORTED_KEYS: &[UnsupportedName] = &[
    UnsupportedName {
        name: "addr.abstract",
        instead: "use a path in the file system",
    },
    UnsupportedName {
        name: "addr.tight",
        instead: "use a path in the file system",
    },
    UnsupportedName {
        name: "rerror",
        instead: "leave it out: SCSI disks report errors, as sense data",
    },
    UnsupportedName {
        name: "werror",
        instead: "leave it out: SCSI disks report errors, as sense data",
    },
    UnsupportedName {
        name: "request-timeout",
        instead: "leave it out: it is for vhost-user-blk",
    },
];

/// A type of export: its keys, and the function that reads the options that only it has.
#[derive(Clone, Copy)]
pub(crate) struct ExportTypeReader {
    /// Name of its options in the QMP schema.
    pub schema_name: &'static str,
    /// Those of every export, and tables of others.
    pub keys: &'static [&'static [KeySpec]],
    read: fn(
        &mut Fields,
        &DefinedNames,
        &CommonExportOptions,
    ) -> Result<TypeSpecificExportOptions, Problem>,
}

/// Options of one type of export.
struct TypeSpecificExportOptions {
    /// The first exported node.
    node_name: String,
    iothreads: Vec<String>,
    kind: ExportKind,
}

pub(crate) const TYPES: &[(&str, ExportTypeReader)] = &[
    (
        "vhost-user-blk",
        ExportTypeReader {
            schema_name: "BlockExportOptionsVhostUserBlk",
            keys: &[
                CommonExportOptions::KEYS,
                SOCKET_KEYS,
                VhostUserBlkOptions::KEYS,
            ],
            read: read_vhost_user_blk,
        },
    ),
    (
        "vhost-user-scsi",
        ExportTypeReader {
            schema_name: "BlockExportOptionsVhostUserScsi",
            keys: &[
                CommonExportOptions::KEYS,
                SOCKET_KEYS,
                VhostUserScsiOptions::KEYS,
                luns::LUNS_KEYS,
                LunDeviceOptions::KEYS,
            ],
            read: read_vhost_user_scsi,
        },
    ),
    (
        "vfio-user-lsi53c895a",
        ExportTypeReader {
            schema_name: "BlockExportOptionsVfioUserLsi53c895a",
            keys: &[
                CommonExportOptions::KEYS,
                SOCKET_KEYS,
                luns::LUNS_KEYS,
                LunDeviceOptions::KEYS,
            ],
            read: read_lsi53c895a,
        },
    ),
    (
        "nbd",
        ExportTypeReader {
            schema_name: "BlockExportOptionsNbd",
            keys: &[CommonExportOptions::KEYS, NbdExportOptions::KEYS],
            read: read_nbd,
        },
    ),
];

/// Targets and LUNs of virtio-scsi: a byte for the target and 14 bits for the unit (virtio specification 1.2, section 5.6.6.1).
pub(crate) const VIRTIO_SCSI_LIMITS: LunLimits = LunLimits {
    max_target: 255,
    max_lun: 16_383,
    initiator: None,
    max_disks: 256,
    may_be_empty: true,
};

/// The target of the LSI 53C895A itself.
pub(crate) const LSI_OWN_TARGET: u16 = 7;

/// Targets and LUNs of the LSI 53C895A: its bus has 16 bits, and IDENTIFY has six for the unit.
pub(crate) const LSI_LIMITS: LunLimits = LunLimits {
    max_target: 15,
    max_lun: 63,
    initiator: Some(LSI_OWN_TARGET),
    max_disks: 15 * 64,
    may_be_empty: false,
};

const UNSUPPORTED_TYPES: &[&str] = &["fuse", "vduse-blk"];

/// The words of `addr.type`.
#[derive(Clone, Copy, PartialEq)]
enum AddrType {
    Unix,
    Fd,
}

const ADDR_TYPE_FORM: ChoiceForm<AddrType> = {
    let instead = "guest memory can only be shared over unix or fd";
    ChoiceForm {
        words: &[("unix", AddrType::Unix), ("fd", AddrType::Fd)],
        unsupported: &[
            UnsupportedName {
                name: "inet",
                instead,
            },
            UnsupportedName {
                name: "vsock",
                instead,
            },
        ],
        placeholder: "unix|fd",
    }
};

/// Reads the tree of an `--export`, and adds its name.
pub(crate) fn read_and_register_export(
    object: Object,
    names: &mut DefinedNames,
) -> Result<ExportOptions, Problem> {
    let r#type = read_kind(&object, "", "type", TYPES, UNSUPPORTED_TYPES)?;
    let mut fields = Fields::with_known_keys(object, "", r#type.keys, UNSUPPORTED_KEYS)?;
    fields.take_raw("type");
    let id = fields
        .take_typed("id", &ID_FORM)?
        .ok_or_else(|| fields.missing_key_error("id", "write id=NAME, such as id=export0"))?;
    let settings = CommonExportOptions::read(&mut fields, None)?;
    let TypeSpecificExportOptions {
        node_name,
        iothreads,
        kind,
    } = (r#type.read)(&mut fields, names, &settings)?;
    fields.debug_assert_all_taken();
    names.add_export_and_socket(&id, kind.socket())?;
    if let ExportKind::Nbd(nbd) = &kind {
        names.add_nbd_export_name(nbd.name.as_deref().unwrap_or(&node_name))?;
    }
    Ok(ExportOptions {
        id,
        node_name,
        iothreads,
        settings,
        kind,
    })
}

/// Reads the options of `vhost-user-blk`: one disk.
fn read_vhost_user_blk(
    fields: &mut Fields,
    names: &DefinedNames,
    settings: &CommonExportOptions,
) -> Result<TypeSpecificExportOptions, Problem> {
    let node_name = read_only_node_name(fields, names, settings)?;
    let disk = VhostUserBlkOptions::read(fields, None)?;
    Ok(TypeSpecificExportOptions {
        node_name,
        iothreads: queues::read_iothreads_or_mapping(fields, names, disk.num_queues)?,
        kind: ExportKind::VhostUserBlk {
            addr: read_addr(fields)?,
            disk,
        },
    })
}

/// Reads the `node-name` of an export with one node.
fn read_only_node_name(
    fields: &mut Fields,
    names: &DefinedNames,
    settings: &CommonExportOptions,
) -> Result<String, Problem> {
    let node_name = fields
        .take_typed("node-name", &NODE_NAME_FORM)?
        .ok_or_else(|| {
            fields.missing_key_error(
                "node-name",
                "write node-name=NODE with the node-name of a --blockdev",
            )
        })?;
    luns::check_node_exists_and_writability(names, "node-name", &node_name, settings.writable)?;
    Ok(node_name)
}

/// Reads the options of `nbd`: one disk, whose clients connect to the NBD server.
fn read_nbd(
    fields: &mut Fields,
    names: &DefinedNames,
    settings: &CommonExportOptions,
) -> Result<TypeSpecificExportOptions, Problem> {
    names.check_nbd_server_defined()?;
    check_not_allow_inactive("nbd", settings)?;
    let node_name = read_only_node_name(fields, names, settings)?;
    Ok(TypeSpecificExportOptions {
        node_name,
        iothreads: queues::read_iothreads_or_mapping(fields, names, u16::MAX)?,
        kind: ExportKind::Nbd(NbdExportOptions::read(fields, None)?),
    })
}

/// Reads the options of `vhost-user-scsi`: a controller with virtqueues.
fn read_vhost_user_scsi(
    fields: &mut Fields,
    names: &DefinedNames,
    settings: &CommonExportOptions,
) -> Result<TypeSpecificExportOptions, Problem> {
    let luns = luns::read_luns_or_only_node(fields, names, &VIRTIO_SCSI_LIMITS, settings.writable)?;
    let queues = VhostUserScsiOptions::read(fields, None)?;
    Ok(TypeSpecificExportOptions {
        node_name: luns
            .first()
            .map_or_else(String::new, |lun| lun.node_name.clone()),
        // The queues for control and events come first.
        iothreads: queues::read_iothreads_or_mapping(fields, names, queues.num_queues + 2)?,
        kind: ExportKind::VhostUserScsi {
            addr: read_addr(fields)?,
            queues,
            luns,
        },
    })
}

/// Reads the options of `vfio-user-lsi53c895a`: a controller without queues, which runs on one iothread.
fn read_lsi53c895a(
    fields: &mut Fields,
    names: &DefinedNames,
    settings: &CommonExportOptions,
) -> Result<TypeSpecificExportOptions, Problem> {
    check_not_allow_inactive("vfio-user-lsi53c895a", settings)?;
    let luns = luns::read_luns_or_only_node(fields, names, &LSI_LIMITS, settings.writable)?;
    let iothreads = queues::read_iothreads_or_mapping(fields, names, 1)?;
    if let [_, second, ..] = iothreads.as_slice() {
        let reason = format!(
            "'iothread' names '{second}' as well: this device has no queues, and runs on one iothread"
        );
        return Err(Problem::Conflict { reason });
    }
    Ok(TypeSpecificExportOptions {
        node_name: luns[0].node_name.clone(),
        iothreads,
        kind: ExportKind::VfioUserLsi53c895a {
            addr: read_addr(fields)?,
            luns,
        },
    })
}

/// Refuses `allow-inactive=on` for a type of export.
fn check_not_allow_inactive(r#type: &str, settings: &CommonExportOptions) -> Result<(), Problem> {
    if settings.allow_inactive {
        let reason =
            format!("'allow-inactive=on': exports of type '{type}' do not support inactive nodes");
        return Err(Problem::Conflict { reason });
    }
    Ok(())
}

/// Reads the address of the socket: `addr.type`, and the key that belongs to it.
fn read_addr(fields: &mut Fields) -> Result<SocketAddr, Problem> {
    let Some(addr_type) = fields.take_typed("addr.type", &ADDR_TYPE_FORM)? else {
        let expected = "write addr.type=unix,addr.path=PATH, or addr.type=fd,addr.str=FD";
        return Err(fields.missing_key_error("addr.type", expected));
    };
    let (word, own_key) = match addr_type {
        AddrType::Unix => ("unix", "addr.path"),
        AddrType::Fd => ("fd", "addr.str"),
    };
    let all_keys = ["addr.path", "addr.str"];
    socket::check_keys_of_addr_type(fields, word, &[own_key], &all_keys)?;
    match addr_type {
        AddrType::Unix => socket::read_unix_addr(fields),
        AddrType::Fd => socket::read_fd_addr(fields),
    }
}
