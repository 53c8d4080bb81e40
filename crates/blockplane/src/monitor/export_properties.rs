//! What an export can be set to while front-ends use it: counts from the next batch of each queue on.

use options::live::Live;
use options::{ExportKind, ExportOptions, VhostUserBlkOptions};
use qmp::Error;
use serde_json::{Value, json};

use super::errors::refused;
use super::property::{Property, Tuned};
use crate::Failure;
use crate::export::merging;
use crate::objects::Export;
use crate::shown::Form;

impl Tuned for Export {
    type Options = ExportOptions;
    const TYPE: &'static str = "vhost-user-blk";
    const PROPERTIES: &'static [Property<Self, ExportOptions>] = PROPERTIES;

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

const PROPERTIES: &[Property<Export, ExportOptions>] = &[
    Property::fixed("type", "string", |_| "vhost-user-blk".into()),
    Property::fixed("node-name", "string", |options| {
        options.node_name.clone().into()
    }),
    Property::fixed("writable", "bool", |options| options.writable.into()),
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
