//! Creation of an export as a virtio-scsi controller over vhost-user, with SCSI disks behind it.

use std::sync::Arc;

use block::GuestBlockMode;
use iothread::{ExportReporter, ReportedExport};
use options::{ExportOptions, LunOptions, SocketAddr, VhostUserScsiOptions};
use virtio_scsi::FIXED_QUEUES;

use super::listen_or_take_inherited;
use crate::devices::export_server::ExportServer;
use crate::devices::image_use::ImageUse;
use crate::devices::queues::QueueStarter;
use crate::devices::virtio_scsi::{VhostUserScsiDevice, VirtioScsiController};
use crate::disk::export_stats::ExportStats;
use crate::error::BoxError;
use crate::state::DaemonObjects;
use crate::state::export::{Export, ExportState};

/// Creates the export and starts its server.
pub(crate) fn create_and_start_export(
    options: &ExportOptions,
    addr: &SocketAddr,
    kind: &VhostUserScsiOptions,
    luns: &[LunOptions],
    objects: &mut DaemonObjects,
) -> Result<(), BoxError> {
    let iothreads = objects.find_iothreads_or_create_default(&options.iothreads)?;
    let reported = ReportedExport::new(&options.id);
    let reports = objects.reports.clone();
    let controller = VirtioScsiController::new(options, kind, iothreads.len(), &reported, reports)?;
    let controller = Arc::new(controller);
    let mut block_modes = Vec::new();
    for lun in luns {
        let node = objects.node_for_export(&lun.node_name, lun.writable, options)?;
        let (disk, block_mode) = controller.create_disk_and_set_guest_block_size(
            lun,
            node,
            objects.creates_exports_paused,
        )?;
        controller.insert_disk(disk)?;
        block_modes.push(block_mode);
    }
    let listener = listen_or_take_inherited(addr, objects)?;
    let queue_count = kind.num_queues + FIXED_QUEUES;
    let stats = Arc::new(ExportStats::new(queue_count, kind.queue_size, &iothreads));
    let reports = ExportReporter::new(objects.reports.clone(), &reported, &options.node_name);
    let nodes = {
        let controller = controller.clone();
        move || controller.nodes()
    };
    let allow_inactive = options.settings.allow_inactive;
    let image_use = ImageUse::new(&options.id, allow_inactive, &objects.activator, nodes);
    let target = VhostUserScsiDevice {
        controller: controller.clone(),
        packed: kind.packed,
        queue_starter: QueueStarter {
            export: reported.clone(),
            iothreads,
            fixed_buffers: false,
            events: objects.events.clone(),
            stats: stats.clone(),
            reports: Arc::new(reports),
        },
        image_use: image_use.clone(),
    };
    let server = objects.start_vhost_user_server(listener, Arc::new(target))?;
    block_modes.into_iter().for_each(GuestBlockMode::keep);
    objects.exports.push(Export {
        options: options.clone(),
        reported,
        disks: controller.exported_disks(),
        controller: Some(controller),
        stats,
        reports: None,
        image_use: Some(image_use),
        state: ExportState::Serving(ExportServer::VhostUser(server)),
    });
    objects.update_image_use();
    Ok(())
}
