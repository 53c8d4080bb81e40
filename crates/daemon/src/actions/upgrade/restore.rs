//! The new process of a live upgrade: restores the state of the old one. Until the old process sends `Go`, both hold the same
//! descriptors and only the old one owns them, so that any failure ends the new process alone.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use iothread::SocketDeviceCommand;
use options::{Directive, Invocation, MetricsAddr, ObjectOptions, SecretBytes};
use serde_json::Value;

use super::bitmaps;
use super::handover::monotonic_ns;
use super::{scsi_state, tls_files};
use crate::actions::export;
use crate::actions::export::nbd_bitmaps;
use crate::actions::nbd;
use crate::actions::node;
use crate::control::MainThread;
use crate::devices::export_server::ExportServer;
use crate::disk::exported_disk::GuestDevice;
use crate::error::BoxError;
use crate::process::ProcessOptions;
use crate::process::pidfile::PidFile;
use crate::state::DaemonObjects;
use crate::state::export::{Export, ExportState};
use crate::state::node::OpenNode;
use crate::state::secret::SecretFiles;
use crate::upgrade::PREDECESSOR_CHANNEL;
use crate::upgrade::channel::{UpgradeChannel, UpgradeMessage};
use crate::upgrade::state_json::{self, INVALID_STATE, IncomingFds};

/// Time limit for the old process to announce this one to the service manager.
const ANNOUNCEMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Restored connections, each with the id of its export.
type ExportConnections = Vec<(String, vhost_user::RestoredConnection)>;

/// Parts that are opened after the upgrade can no longer fail.
struct MonitorsMetricsAndPidFile {
    monitors: Vec<options::MonitorOptions>,
    /// The address that the old process serves; `None`: it serves none. (Of an old process that does not tell, it is that of
    /// this process's options.)
    metrics_addr: Option<MetricsAddr>,
    /// The old process's TCP socket for metrics.
    metrics_tcp_socket: Option<OwnedFd>,
    pidfile: Option<(PathBuf, OwnedFd)>,
}

/// Takes over from the process that has started this one. Exits if that fails.
pub(crate) fn take_over_or_exit_if_successor(
    process: &ProcessOptions<'_>,
    control: &mut MainThread,
) {
    let Some(channel) = PREDECESSOR_CHANNEL.get() else {
        return;
    };
    // Locks and sockets still belong to the old process.
    block::set_keep_locks_on_close(true);
    match receive_and_restore_state(channel, process, control) {
        Ok((connections, deferred)) => {
            resume_exports_and_open_remaining_parts(channel, control, connections, deferred)
        }
        Err(error) => {
            crate::upgrade::report_failure_to_predecessor(error.as_ref());
            tracing::error!(%error, "cannot take over from the running process");
            // Without dropping anything: all of it still belongs to the old process.
            crate::process::exit_at_once();
        }
    }
}

