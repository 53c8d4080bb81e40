//! What an export is, and can be set to while front-ends use it: counts from the next batch of each queue on. SCSI
//! controllers have nothing of that.

use options::live::Live;
use options::{ExportKind, ExportOptions, VhostUserBlkOptions};
use qmp::Error;
use serde_json::{Value, json};

use super::errors::refused;
use super::property::{Class, Property, Tuned};
use crate::Failure;
use crate::export::merging;
use crate::objects::Export;
use crate::shown::Form;

impl Tuned for Export {
    type Options = ExportOptions;

    fn class(&self) -> &'static Class<Self> {
        match &self.options.kind {
            ExportKind::VhostUserBlk(_) => &VHOST_USER_BLK,
            ExportKind::VhostUserScsi(_) => &VHOST_USER_SCSI,
            ExportKind::VfioUserLsi53c895a(_) => &VFIO_USER_LSI53C895A,
        }
    }

    fn options(&self) -> &ExportOptions {
        &self.options
    }

    fn checked(&self, name: &str, value: &Value) -> Result<ExportOptions, Error> {
        let mut live = Live::default();
        live.add_node("checked", false)
            .map_err(|problem| refused(&problem))?;
        let options = json!({
            "type": "vhost-user-blk",
            "id": "checked",
            "node-name": "checked",
            "addr": {"type": "unix", "path": "checked"},
            name: value,
        });
        live.export(&options.to_string())
            .map_err(|problem| refused(&problem))
    }
}

/// Of each type of exports.
pub(super) const CLASSES: [&Class<Export>; 3] =
    [&VHOST_USER_BLK, &VHOST_USER_SCSI, &VFIO_USER_LSI53C895A];

const VHOST_USER_BLK: Class<Export> = Class {
    name: "vhost-user-blk",
    properties: OF_BLK,
};

const VHOST_USER_SCSI: Class<Export> = Class {
    name: "vhost-user-scsi",
    properties: &[
        TYPE,
        WRITABLE,
        LUNS,
        Property::fixed("num-queues", "int", |options| match &options.kind {
            ExportKind::VhostUserScsi(kind) => kind.num_queues.into(),
            _ => Value::Null,
        }),
        Property::fixed("queue-size", "int", |options| match &options.kind {
            ExportKind::VhostUserScsi(kind) => kind.queue_size.into(),
            _ => Value::Null,
        }),
    ],
};

const VFIO_USER_LSI53C895A: Class<Export> = Class {
    name: "vfio-user-lsi53c895a",
    properties: &[TYPE, WRITABLE, LUNS],
};

const TYPE: Property<Export, ExportOptions> =
    Property::fixed("type", "string", |options| options.kind.name().into());

const WRITABLE: Property<Export, ExportOptions> =
    Property::fixed("writable", "bool", |options| options.writable.into());

/// The units that there are: they come and go by commands of their own.
const LUNS: Property<Export, ExportOptions> =
    Property::fixed("luns", "BlockExportLunList", |options| {
        let luns = options.kind.scsi().map(|scsi| &scsi.luns);
        let luns = luns.into_iter().flatten().map(|lun| {
            let mut shown = json!({
                "node-name": lun.node_name,
                "target": lun.target,
                "lun": lun.lun,
                "logical-block-size": lun.logical_block_size,
                "writable": lun.writable,
            });
            if let Some(serial) = &lun.serial {
                shown["serial"] = serial.clone().into();
            }
            shown
        });
        luns.collect()
    });

const OF_BLK: &[Property<Export, ExportOptions>] = &[
    TYPE,
    Property::fixed("node-name", "string", |options| {
        options.node_name.clone().into()
    }),
    WRITABLE,
    Property::fixed("num-queues", "int", |options| {
        kind(options).num_queues.into()
    }),
    Property::fixed("queue-size", "int", |options| {
        kind(options).queue_size.into()
    }),
    Property::live(
        "request-merging",
        "bool",
        |options| kind(options).request_merging.into(),
        |export, new| {
            kind_mut(export).request_merging = kind(&new).request_merging;
            merge_anew(export)
        },
    ),
    Property::live(
        "max-merge-requests",
        "int",
        |options| kind(options).max_merge_requests.into(),
        |export, new| {
            kind_mut(export).max_merge_requests = kind(&new).max_merge_requests;
            merge_anew(export)
        },
    ),
    Property::live(
        "max-merge-bytes",
        "int",
        |options| kind(options).max_merge_bytes.into(),
        |export, new| {
            kind_mut(export).max_merge_bytes = kind(&new).max_merge_bytes;
            merge_anew(export)
        },
    ),
];

/// Only such exports have these properties.
fn kind(options: &ExportOptions) -> &VhostUserBlkOptions {
    match &options.kind {
        ExportKind::VhostUserBlk(kind) => kind,
        _ => unreachable!("looked up by their type"),
    }
}

fn kind_mut(export: &mut Export) -> &mut VhostUserBlkOptions {
    match &mut export.options.kind {
        ExportKind::VhostUserBlk(kind) => kind,
        _ => unreachable!("looked up by their type"),
    }
}

fn merge_anew(export: &Export) -> Result<(), Failure> {
    for disk in &export.disks {
        if let Form::Blk(device) = &disk.form {
            device.set_merging(merging(kind(&export.options)));
        }
    }
    Ok(())
}
