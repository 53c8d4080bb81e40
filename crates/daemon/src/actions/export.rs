//! Creation of exports: a node as a virtio-blk device over vhost-user, or several nodes as the disks of a SCSI controller.

mod lsi53c895a;
mod nbd;
pub(crate) mod nbd_bitmaps;
mod virtio_scsi;

use std::sync::Arc;
use std::time::Duration;

use iothread::{ErrorPolicy, ExportReporter, OnError, ReportedExport};
use options::{ExportKind, ExportOptions, SocketAddr, VhostUserBlkOptions};
use unix_socket::listener::{AllowedPeers, Listener};
use virtio_blk::{Device, DeviceOptions, MergeLimits};

use crate::actions::one_connection::check_iothreads_of_export;
use crate::devices::export_server::ExportServer;
use crate::devices::image_use::ImageUse;
use crate::devices::queues::QueueStarter;
use crate::devices::scsi_unit::check_writable;
use crate::devices::virtio_blk::VhostUserBlkDevice;
use crate::disk::export_stats::ExportStats;
use crate::disk::exported_disk::{ExportedDisk, GuestDevice, NodeSlot};
use crate::error::BoxError;
use crate::state::DaemonObjects;
use crate::state::export::{Export, ExportState};

/// The reply to `GET_ID` without a `serial`, the same as that of QEMU's vhost-user-blk server.
const DEFAULT_SERIAL: &str = "vhost_user_blk";

/// Creates an export and starts its server.
pub(crate) fn create_and_start_export(
    options: &ExportOptions,
    objects: &mut DaemonObjects,
) -> Result<(), BoxError> {
    check_iothreads_of_export(options, objects)?;
    match &options.kind {
        ExportKind::VhostUserBlk { addr, disk } => {
            create_and_start_virtio_blk_export(options, addr, disk, objects)
        }
        ExportKind::VhostUserScsi { addr, queues, luns } => {
            virtio_scsi::create_and_start_export(options, addr, queues, luns, objects)
        }
        ExportKind::VfioUserLsi53c895a { addr, luns } => {
            let iothreads = objects.find_iothreads_or_create_default(&options.iothreads)?;
            let listener = listen_or_take_inherited(addr, objects)?;
            lsi53c895a::create_and_start_export(options, luns, listener, &iothreads[0], objects)
        }
        ExportKind::Nbd(kind) => nbd::create_and_start_export(options, kind, objects),
    }
}

/// Listens on the socket of an export, or takes the listening socket that the process was started with.
fn listen_or_take_inherited(
    addr: &SocketAddr,
    objects: &mut DaemonObjects,
) -> Result<Listener, BoxError> {
    objects
        .inherited_sockets
        .take_or_bind_listener(addr, AllowedPeers::AsUmask)
}

/// Creates an export of a node as a virtio-blk device, and starts its server.
fn create_and_start_virtio_blk_export(
    options: &ExportOptions,
    addr: &SocketAddr,
    kind: &VhostUserBlkOptions,
    objects: &mut DaemonObjects,
) -> Result<(), BoxError> {
    let writable = options.settings.writable;
    let node = objects.node_for_export(&options.node_name, writable, options)?;
    check_writable(&node, writable)?;
    let device = DeviceOptions {
        logical_block_size: kind.logical_block_size,
        num_queues: kind.num_queues,
        queue_size: kind.queue_size,
        serial: kind
            .serial
            .clone()
            .unwrap_or_else(|| DEFAULT_SERIAL.to_owned()),
        read_only: !options.settings.writable,
        write_through: options.settings.writethrough,
        merge_limits: to_request_merging_limits(kind),
        ..DeviceOptions::default()
    };
    let listener = listen_or_take_inherited(addr, objects)?;
    let iothreads = objects.find_iothreads_or_create_default(&options.iothreads)?;
    let block_mode = node.set_guest_block_size(device.logical_block_size)?;
    let reported = ReportedExport::new(&options.id);
    let reports = ExportReporter::new(objects.reports.clone(), &reported, &options.node_name);
    let reports = Arc::new(reports.with_policy(to_error_policy(kind)));
    let stats = ExportStats::new(device.num_queues, device.queue_size, &iothreads);
    let stats = Arc::new(stats);
    let device = Arc::new(Device::new(device, node.geometry())?);
    let node = NodeSlot::new(node);
    let request_timeout = Duration::from_secs(kind.request_timeout);
    let nodes = {
        let node = node.clone();
        move || vec![node.get()]
    };
    let allow_inactive = options.settings.allow_inactive;
    let image_use = ImageUse::new(&options.id, allow_inactive, &objects.activator, nodes);
    let target = VhostUserBlkDevice {
        device: device.clone(),
        node: node.clone(),
        packed: kind.packed,
        stop_timeout_with_inflight_region: (!request_timeout.is_zero()).then_some(request_timeout),
        queue_starter: QueueStarter {
            export: reported.clone(),
            iothreads,
            fixed_buffers: kind.fixed_buffers,
            events: objects.events.clone(),
            stats: stats.clone(),
            reports: reports.clone(),
        },
        image_use: image_use.clone(),
    };
    let server = objects.start_vhost_user_server(listener, Arc::new(target))?;
    block_mode.keep();
    let disk = ExportedDisk {
        node_name: options.node_name.clone(),
        guest_device: GuestDevice::Blk(device),
        node,
        stats: Vec::new(),
        pr_file: None,
    };
    objects.exports.push(Export {
        options: options.clone(),
        reported,
        disks: vec![disk],
        controller: None,
        stats,
        reports: Some(reports.clone()),
        image_use: Some(image_use),
        state: ExportState::Serving(ExportServer::VhostUser(server)),
    });
    objects.update_image_use();
    objects
        .slow_requests
        .watch_export_if_timeout_set(&reports, request_timeout);
    Ok(())
}

/// Converts the options for requests that fail on the disk into the policy of iothreads.
fn to_error_policy(kind: &VhostUserBlkOptions) -> ErrorPolicy {
    let to_iothread = |option| match option {
        options::OnError::Report => OnError::Report,
        options::OnError::Ignore => OnError::Ignore,
        options::OnError::NoSpace => OnError::NoSpace,
        options::OnError::Stop => OnError::Stop,
    };
    ErrorPolicy {
        reads: to_iothread(kind.rerror),
        writes: to_iothread(kind.werror),
    }
}

/// Converts the options for merging adjacent requests into limits.
pub(crate) fn to_request_merging_limits(kind: &VhostUserBlkOptions) -> MergeLimits {
    match kind.request_merging {
        true => MergeLimits {
            requests: kind.max_merge_requests.into(),
            bytes: kind.max_merge_bytes,
        },
        false => MergeLimits::OFF,
    }
}
