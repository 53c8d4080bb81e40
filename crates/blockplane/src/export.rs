//! An export: a node shown to front-ends as a virtio-blk device over vhost-user, or several as a SCSI controller's disks.

mod controller;
mod lsi;
mod pr_file;
mod queues;
mod requests;
mod unit;
mod virtio_scsi;

use std::sync::Arc;
use std::time::Duration;

use block::Node;
use data_plane::{DeviceCommand, DeviceSetup, ErrorPolicy, ExportReports, OnError};
use listener::{Listener, Peers};
use options::{ExportKind, ExportOptions, SocketAddr, VhostUserBlkOptions};
use queues::Queues;
use vhost_user::{StartedQueue, Target};
use virtio_blk::{Device, DeviceOptions, MergeLimits};
use virtqueue::control::{QueueSetup, StartError};

use crate::Failure;
use crate::figures::Figures;
use crate::objects::{Export, ExportState, Objects};
use crate::shown::{Form, Serving, Shown, ShownDisk};
pub(crate) use pr_file::{OpenedPrFile, PrFile};
pub(crate) use unit::world_wide_name;
pub(crate) use virtio_scsi::Controller;

/// What `GET_ID` answers when no serial was given: the same as the field's server.
const DEFAULT_SERIAL: &str = "vhost_user_blk";

/// Starts serving an export.
pub(crate) fn start(options: &ExportOptions, objects: &mut Objects) -> Result<(), Failure> {
    match &options.kind {
        ExportKind::VhostUserBlk(kind) => start_blk(options, kind, objects),
        ExportKind::VhostUserScsi { queues, luns } => {
            virtio_scsi::start(options, queues, luns, objects)
        }
        ExportKind::VfioUserLsi53c895a { luns } => {
            let iothreads = objects.iothreads_of(&options.iothreads)?;
            let listener = listener(&options.addr, objects)?;
            lsi::start(options, luns, listener, &iothreads[0], objects)
        }
    }
}

/// A node that guests are to write to lets them.
fn check_writable(node: &Node, writable: bool) -> Result<(), Failure> {
    if writable && node.read_only() {
        let name = node.name();
        return Err(
            format!("--export: node '{name}' is read-only; export it without writable=on").into(),
        );
    }
    Ok(())
}

fn listener(addr: &SocketAddr, objects: &mut Objects) -> Result<Listener, Failure> {
    objects.inherited.listen(addr, Peers::AsUmask)
}

fn start_blk(
    options: &ExportOptions,
    kind: &VhostUserBlkOptions,
    objects: &mut Objects,
) -> Result<(), Failure> {
    let node = objects.active_node(&options.node_name)?;
    check_writable(&node, options.settings.writable)?;
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
        merge_limits: merging(kind),
        ..DeviceOptions::default()
    };
    let listener = listener(&options.addr, objects)?;
    let iothreads = objects.iothreads_of(&options.iothreads)?;
    node.use_block_size(device.logical_block_size)?;
    let reports = ExportReports::new(objects.reports.clone(), &options.id, &options.node_name);
    let reports = Arc::new(reports.with_policy(policy(kind)));
    let figures = Figures::new(device.num_queues, device.queue_size, &iothreads);
    let figures = Arc::new(figures);
    let device = Arc::new(Device::new(device, node.geometry())?);
    let node = Shown::new(node);
    let timeout = Duration::from_secs(kind.request_timeout);
    let target = BlkTarget {
        device: device.clone(),
        node: node.clone(),
        packed: kind.packed,
        stop_patience: (!timeout.is_zero()).then_some(timeout),
        queues: Queues {
            export: options.id.clone(),
            iothreads,
            fixed_buffers: kind.fixed_buffers,
            events: objects.events.clone(),
            figures: figures.clone(),
            reports: reports.clone(),
        },
    };
    let server = objects.serve(listener, Arc::new(target))?;
    let disk = ShownDisk {
        name: options.node_name.clone(),
        form: Form::Blk(device),
        node,
        stats: Vec::new(),
        pr_file: None,
    };
    objects.exports.push(Export {
        options: options.clone(),
        disks: vec![disk],
        controller: None,
        figures,
        reports: Some(reports.clone()),
        state: ExportState::Serving(Serving::VhostUser(server)),
    });
    objects.late.watch(&reports, timeout);
    Ok(())
}

