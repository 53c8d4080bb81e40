//! An export: a node shown to front-ends as a virtio-blk device over vhost-user, or several as a SCSI controller's disks.

mod controller;
mod lsi;
mod virtio_scsi;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use block::Node;
use data_plane::{DataThread, ExportReports, QueueReports, Serves, VringHandle, VringSetup};
use listener::Listener;
use options::{ExportKind, ExportOptions, SocketAddr, VhostUserBlkOptions};
use qmp::Handle;
use serde_json::json;
use vhost_user::{QueueSetup, Server, StartError, StartedQueue, Target};
use virtio_blk::{Device, DeviceOptions, MergeLimits, QueueName};
use virtqueue::GuestMemory;

use crate::Failure;
use crate::figures::Figures;
use crate::objects::{Export, ExportState, Objects};
use crate::shown::{Form, Serving, Shown, ShownDisk};
pub(crate) use virtio_scsi::Controller;

/// What `GET_ID` answers when no serial was given: the same as the field's server.
const DEFAULT_SERIAL: &str = "vhost_user_blk";

/// Starts serving an export.
pub(crate) fn start(options: &ExportOptions, objects: &mut Objects) -> Result<(), Failure> {
    match &options.kind {
        ExportKind::VhostUserBlk(kind) => start_blk(options, kind, objects),
        ExportKind::VhostUserScsi(kind) => virtio_scsi::start(options, kind, objects),
        ExportKind::VfioUserLsi53c895a(kind) => {
            let iothreads = objects.iothreads_of(&options.iothreads)?;
            let listener = listener(&kind.addr, objects)?;
            lsi::start(options, kind, listener, &iothreads[0], objects)
        }
    }
}

/// A node that an export is to show.
fn node(name: &str, writable: bool, objects: &Objects) -> Result<Arc<Node>, Failure> {
    let node = objects.node(name)?;
    if writable && node.read_only() {
        return Err(
            format!("--export: node '{name}' is read-only; export it without writable=on").into(),
        );
    }
    Ok(node)
}

fn listener(addr: &SocketAddr, objects: &mut Objects) -> Result<Listener, Failure> {
    Ok(match addr {
        SocketAddr::Unix { path } => Listener::bind(path)?,
        SocketAddr::Fd { fd } => objects.inherited.numbered(*fd)?,
        SocketAddr::FdName { name } => objects.inherited.named(name)?,
    })
}

fn start_blk(
    options: &ExportOptions,
    kind: &VhostUserBlkOptions,
    objects: &mut Objects,
) -> Result<(), Failure> {
    let node = node(&options.node_name, options.writable, objects)?;
    let device = DeviceOptions {
        logical_block_size: kind.logical_block_size,
        num_queues: kind.num_queues,
        queue_size: kind.queue_size,
        serial: kind
            .serial
            .clone()
            .unwrap_or_else(|| DEFAULT_SERIAL.to_owned()),
        read_only: !options.writable,
        write_through: options.writethrough,
        merge_limits: merging(kind),
        ..DeviceOptions::default()
    };
    let listener = listener(&kind.addr, objects)?;
    let iothreads = objects.iothreads_of(&options.iothreads)?;
    let events = objects.events.clone();
    let reports = ExportReports::new(objects.reports.clone(), &options.id, &options.node_name);
    let reports = Arc::new(reports);
    let target = BlkTarget::new(device, node, iothreads, kind, events, reports)?;
    let (device, figures) = (target.device.clone(), target.figures.clone());
    let node = target.node.clone();
    let server = Server::spawn(listener, Arc::new(target))?;
    let disk = ShownDisk {
        name: options.node_name.clone(),
        form: Form::Blk(device),
        node,
    };
    objects.exports.push(Export {
        options: options.clone(),
        disks: vec![disk],
        controller: None,
        figures,
        state: ExportState::Serving(Serving::VhostUser(server)),
    });
    Ok(())
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
    name: String,
    device: Arc<Device>,
    node: Shown,
    iothreads: Vec<Arc<DataThread>>,
    packed: bool,
    fixed_buffers: bool,
    events: Handle,
    figures: Arc<Figures>,
    reports: Arc<ExportReports>,
}

