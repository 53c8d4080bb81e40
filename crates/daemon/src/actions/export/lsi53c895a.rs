//! Creation of an export as an LSI 53C895A: a PCI device for a vfio-user front-end, with SCSI disks behind it.

use std::sync::Arc;

use block::GuestBlockMode;
use iothread::{ExportReporter, IothreadHandle, ReportedExport};
use lsi53c895a::adapter::{Adapter, Disk};
use options::{ExportOptions, LunOptions};
use unix_socket::listener::Listener;

use crate::devices::export_server::ExportServer;
use crate::devices::lsi53c895a::{ExportMonitoring, LsiController};
use crate::devices::scsi_unit::{
    check_writable_and_set_guest_block_size, create_unit_with_pr_file,
};
use crate::disk::export_stats::ExportStats;
use crate::disk::exported_disk::{ExportedDisk, GuestDevice, NodeSlot, new_scsi_unit_stats};
use crate::error::BoxError;
use crate::state::DaemonObjects;
use crate::state::export::{Export, ExportState};

/// Maximum number of tasks of the chip.
const MAX_TASKS: u16 = 256;

/// Creates the export and starts its server.
pub(crate) fn create_and_start_export(
    options: &ExportOptions,
    luns: &[LunOptions],
    listener: Listener,
    iothread: &Arc<IothreadHandle>,
    objects: &mut DaemonObjects,
) -> Result<(), BoxError> {
    let reported = ReportedExport::new(&options.id);
    let mut block_modes = Vec::new();
    let mut disks = Vec::new();
    let mut nodes = Vec::new();
    let mut exported_disks = Vec::new();
    let mut disk_reports = Vec::new();
    let mut disk_stats = Vec::new();
    for lun in luns {
        let node = objects.activate_node_for_export(&lun.node_name, lun.writable)?;
        block_modes.push(check_writable_and_set_guest_block_size(&node, lun)?);
        let (unit, pr_file) = create_unit_with_pr_file(
            &options.id,
            lun,
            &node,
            options.settings.writethrough,
            objects.creates_exports_paused,
        )?;
        let (target, lun_number) =
            lsi53c895a::adapter::DiskAddressError::checked_target_and_lun(lun.target, lun.lun)?;
        disks.push(Disk {
            target,
            lun: lun_number,
            unit: unit.clone(),
        });
        let unit_stats = new_scsi_unit_stats(1);
        disk_stats.push(unit_stats[0].clone());
        exported_disks.push(ExportedDisk {
            node_name: lun.node_name.clone(),
            guest_device: GuestDevice::Scsi(unit),
            node: NodeSlot::new(node.clone()),
            stats: unit_stats,
            pr_file,
        });
        disk_reports.push(ExportReporter::new(
            objects.reports.clone(),
            &reported,
            &lun.node_name,
        ));
        nodes.push(node);
    }
    let stats = Arc::new(ExportStats::new(
        1,
        MAX_TASKS,
        std::slice::from_ref(iothread),
    ));
    let monitoring = ExportMonitoring {
        export: reported.clone(),
        events: objects.events.clone(),
        stats: stats.clone(),
        disk_stats,
        disk_reports,
    };
    let controller = LsiController::new(
        Adapter::new(&options.id, &disks)?,
        listener,
        objects.creates_exports_paused,
        monitoring,
    )?;
    let handle = iothread.start_socket_device(Box::new(controller), nodes)?;
    block_modes.into_iter().for_each(GuestBlockMode::keep);
    objects.exports.push(Export {
        options: options.clone(),
        reported,
        disks: exported_disks,
        controller: None,
        stats,
        reports: None,
        image_use: None,
        state: ExportState::Serving(ExportServer::Adapter(Arc::new(handle))),
    });
    Ok(())
}