/// What becomes of requests that the disk fails.
fn policy(kind: &VhostUserBlkOptions) -> ErrorPolicy {
    let on_error = |said| match said {
        options::OnError::Report => OnError::Report,
        options::OnError::Ignore => OnError::Ignore,
        options::OnError::NoSpace => OnError::NoSpace,
        options::OnError::Stop => OnError::Stop,
    };
    ErrorPolicy {
        reads: on_error(kind.rerror),
        writes: on_error(kind.werror),
    }
}

/// What becomes one request.
pub(crate) fn merging(kind: &VhostUserBlkOptions) -> MergeLimits {
    match kind.request_merging {
        true => MergeLimits {
            requests: kind.max_merge_requests.into(),
            bytes: kind.max_merge_bytes,
        },
        false => MergeLimits::OFF,
    }
}

/// A virtio-blk device and where its queues run.
struct BlkTarget {
    device: Arc<Device>,
    node: Shown,
    packed: bool,
    stop_patience: Option<Duration>,
    queues: Queues,
}

impl BlkTarget {
    /// Without a write cache all that was written counts as stable, also what was written with it, and
    /// what was under way: that is waited for first.
    fn flushed(&self, settle: &dyn Fn()) -> bool {
        settle();
        let flushed = self.node.get().flush_blocking();
        if let Err(error) = &flushed {
            tracing::error!(
                export = self.queues.export,
                %error,
                advice = "look for errors of the disk below (dmesg); what the guest wrote may not be stable",
                "the flush failed with which the guest turns the write cache off"
            );
        }
        flushed.is_ok()
    }
}

impl Target for BlkTarget {
    fn name(&self) -> &str {
        &self.queues.export
    }

    fn connected(&self, connected: bool) {
        self.queues.connected(connected);
    }

    fn features(&self) -> u64 {
        self.device.features()
    }

    fn set_features(&self, acked: u64, settle: &dyn Fn()) {
        self.device.set_features(acked);
        if !self.device.write_cache() {
            // A driver that cannot flush follows one that could.
            self.flushed(settle);
        }
    }

    fn num_queues(&self) -> u16 {
        self.device.options().num_queues
    }

    fn max_queue_size(&self) -> u16 {
        self.device.options().queue_size
    }

    fn packed_queues(&self) -> bool {
        self.packed
    }

    fn stop_patience(&self) -> Option<Duration> {
        self.stop_patience
    }

    fn config(&self) -> Vec<u8> {
        self.device.config().to_vec()
    }

    fn write_config(&self, offset: usize, bytes: &[u8], settle: &dyn Fn()) -> bool {
        let before = self.device.config();
        if !self.device.write_config(offset, bytes) {
            return false;
        }
        if self.device.write_cache() || self.flushed(settle) {
            return true;
        }
        // What was written before is not stable: the cache stays on, and the driver hears it.
        let restored = self
            .device
            .write_config(offset, &before[offset..offset + bytes.len()]);
        debug_assert!(restored, "it was there before");
        false
    }

    fn reset(&self) {
        self.device.reset();
    }

    fn start_queue(
        &self,
        index: u16,
        setup: QueueSetup,
    ) -> Result<Box<dyn StartedQueue>, StartError> {
        let node = self.node.clone();
        let device = DeviceSetup::Blk {
            device: self.device.clone(),
            node: node.get(),
        };
        self.queues.start(index, setup, device, move |queue| {
            queue.begin_device(|reply| DeviceCommand::SetNode(node.get(), reply))
        })
    }
}