/// Restores everything, up to the message `Go`.
fn receive_and_restore_state(
    channel: &UpgradeChannel,
    process: &ProcessOptions<'_>,
    control: &mut MainThread,
) -> Result<(ExportConnections, MonitorsMetricsAndPidFile), BoxError> {
    channel.send(&UpgradeMessage::Hello, &[])?;
    let (UpgradeMessage::State(state), fds) = channel.recv()? else {
        return Err(INVALID_STATE.into());
    };
    let mut fds = IncomingFds::new(fds);
    let mut sockets = Vec::new();
    for socket in state_json::read_list(&state["sockets"])? {
        sockets.push((
            state_json::socket_addr_from_json(&socket["addr"])?,
            fds.take(&socket["fd"])?,
        ));
    }
    let objects = &mut control.objects;
    objects.inherited_sockets.add_handed_over(sockets);
    for node in state_json::read_list(&state["nodes"])? {
        if let Some(fd) = node.get("fd") {
            let name = node["name"].as_str().ok_or(INVALID_STATE)?;
            objects.handover_fds.insert(name.to_owned(), fds.take(fd)?);
        }
        if let Some(export) = node.get("nbd") {
            let name = node["name"].as_str().ok_or(INVALID_STATE)?;
            let export = nbd::export_from_json(export).ok_or(INVALID_STATE)?;
            objects.handover_exports.insert(name.to_owned(), export);
        }
    }
    // An old process that does not send them has none.
    for secret in state["secrets"].as_array().into_iter().flatten() {
        let id = secret["id"].as_str().ok_or(INVALID_STATE)?;
        let content = secret["base64"].as_str().and_then(SecretBytes::from_base64);
        let content = content.ok_or(INVALID_STATE)?;
        objects.handover_secrets.insert(id.to_owned(), content);
    }
    for creds in state["tls-creds"].as_array().into_iter().flatten() {
        let id = creds["id"].as_str().ok_or(INVALID_STATE)?;
        let files = tls_files::from_json(creds).ok_or(INVALID_STATE)?;
        objects.handover_tls_files.insert(id.to_owned(), files);
    }
    // An old process that does not send them has none.
    for fd in state["nbd-listeners"].as_array().into_iter().flatten() {
        objects.handover_nbd_listeners.push(fds.take(fd)?);
    }
    objects.creates_exports_paused = true;
    let mut sizes = HashMap::new();
    for node in state_json::read_list(&state["nodes"])? {
        let name = node["name"].as_str().ok_or(INVALID_STATE)?;
        sizes.insert(name, state_json::read_number(&node["size"])?);
    }
    let recording = bitmaps::names_of_recording_nodes(&state["nodes"])?;
    let nodes = HandedOverNodes { sizes, recording };
    let monitors = create_objects_and_chardevs(&state["options"], &nodes, control)?;
    let objects = &control.objects;
    let mut connections = ExportConnections::new();
    for described in state_json::read_list(&state["exports"])? {
        let id = described["id"].as_str().ok_or(INVALID_STATE)?;
        if let Some(connection) = restore_export_state(id, described, objects, &mut fds)? {
            connections.push((id.to_owned(), connection));
        }
    }
    let metrics_tcp_socket = match &state["metrics"] {
        Value::Null => None,
        fd => Some(fds.take(fd)?),
    };
    let metrics_addr = match state.get("metrics-addr") {
        None => process.metrics.cloned(),
        Some(addr) => addr.as_str().and_then(MetricsAddr::from_text),
    };
    let pidfile = match &state["pidfile"] {
        Value::Null => None,
        pidfile => {
            let path = pidfile["path"].as_str().ok_or(INVALID_STATE)?;
            Some((path.into(), fds.take(&pidfile["fd"])?))
        }
    };
    channel.send(&UpgradeMessage::Prepared, &[])?;
    let (UpgradeMessage::Stopped(stopped), fds) = channel.recv()? else {
        return Err(INVALID_STATE.into());
    };
    let mut fds = IncomingFds::new(fds);
    bitmaps::restore_from_stopped(&control.objects.nodes, &stopped, &mut fds)?;
    nbd_bitmaps::begin_use_after_restore(&control.objects)?;
    for export in &control.objects.exports {
        let stopped = &stopped[export.options.id.as_str()];
        scsi_state::restore_state_and_take_over_pr_files(export, &stopped["scsi"], &mut fds)?;
    }
    for (id, connection) in &mut connections {
        let bases = state_json::ring_positions_from_json(&stopped[id.as_str()]["queues"])?;
        connection
            .start_paused_queues(&bases)
            .map_err(|error| format!("export '{id}': {error}"))?;
    }
    channel.send(&UpgradeMessage::Started, &[])?;
    let (UpgradeMessage::Go, _) = channel.recv()? else {
        return Err(INVALID_STATE.into());
    };
    tracing::debug!(pid = state["pid"].as_u64(), "everything is restored");
    Ok((
        connections,
        MonitorsMetricsAndPidFile {
            monitors,
            metrics_addr,
            metrics_tcp_socket,
            pidfile,
        },
    ))
}

/// What is known of the old process's nodes beside their options.
struct HandedOverNodes<'a> {
    sizes: HashMap<&'a str, u64>,
    /// Names of those whose routes record in bitmaps.
    recording: Vec<&'a str>,
}

/// Creates all objects of the old process, nodes with the sizes that their guests know. Returns the monitors, which are opened
/// later.
fn create_objects_and_chardevs(
    options: &Value,
    handed_over: &HandedOverNodes<'_>,
    control: &mut MainThread,
) -> Result<Vec<options::MonitorOptions>, BoxError> {
    let arguments = state_json::read_list(options)?.iter();
    let arguments: Vec<_> = arguments
        .map(|argument| argument.as_str().ok_or(INVALID_STATE))
        .collect::<Result<_, _>>()?;
    if arguments.is_empty() {
        return Ok(Vec::new());
    }
    let arguments = arguments.into_iter().map(Into::into);
    let Invocation::Daemon(daemon) = options::parse_options_of_running_daemon(arguments)? else {
        return Err(INVALID_STATE.into());
    };
    let mut monitors = Vec::new();
    for directive in daemon.directives {
        let objects = &mut control.objects;
        match directive {
            Directive::Object(ObjectOptions::Iothread(options)) => {
                objects.spawn_and_add_iothread(&options)?
            }
            Directive::Object(ObjectOptions::Secret(options)) => {
                objects.read_and_add_secret(&options, SecretFiles::Any)?
            }
            Directive::Object(ObjectOptions::TlsCreds(options)) => {
                objects.read_and_add_tls_creds(&options, SecretFiles::Any)?
            }
            Directive::Object(ObjectOptions::AuthzList(options)) => {
                objects.add_authz_list(&options)?
            }
            Directive::Object(ObjectOptions::ThrottleGroup(options)) => {
                objects.add_throttle_group(&options)?
            }
            Directive::Blockdev(options) => {
                let first_new = objects.nodes.len();
                node::restore_and_add_node(&options, objects)?;
                // Exports take their size from their nodes.
                for OpenNode { node, .. } in &objects.nodes[first_new..] {
                    let size = handed_over.sizes.get(node.name());
                    node.record_new_size(*size.ok_or(INVALID_STATE)?);
                    // Before exports attach to it: its bitmaps follow when the queues have stopped.
                    let records = handed_over.recording.contains(&node.name());
                    node.bitmaps().let_new_routes_record(records);
                }
            }
            Directive::Export(options) => export::create_and_start_export(&options, objects)?,
            Directive::NbdServer(options) => objects.start_nbd_server(&options)?,
            Directive::Chardev(options) => control.open_and_add_chardev(&options)?,
            Directive::Monitor(options) => monitors.push(options),
        }
    }
    Ok(monitors)
}