impl BlkTarget {
    fn new(
        options: DeviceOptions,
        node: Arc<Node>,
        iothreads: Vec<Arc<DataThread>>,
        kind: &VhostUserBlkOptions,
        events: Handle,
        reports: Arc<ExportReports>,
    ) -> Result<Self, Failure> {
        node.use_block_size(options.logical_block_size)?;
        let figures = Arc::new(Figures::new(
            options.num_queues,
            options.queue_size,
            &iothreads,
        ));
        let device = Arc::new(Device::new(options, node.geometry())?);
        Ok(BlkTarget {
            name: reports.export().to_owned(),
            device,
            node: Shown::new(node),
            iothreads,
            packed: kind.packed,
            fixed_buffers: kind.fixed_buffers,
            events,
            figures,
            reports,
        })
    }
}

impl BlkTarget {
    /// Without a write cache all that was written counts as stable, also what was written with it, and
    /// what was under way: that is waited for first.
    fn flushed(&self, settle: &dyn Fn()) -> bool {
        settle();
        let flushed = self.node.get().flush_blocking();
        if let Err(error) = &flushed {
            tracing::error!(
                export = self.name,
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
        &self.name
    }

    fn connected(&self, connected: bool) {
        let event = if connected {
            "BLOCK_EXPORT_CONNECTED"
        } else {
            "BLOCK_EXPORT_DISCONNECTED"
        };
        self.figures.connected.store(connected, Ordering::Relaxed);
        self.events.emit(event, json!({"id": self.name}));
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

    fn start_queue(&self, setup: QueueSetup) -> Result<Box<dyn StartedQueue>, StartError> {
        let iothread = &self.iothreads[usize::from(setup.index) % self.iothreads.len()];
        let started = iothread.start_vring(VringSetup {
            name: QueueName::new(&self.name, setup.index),
            serves: Serves::Blk {
                device: self.device.clone(),
                node: self.node.get(),
            },
            memory: setup.memory,
            layout: setup.layout,
            features: setup.features,
            base: setup.base,
            kick: setup.kick,
            call: setup.call,
            err: setup.err,
            enabled: setup.enabled,
            fixed_buffers: self.fixed_buffers,
            stats: self.figures.queues[usize::from(setup.index)].stats.clone(),
            reports: Some(QueueReports {
                export: self.reports.clone(),
                queue: setup.index,
            }),
        });
        match started {
            Ok(handle) => Ok(Box::new(Queue(handle, self.node.clone()))),
            Err(data_plane::StartError::Ring(error)) => Err(StartError::Ring(error)),
            Err(error) => Err(StartError::FrontEnd(error.to_string())),
        }
    }
}

/// A queue on its iothread, as the transport sees it.
struct Queue(VringHandle, Shown);

impl StartedQueue for Queue {
    fn enable(&self, enabled: bool) {
        self.0.enable(enabled);
    }

    fn set_memory(&self, memory: Arc<GuestMemory>) {
        self.0.set_memory(memory);
    }

    fn settle(&self) {
        self.0.settle();
    }

    fn renew(&self) {
        self.0.set_node(self.1.get());
    }

    fn set_call(&self, call: Option<std::os::fd::OwnedFd>) {
        self.0.set_call(call);
    }

    fn set_err(&self, err: Option<std::os::fd::OwnedFd>) {
        self.0.set_err(err);
    }

    fn set_kick(&self, kick: Option<std::os::fd::OwnedFd>) -> Result<(), StartError> {
        self.0
            .set_kick(kick)
            .map_err(|error| StartError::FrontEnd(error.to_string()))
    }

    fn stop(self: Box<Self>) -> Option<u32> {
        self.0.stop()
    }
}
