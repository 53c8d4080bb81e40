//! The side of a program that was started to go on for another one. Nothing is final before the other one says so:
//! until then this one only has descriptors beside it, and whatever goes wrong ends this one alone.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use iothread::SocketDeviceCommand;
use options::{Directive, Invocation, ObjectOptions};
use serde_json::Value;

use super::hand_over::now_ns;
use super::scsi;
use crate::actions::export;
use crate::actions::node;
use crate::control::Control;
use crate::devices::export_server::ExportServer;
use crate::disk::exported_disk::GuestDevice;
use crate::failure::Failure;
use crate::process::Process;
use crate::process::pidfile::PidFile;
use crate::state::export::{Export, ExportState};
use crate::state::node::OpenNode;
use crate::state::objects::Objects;
use crate::upgrade::PREDECESSOR;
use crate::upgrade::channel::{Channel, Said};
use crate::upgrade::state::{self, Incoming, UNCLEAR};

/// How long the other process may take to tell the service manager of this one.
const FAREWELL_TIME: Duration = Duration::from_secs(5);

/// What a connection is, and of which export.
type Connections = Vec<(String, vhost_user::RestoredConnection)>;

/// What is opened when nothing can go wrong any more.
struct Doors {
    monitors: Vec<options::MonitorOptions>,
    metrics: Option<OwnedFd>,
    pidfile: Option<(PathBuf, OwnedFd)>,
}

/// Goes on for the process that has started this one. If that cannot be, this one ends.
pub(crate) fn take_over(process: &Process<'_>, control: &mut Control) {
    let Some(channel) = PREDECESSOR.get() else {
        return;
    };
    // Locks and sockets are the other one's.
    block::leave_locks(true);
    match prepare(channel, control) {
        Ok((connections, doors)) => finish(channel, process, control, connections, doors),
        Err(error) => {
            crate::upgrade::tell_failed(error.as_ref());
            tracing::error!(%error, "cannot take over from the process that runs");
            // Nothing is dropped: all of it is the other one's.
            std::process::exit(1);
        }
    }
}

/// Everything up to the word that this process is to go on.
fn prepare(channel: &Channel, control: &mut Control) -> Result<(Connections, Doors), Failure> {
    channel.send(&Said::Hello, &[])?;
    let (Said::State(state), fds) = channel.recv()? else {
        return Err(UNCLEAR.into());
    };
    let mut fds = Incoming::new(fds);
    let mut sockets = Vec::new();
    for socket in state::list(&state["sockets"])? {
        sockets.push((state::read_addr(&socket["addr"])?, fds.take(&socket["fd"])?));
    }
    let objects = &mut control.objects;
    objects.inherited.hand(sockets);
    for node in state::list(&state["nodes"])? {
        if let Some(fd) = node.get("fd") {
            let name = node["name"].as_str().ok_or(UNCLEAR)?;
            objects.handed.insert(name.to_owned(), fds.take(fd)?);
        }
    }
    objects.parked = true;
    let mut sizes = HashMap::new();
    for node in state::list(&state["nodes"])? {
        let name = node["name"].as_str().ok_or(UNCLEAR)?;
        sizes.insert(name, state::number(&node["size"])?);
    }
    let monitors = create(&state["options"], &sizes, control)?;
    let objects = &control.objects;
    let mut connections = Connections::new();
    for served in state::list(&state["exports"])? {
        let id = served["id"].as_str().ok_or(UNCLEAR)?;
        if let Some(taken) = connect(id, served, objects, &mut fds)? {
            connections.push((id.to_owned(), taken));
        }
    }
    let metrics = match &state["metrics"] {
        Value::Null => None,
        number => Some(fds.take(number)?),
    };
    let pidfile = match &state["pidfile"] {
        Value::Null => None,
        pidfile => {
            let path = pidfile["path"].as_str().ok_or(UNCLEAR)?;
            Some((path.into(), fds.take(&pidfile["fd"])?))
        }
    };
    channel.send(&Said::Prepared, &[])?;
    let (Said::Stopped(stopped), fds) = channel.recv()? else {
        return Err(UNCLEAR.into());
    };
    let mut fds = Incoming::new(fds);
    for export in &control.objects.exports {
        let stopped = &stopped[export.options.id.as_str()];
        scsi::restore(export, &stopped["scsi"], &mut fds)?;
    }
    for (id, taken) in &mut connections {
        let bases = state::read_bases(&stopped[id.as_str()]["queues"])?;
        taken
            .start(&bases)
            .map_err(|error| format!("export '{id}': {error}"))?;
    }
    channel.send(&Said::Started, &[])?;
    let (Said::Go, _) = channel.recv()? else {
        return Err(UNCLEAR.into());
    };
    tracing::debug!(pid = state["pid"].as_u64(), "all is there");
    Ok((
        connections,
        Doors {
            monitors,
            metrics,
            pidfile,
        },
    ))
}

