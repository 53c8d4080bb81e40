//! Dirty bitmaps that an export of the NBD server shows to its clients. They are in use as long as the export exists.

use std::sync::Arc;

use block::Node;
use block::dirty_bitmap::{BitmapStatus, BitmapUse};
use options::{Driver, ExportKind, ExportOptions, ExportedBitmap, NbdExportOptions};

use crate::devices::export_server::ExportServer;
use crate::error::BoxError;
use crate::state::DaemonObjects;
use crate::state::export::ExportState;

/// Begins to use the bitmaps of an export. A process that takes over gets them from the old one when that has stopped: there are none
/// until [`begin_use_after_restore`].
pub(super) fn begin_use(
    options: &ExportOptions,
    kind: &NbdExportOptions,
    objects: &DaemonObjects,
) -> Result<Vec<BitmapUse>, BoxError> {
    if objects.creates_exports_paused {
        return Ok(Vec::new());
    }
    begin_use_of_all(options, kind, objects)
}

/// Begins to use the bitmaps of all exports, which were restored.
pub(crate) fn begin_use_after_restore(objects: &DaemonObjects) -> Result<(), BoxError> {
    for export in &objects.exports {
        if let (ExportKind::Nbd(kind), ExportState::Serving(ExportServer::Nbd(server))) =
            (&export.options.kind, &export.state)
        {
            let bitmaps = begin_use_of_all(&export.options, kind, objects);
            let id = &export.options.id;
            server.set_bitmaps(bitmaps.map_err(|error| format!("export '{id}': {error}"))?);
        }
    }
    Ok(())
}

fn begin_use_of_all(
    options: &ExportOptions,
    kind: &NbdExportOptions,
    objects: &DaemonObjects,
) -> Result<Vec<BitmapUse>, BoxError> {
    let exported = &objects.require_node(&options.node_name)?.node;
    let mut uses: Vec<BitmapUse> = Vec::new();
    for bitmap in &kind.bitmaps {
        let name = &bitmap.name;
        if uses.iter().any(|other| other.name() == name) {
            return Err(format!(
                "Bitmap '{name}' is named twice: clients distinguish bitmaps by their names"
            )
            .into());
        }
        let node = node_of_bitmap(options, bitmap, objects)?;
        let begun = node.bitmaps().begin_use(name)?;
        let (size, exported_size) = (begun.bits()?.size(), exported.size());
        if size != exported_size {
            return Err(format!(
                "Bitmap '{name}' is of a disk of {size} bytes, and node '{}' has {exported_size}",
                options.node_name
            )
            .into());
        }
        uses.push(begun);
    }
    Ok(uses)
}

/// The node that has a bitmap, which the export may use.
fn node_of_bitmap<'a>(
    options: &ExportOptions,
    bitmap: &ExportedBitmap,
    objects: &'a DaemonObjects,
) -> Result<&'a Arc<Node>, BoxError> {
    let name = &bitmap.name;
    if let Some(node) = &bitmap.node {
        let open = objects.find_node(node);
        return Ok(&open.ok_or_else(|| format!("Node '{node}' not found"))?.node);
    }
    let mut next = Some(options.node_name.as_str());
    while let Some(open) = next.and_then(|node| objects.find_node(node)) {
        if let Some(status) = status_of(&open.node, name) {
            // It would change while a client copies what it has.
            if status.recording && !options.settings.writable && !open.node.read_only() {
                return Err(
                    format!("Enabled bitmap '{name}' incompatible with readonly export").into(),
                );
            }
            return Ok(&open.node);
        }
        let is_filter = matches!(
            open.options.driver,
            Driver::Throttle { .. } | Driver::Blkdebug { .. } | Driver::SnapshotAccess { .. }
        );
        next = open.child_node_name().filter(|_| is_filter);
    }
    Err(format!("Bitmap '{name}' is not found").into())
}

fn status_of(node: &Node, name: &str) -> Option<BitmapStatus> {
    let statuses = node.bitmaps().statuses();
    statuses.into_iter().find(|status| status.name == name)
}