/// Restores the state of an export. Returns the connection of its front-end, if it has one.
fn restore_export_state(
    id: &str,
    described: &Value,
    objects: &DaemonObjects,
    fds: &mut IncomingFds,
) -> Result<Option<vhost_user::RestoredConnection>, BoxError> {
    let found = objects
        .exports
        .iter()
        .find(|export| export.options.id == id);
    let Export { disks, state, .. } = found.ok_or(INVALID_STATE)?;
    if let (Some(disk), Some(mode)) = (disks.first(), described["write-cache"].as_bool())
        && let GuestDevice::Blk(device) = &disk.guest_device
    {
        device.set_cache_mode(mode);
    }
    let connection = match &described["connection"] {
        Value::Null => return Ok(None),
        connection => fds.connection_from_json(connection)?,
    };
    let ExportState::Serving(ExportServer::VhostUser(server)) = state else {
        return Err(INVALID_STATE.into());
    };
    let connection = server.restore_connection(connection);
    let connection =
        connection.map_err(|error| format!("the front-end of export '{id}': {error}"))?;
    Ok(Some(connection))
}

/// Begins to serve: from here on everything belongs to this process.
fn resume_exports_and_open_remaining_parts(
    channel: &UpgradeChannel,
    control: &mut MainThread,
    connections: ExportConnections,
    deferred: MonitorsMetricsAndPidFile,
) {
    for (id, connection) in connections {
        if let Err(error) = connection.resume_and_give_to_server() {
            tracing::error!(export = id, %error, "the front-end is disconnected");
        }
    }
    let resumed_at_ns = monotonic_ns();
    block::set_keep_locks_on_close(false);
    let objects = &mut control.objects;
    objects.creates_exports_paused = false;
    for export in &objects.exports {
        match &export.state {
            ExportState::Serving(ExportServer::VhostUser(server)) => server.resume(),
            ExportState::Serving(ExportServer::Adapter(adapter)) => {
                adapter.send_unless_stopped(SocketDeviceCommand::ResumeAccepting);
            }
            // Its server accepts clients.
            ExportState::Serving(ExportServer::Nbd(_)) | ExportState::Draining(_) => {}
        }
    }
    if let Some(server) = &objects.nbd_server {
        server.set_accepting_paused(false);
    }
    if let Some((path, fd)) = deferred.pidfile {
        match PidFile::take_over_and_write_pid(&path, fd) {
            Ok(pidfile) => control.pidfile = Some(pidfile),
            Err(error) => {
                tracing::warn!(%error, "the pidfile still has the number of the old process")
            }
        }
    }
    let sent = channel.send(&UpgradeMessage::Resumed(resumed_at_ns), &[]);
    // The service manager accepts messages of this process after the old one has announced it.
    if sent.is_ok() {
        let _ = channel.is_readable_within(ANNOUNCEMENT_TIMEOUT);
    }
    if let Some(addr) = deferred.metrics_addr
        && let Err(error) = control.start_metrics(&addr, deferred.metrics_tcp_socket)
    {
        tracing::warn!(%error, "metrics are not served any more");
    }
    for monitor in deferred.monitors {
        if let Err(error) = control.add_monitor(&monitor) {
            tracing::warn!(chardev = monitor.chardev, %error, "a monitor is not served any more");
        }
    }
    // All sockets are open now.
    let sockets = &control.objects.inherited_sockets;
    sockets.set_keep_socket_files_on_close(false);
    tracing::info!("took over from the old process");
}