/// Makes everything that the other process has, nodes of the sizes that their guests know; monitors are left for later.
fn create(
    words: &Value,
    sizes: &HashMap<&str, u64>,
    control: &mut Control,
) -> Result<Vec<options::MonitorOptions>, Failure> {
    let words = state::list(words)?.iter();
    let words: Vec<_> = words
        .map(|word| word.as_str().ok_or(UNCLEAR))
        .collect::<Result<_, _>>()?;
    if words.is_empty() {
        return Ok(Vec::new());
    }
    let Invocation::Daemon(daemon) = options::parse(words.into_iter().map(Into::into))? else {
        return Err(UNCLEAR.into());
    };
    let mut monitors = Vec::new();
    for directive in daemon.directives {
        let objects = &mut control.objects;
        match directive {
            Directive::Object(ObjectOptions::Iothread(options)) => {
                objects.add_iothread(&options)?
            }
            Directive::Blockdev(options) => {
                let first = objects.nodes.len();
                node::take_over(&options, objects)?;
                // Exports are made with what their nodes have then.
                for OpenNode { node, .. } in &objects.nodes[first..] {
                    node.set_size(*sizes.get(node.name()).ok_or(UNCLEAR)?);
                }
            }
            Directive::Export(options) => export::start(&options, objects)?,
            Directive::Chardev(options) => control.add_chardev(&options)?,
            Directive::Monitor(options) => monitors.push(options),
        }
    }
    Ok(monitors)
}

/// Brings an export into the state that it had; the connection of its front-end, if it has one.
fn connect(
    id: &str,
    served: &Value,
    objects: &Objects,
    fds: &mut Incoming,
) -> Result<Option<vhost_user::RestoredConnection>, Failure> {
    let found = objects
        .exports
        .iter()
        .find(|export| export.options.id == id);
    let Export { disks, state, .. } = found.ok_or(UNCLEAR)?;
    if let (Some(disk), Some(mode)) = (disks.first(), served["write-cache"].as_bool())
        && let GuestDevice::Blk(device) = &disk.guest_device
    {
        device.set_cache_mode(mode);
    }
    let connection = match &served["connection"] {
        Value::Null => return Ok(None),
        connection => fds.connection(connection)?,
    };
    let ExportState::Serving(ExportServer::VhostUser(server)) = state else {
        return Err(UNCLEAR.into());
    };
    let taken = server.take_over(connection);
    let taken = taken.map_err(|error| format!("the front-end of export '{id}': {error}"))?;
    Ok(Some(taken))
}

/// From here on everything is this process's.
fn finish(
    channel: &Channel,
    process: &Process<'_>,
    control: &mut Control,
    connections: Connections,
    doors: Doors,
) {
    for (id, taken) in connections {
        if let Err(error) = taken.resume() {
            tracing::error!(export = id, %error, "the front-end is disconnected");
        }
    }
    let since_ns = now_ns();
    block::leave_locks(false);
    let objects = &mut control.objects;
    objects.parked = false;
    objects.inherited.leave(false);
    for export in &objects.exports {
        match &export.state {
            ExportState::Serving(ExportServer::VhostUser(server)) => server.resume(),
            ExportState::Serving(ExportServer::Adapter(controller)) => {
                controller.send(SocketDeviceCommand::Unpark);
            }
            ExportState::Ending(_) => {}
        }
    }
    if let Some((path, fd)) = doors.pidfile {
        match PidFile::take_over(&path, fd) {
            Ok(pidfile) => control.pidfile = Some(pidfile),
            Err(error) => {
                tracing::warn!(%error, "the pidfile has the number of the process before")
            }
        }
    }
    let told = channel.send(&Said::Gone(since_ns), &[]);
    // The service manager listens to this process when it has heard of it from the other one.
    if told.is_ok() {
        let _ = channel.is_readable_within(FAREWELL_TIME);
    }
    if let Some(addr) = process.metrics
        && let Err(error) = control.serve_metrics_on(addr, doors.metrics)
    {
        tracing::warn!(%error, "figures are not served any more");
    }
    for monitor in doors.monitors {
        if let Err(error) = control.add_monitor(&monitor) {
            tracing::warn!(chardev = monitor.chardev, %error, "a monitor is not served any more");
        }
    }
    tracing::info!("taken over from the process before");
}
