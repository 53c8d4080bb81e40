//! Creation of an export of the NBD server.

use std::sync::Arc;

use block::{GuestBlockMode, Node};
use iothread::{ExportReporter, ReportedExport};
use nbd_server::{BlockSizes, DEPTH, ExportSettings};
use options::{ExportOptions, NbdExportOptions};

use super::nbd_bitmaps;
use crate::devices::export_server::ExportServer;
use crate::devices::queues::record_and_report_connection;
use crate::devices::scsi_unit::check_writable;
use crate::disk::export_stats::ExportStats;
use crate::disk::exported_disk::{ExportedDisk, GuestDevice, NodeSlot};
use crate::error::BoxError;
use crate::state::DaemonObjects;
use crate::state::export::{Export, ExportState};

/// The block size that is best for most disks.
const PREFERRED_BLOCK_BYTES: u32 = 4096;

/// Creates the export, and adds it to the server.
pub(crate) fn create_and_start_export(
    options: &ExportOptions,
    kind: &NbdExportOptions,
    objects: &mut DaemonObjects,
) -> Result<(), BoxError> {
    let server = objects.require_nbd_server()?;
    // A client with several connections would wait for ever.
    let multi_conn = server.options.settings.max_connections != 1;
    let writable = options.settings.writable;
    let node = objects.activate_node_for_export(&options.node_name, writable)?;
    check_writable(&node, writable)?;
    let bitmaps = nbd_bitmaps::begin_use(options, kind, objects)?;
    let iothreads = objects.find_iothreads_or_create_default(&options.iothreads)?;
    let (block_sizes, block_mode) = choose_block_sizes(&node, writable)?;
    let queue_count = u16::try_from(iothreads.len())?;
    let stats = Arc::new(ExportStats::new(queue_count, DEPTH, &iothreads));
    let reported = ReportedExport::new(&options.id);
    let reports = ExportReporter::new(objects.reports.clone(), &reported, &options.node_name);
    let slot = NodeSlot::new(node.clone());
    let (present_node, connected_stats) = (slot.clone(), stats.clone());
    let (events, connected_export) = (objects.events.clone(), reported.clone());
    let export = nbd_server::Export::new(ExportSettings {
        id: options.id.clone(),
        name: kind
            .name
            .clone()
            .unwrap_or_else(|| options.node_name.clone()),
        description: kind.description.clone().unwrap_or_default(),
        writable,
        write_through: options.settings.writethrough,
        block_sizes,
        max_range_bytes: node.geometry().discard.max_bytes,
        multi_conn,
        allocation_depth: kind.allocation_depth,
        bitmaps,
        size: node.size(),
        iothreads,
        stats: stats
            .queues
            .iter()
            .map(|queue| queue.stats.clone())
            .collect(),
        reports: Arc::new(reports),
        node: Box::new(move || present_node.get()),
        on_connected: Box::new(move |connected| {
            record_and_report_connection(&connected_export, connected, &connected_stats, &events);
        }),
    });
    objects.require_nbd_server()?.add_export(&export)?;
    block_mode.keep();
    let disk = ExportedDisk {
        node_name: options.node_name.clone(),
        guest_device: GuestDevice::Nbd(export.clone()),
        node: slot,
        stats: Vec::new(),
        pr_file: None,
    };
    objects.exports.push(Export {
        options: options.clone(),
        reported,
        disks: vec![disk],
        controller: None,
        stats,
        reports: None,
        image_use: None,
        state: ExportState::Serving(ExportServer::Nbd(export)),
    });
    Ok(())
}

/// Chooses the block sizes of an export. With direct I/O, writes of parts of a block would make all writes of the node slow, so
/// clients are to write whole ones; unless another export writes such parts already. An NBD server below may refuse parts of its blocks.
fn choose_block_sizes(
    node: &Node,
    writable: bool,
) -> Result<(BlockSizes, GuestBlockMode), BoxError> {
    let geometry = node.geometry();
    let block = geometry.logical_block_size;
    let (minimum, mode) = match writable && node.uses_direct_io() {
        true => match node.set_guest_block_size(block) {
            Ok(mode) => (block, mode),
            Err(_) => (1, node.set_guest_block_size(1)?),
        },
        false => (1, GuestBlockMode::of_any_guest()),
    };
    let below = node.underlying_nbd();
    let minimum = minimum.max(below.map_or(1, |disk| disk.negotiated().blocks.minimum));
    let preferred = geometry.opt_io_size.max(geometry.physical_block_size);
    let preferred = match preferred.is_power_of_two() && preferred <= MAX_PREFERRED_BLOCK_BYTES {
        true => preferred.max(PREFERRED_BLOCK_BYTES),
        false => PREFERRED_BLOCK_BYTES,
    };
    let preferred = preferred.max(minimum);
    Ok((BlockSizes { minimum, preferred }, mode))
}

/// Larger ones are not worth it.
const MAX_PREFERRED_BLOCK_BYTES: u32 = 1 << 20;
