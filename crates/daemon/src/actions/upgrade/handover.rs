//! The old process of a live upgrade: starts the new one, hands everything over to it, and exits. If anything fails before the
//! new process has taken over, this one resumes serving.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ::nbd::client::Disk;
use iothread::IoStatus;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use super::paused_export::{self, PausedExport};
use super::scsi_state;
use super::{bitmaps, command_line, tls_files};
use crate::actions::nbd;
use crate::command_threads::CommandOnShutdown;
use crate::control::MainThread;
use crate::devices::export_server::ExportServer;
use crate::disk::exported_disk::GuestDevice;
use crate::state::export::{Export, ExportState};
use crate::state::job_status::JobStatus;
use crate::state::node::OpenNode;
use crate::upgrade::CompletedHandover;
use crate::upgrade::channel::UpgradeMessage;
use crate::upgrade::launcher::{LauncherConnection, StartedProgram};
use crate::upgrade::state_json::{self, OutgoingFds};
use crate::upgrade::wait::{
    expect_message_or_kill_on_io_error, kill_and_describe_error, recv_or_timeout_with_keep_alive,
};

/// Longest time in which the new process must send its next message while guests stand still: it has little to do then. Once there is
/// no way back it has this time, whatever a client gives it.
const PAUSED_RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// The time of `CLOCK_MONOTONIC`, which is the same in both processes.
pub(crate) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let to_unsigned = |value: i64| u64::try_from(value).unwrap_or(0);
    to_unsigned(now.tv_sec) * 1_000_000_000 + to_unsigned(now.tv_nsec)
}

impl MainThread {
    /// Starts the same program again, or `other_program`, and hands everything over to it. Until the new process serves, each of its
    /// messages has to come within `response_timeout`, and within half a minute at most once queues have stopped. Calls `on_outcome`
    /// with the result.
    pub fn begin_upgrade(
        &mut self,
        other_program: Option<PathBuf>,
        response_timeout: Duration,
        on_outcome: impl FnOnce(&Result<CompletedHandover, String>) + Send + 'static,
    ) {
        let launcher = match self.check_and_mark_upgrading() {
            Ok(launcher) => launcher,
            Err(why) => return log_and_pass_on_upgrade_outcome(Err(why), on_outcome),
        };
        tracing::info!("upgrade: starting the new process");
        let starter = launcher.clone();
        self.spawn_command_thread(
            "upgrade".to_owned(),
            CommandOnShutdown::Abandon,
            move || {
                let program = other_program.as_deref();
                let started = starter.start_program(program, response_timeout);
                Ok(started.and_then(|started| await_hello(started, response_timeout, &starter)))
            },
            move |control, started| {
                control.upgrading = false;
                let started = started.map_err(|error| error.text).flatten();
                let outcome = started.and_then(|started| {
                    control.pause_exports_and_hand_over(&started, response_timeout, &launcher)
                });
                if let Ok(upgrade) = &outcome {
                    control.upgraded = Some(*upgrade);
                } else {
                    launcher.kill_program();
                    control.set_monitor_accepting_paused(false);
                    control.set_nbd_accepting_paused(false);
                }
                log_and_pass_on_upgrade_outcome(outcome, on_outcome);
            },
        );
    }

    /// Checks that an upgrade is possible, and marks it as in progress.
    fn check_and_mark_upgrading(&mut self) -> Result<std::sync::Arc<LauncherConnection>, String> {
        if self.upgrading {
            return Err("an upgrade is in progress already: wait for it".to_owned());
        }
        if std::process::id() == 1 {
            return Err(
                "this process is the first of its container, which ends with it: run it below an init, or restart the container"
                    .to_owned(),
            );
        }
        let launcher = self.launcher.clone();
        let launcher = launcher.ok_or(
            "the process that starts programs could not be created at startup (see the log): restart instead",
        )?;
        self.check_can_hand_over()?;
        self.command_line_for_successor()?;
        self.upgrading = true;
        Ok(launcher)
    }

    /// Refuses states that cannot be handed over: nodes in use by a command, exports that are draining, parked requests.
    fn check_can_hand_over(&self) -> Result<(), String> {
        let objects = &self.objects;
        if let Some(name) = objects.opening_nodes.first() {
            return Err(format!(
                "node '{name}' is being opened: try again when that is done"
            ));
        }
        if let Some(job) = objects.jobs.first() {
            return Err(match job.status {
                JobStatus::Concluded => format!(
                    "job '{}' has ended, and its result would be lost: send job-dismiss, then try again",
                    job.id
                ),
                status => format!(
                    "job '{}' is {} and cannot be handed over: wait for its end, or cancel it by job-cancel",
                    job.id,
                    status.name()
                ),
            });
        }
        for OpenNode {
            options,
            reserved_by,
            ..
        } in &objects.nodes
        {
            if let Some(command) = reserved_by {
                let name = &options.node_name;
                return Err(format!(
                    "node '{name}' is busy with a {command}: try again when that command is done"
                ));
            }
        }
        for export in &objects.exports {
            let Export {
                options,
                stats,
                reports,
                state,
                ..
            } = export;
            let id = &options.id;
            if matches!(state, ExportState::Draining(_)) {
                return Err(format!(
                    "export '{id}' is shutting down: try again when that is done"
                ));
            }
            let is_adapter = matches!(state, ExportState::Serving(ExportServer::Adapter(_)));
            if is_adapter && stats.connected.load(Ordering::Relaxed) {
                return Err(paused_export::adapter_connected_error(export));
            }
            let status = reports.as_ref().map(|reports| reports.queues().io_status());
            if status.is_some_and(|status| status != IoStatus::Ok) {
                return Err(format!(
                    "export '{id}' has requests that wait after an error: resume them with block-export-resume, and try again"
                ));
            }
        }
        Ok(())
    }

    /// Describes all objects, chardevs and monitors as command-line options.
    fn command_line_for_successor(&self) -> Result<Vec<String>, String> {
        let chardevs: Vec<_> = self
            .chardevs
            .iter()
            .map(|chardev| chardev.options())
            .collect();
        let arguments =
            command_line::command_line_for_objects(&self.objects, &chardevs, &self.monitor_options);
        arguments.map_err(|error| error.to_string())
    }

    /// Hands everything over to a new process that has started.
    fn pause_exports_and_hand_over(
        &mut self,
        started: &StartedProgram,
        response_timeout: Duration,
        launcher: &LauncherConnection,
    ) -> Result<CompletedHandover, String> {
        // Other commands were executed while the process started.
        self.check_can_hand_over()?;
        launcher.release_program();
        // Before the exports are paused, so that it adds nothing to the pause of guests.
        self.set_monitor_accepting_paused(true);
        self.set_nbd_accepting_paused(true);
        let mut paused = self.pause_exports()?;
        let prepared = self.prepare_new_process(&mut paused, started, response_timeout, launcher);
        let upgrade = prepared.and_then(|()| {
            let timeout = response_timeout.min(PAUSED_RESPONSE_TIMEOUT);
            self.hand_over_paused_exports(&mut paused, started, timeout, launcher)
        });
        if upgrade.is_err() {
            // The new process may use the queues already: it must be gone before they resume here.
            launcher.kill_program();
        }
        upgrade
    }

    /// Describes everything but the queues, which run, and waits until the new process has made it.
    fn prepare_new_process(
        &self,
        paused: &mut [PausedExport],
        started: &StartedProgram,
        timeout: Duration,
        launcher: &LauncherConnection,
    ) -> Result<(), String> {
        let mut fds = OutgoingFds::default();
        let state = self.all_but_queues_to_json(paused, &mut fds)?;
        fds.send(&started.channel, &UpgradeMessage::State(state))
            .map_err(|error| kill_and_describe_error(&error, started, launcher))?;
        self.expect_message_or_kill_on_io_error(
            started,
            &UpgradeMessage::Prepared,
            timeout,
            launcher,
        )
    }

    /// Stops the queues and hands everything over. After an error the caller ends the new process; once `Go` is sent there is no way
    /// back, and if the new process then fails both end.
    fn hand_over_paused_exports(
        &mut self,
        paused: &mut Vec<PausedExport>,
        started: &StartedProgram,
        timeout: Duration,
        launcher: &LauncherConnection,
    ) -> Result<CompletedHandover, String> {
        let channel = &started.channel;
        let to_exit_error = |error| kill_and_describe_error(&error, started, launcher);
        let begin_ns = monotonic_ns();
        paused_export::drain_queues(paused, || self.service.send_keep_alive())?;
        // Requests that were in flight may have failed and be parked now.
        self.check_can_hand_over()?;
        let mut fds = OutgoingFds::default();
        let stopped = self.stop_queues_and_exports_to_json(paused, &mut fds)?;
        fds.send(channel, &UpgradeMessage::Stopped(stopped))
            .map_err(to_exit_error)?;
        self.expect_message_or_kill_on_io_error(
            started,
            &UpgradeMessage::Started,
            timeout,
            launcher,
        )?;
        if self.has_received_stop_signal() {
            return Err("a signal asks the daemon to stop".to_owned());
        }
        channel
            .send(&UpgradeMessage::Go, &[])
            .map_err(to_exit_error)?;

        // There is no way back any more, so a message may stall for as long as the process may be silent. If this fails, the shorter
        // limit stays.
        let _ = channel.set_timeout(PAUSED_RESPONSE_TIMEOUT);
        for export in paused.drain(..) {
            export.forget_without_resuming();
        }
        block::set_keep_locks_on_close(true);
        self.objects
            .inherited_sockets
            .set_keep_socket_files_on_close(true);
        let Ok(Some(UpgradeMessage::Resumed(end_ns))) =
            recv_or_timeout_with_keep_alive(started, PAUSED_RESPONSE_TIMEOUT, || {
                self.service.send_keep_alive()
            })
        else {
            // A process that hangs is killed as well: front-ends reconnect to the next one.
            launcher.kill_program();
            tracing::error!(
                advice = "start the daemon again; see the log of the new process, and report it to its makers",
                "the new process ended, or hung, right after it had taken over: its state is unknown, so this one ends as well"
            );
            crate::process::exit_at_once();
        };
        self.service.notify_main_pid(started.pid);
        // Confirms that the service manager knows the new process. (That may have exited; ignore the error.)
        let _ = started.channel.send(&UpgradeMessage::Go, &[]);
        Ok(CompletedHandover {
            pid: started.pid,
            pause: Duration::from_nanos(end_ns.saturating_sub(begin_ns)),
        })
    }

    /// While `paused`, the NBD server accepts no clients.
    fn set_nbd_accepting_paused(&self, paused: bool) {
        if let Some(server) = &self.objects.nbd_server {
            server.set_accepting_paused(paused);
        }
    }

    /// Pauses the servers of all exports: from here on no message of a front-end is read.
    fn pause_exports(&self) -> Result<Vec<PausedExport>, String> {
        let exports = self.objects.exports.iter();
        exports
            .filter_map(|export| {
                PausedExport::pause_unless_draining(export, || self.service.send_keep_alive())
                    .transpose()
            })
            .collect()
    }

    /// Describes everything but the queues, for [`UpgradeMessage::State`], and duplicates the descriptors.
    fn all_but_queues_to_json(
        &self,
        paused: &mut [PausedExport],
        fds: &mut OutgoingFds,
    ) -> Result<Value, String> {
        let descriptors_failed = |error: std::io::Error| {
            format!("cannot hand descriptors over: {error}; see `ulimit -n` and `LimitNOFILE=`")
        };
        let mut nodes = Vec::new();
        for OpenNode { options, node, .. } in &self.objects.nodes {
            let mut json = json!({"name": options.node_name, "size": node.size()});
            if options.driver.child_with_key().is_none()
                && let Some(export) = node.underlying_nbd()
            {
                json["nbd"] = nbd::export_to_json(export);
            }
            if options.driver.child_with_key().is_none()
                && let Some(opened) = node.fd_for_handover()
            {
                json["fd"] = fds.add(opened.try_clone_to_owned().map_err(descriptors_failed)?);
            }
            bitmaps::describe_in_node(node, &mut json);
            nodes.push(json);
        }
        // Their files may have changed since, and the new process may not read them.
        let secrets = self.objects.secrets.iter();
        let secrets = secrets
            .map(|secret| json!({"id": secret.options.id, "base64": secret.content.to_base64()}));
        let secrets: Vec<Value> = secrets.collect();
        let creds = self.objects.tls_creds.iter();
        let creds = creds.map(|creds| tls_files::to_json(&creds.options.id, &creds.files));
        let creds: Vec<Value> = creds.collect();
        let mut sockets = Vec::new();
        for (addr, fd) in self
            .objects
            .inherited_sockets
            .duplicate_all()
            .map_err(descriptors_failed)?
        {
            sockets
                .push(json!({"addr": state_json::socket_addr_to_json(&addr)?, "fd": fds.add(fd)}));
        }
        let mut exports = Vec::new();
        for export in paused {
            let id = &export.id;
            let described = self
                .objects
                .exports
                .iter()
                .find(|export| export.options.id == *id);
            let guest_device =
                described.and_then(|export| Some(&export.disks.first()?.guest_device));
            let connection = export.connection_for_handover()?;
            exports.push(json!({
                "id": export.id,
                "write-cache": match guest_device {
                    Some(GuestDevice::Blk(device)) => device.is_write_back().into(),
                    _ => Value::Null,
                },
                "connection": connection.map(|connection| fds.connection_to_json(connection)),
            }));
        }
        let metrics = self
            .metrics
            .as_ref()
            .and_then(|metrics| metrics.tcp_listener_fd());
        let metrics = metrics.map(|fd| fd.try_clone_to_owned().map(|fd| fds.add(fd)));
        let metrics = metrics.transpose().map_err(descriptors_failed)?;
        let nbd_listeners = match &self.objects.nbd_server {
            None => Vec::new(),
            Some(server) => server
                .duplicate_tcp_listeners()
                .map_err(descriptors_failed)?,
        };
        let nbd_listeners = nbd_listeners.into_iter().map(|fd| fds.add(fd));
        let nbd_listeners: Vec<Value> = nbd_listeners.collect();
        let pidfile = match &self.pidfile {
            None => Value::Null,
            Some(pidfile) => {
                let (path, fd) = pidfile
                    .path_and_duplicated_fd()
                    .map_err(descriptors_failed)?;
                json!({"path": state_json::utf8_path(path)?, "fd": fds.add(fd)})
            }
        };
        Ok(json!({
            "pid": std::process::id(),
            "options": self.command_line_for_successor()?,
            "secrets": secrets,
            "tls-creds": creds,
            "nodes": nodes,
            "sockets": sockets,
            "exports": exports,
            "nbd-listeners": nbd_listeners,
            "metrics": metrics,
            "metrics-addr": self.metrics.as_ref().map(|metrics| metrics.addr().to_string()),
            "pidfile": pidfile,
        }))
    }

    /// Stops the queues. Returns a description of where they stopped, and of other state that changes until then.
    fn stop_queues_and_exports_to_json(
        &self,
        paused: &mut [PausedExport],
        fds: &mut OutgoingFds,
    ) -> Result<Value, String> {
        let mut exports = serde_json::Map::new();
        for export in &mut *paused {
            let bases = export.stop_queues_and_disconnect_nbd_clients();
            let queues = state_json::ring_positions_to_json(&bases);
            exports.insert(export.id.clone(), json!({"queues": queues}));
        }
        for export in &self.objects.exports {
            if let Some(json) = exports.get_mut(&export.options.id) {
                json["scsi"] = scsi_state::save_state_to_json(export, fds)?;
            }
        }
        self.close_connections_to_nbd_servers();
        bitmaps::add_to_stopped(&self.objects.nodes, &mut exports, fds)?;
        Ok(exports.into())
    }

    /// Closes the connections to NBD servers: the new process connects by itself, also to a server that allows one connection.
    fn close_connections_to_nbd_servers(&self) {
        let nodes = self.objects.nodes.iter();
        let disks: Vec<_> = nodes
            .filter_map(|open| open.node.underlying_nbd())
            .collect();
        if !Disk::close_connections(&disks) {
            tracing::warn!(
                "upgrade: an NBD server has not ended a connection on which it did not answer, and may carry out writes late"
            );
        }
    }

    /// Waits for this message from the new process.
    fn expect_message_or_kill_on_io_error(
        &self,
        started: &StartedProgram,
        what: &UpgradeMessage,
        timeout: Duration,
        launcher: &LauncherConnection,
    ) -> Result<(), String> {
        expect_message_or_kill_on_io_error(started, what, timeout, launcher, || {
            self.service.send_keep_alive()
        })
    }
}

/// Waits for the first message of the new process.
fn await_hello(
    started: StartedProgram,
    timeout: Duration,
    launcher: &LauncherConnection,
) -> Result<StartedProgram, String> {
    expect_message_or_kill_on_io_error(&started, &UpgradeMessage::Hello, timeout, launcher, || ())?;
    Ok(started)
}

/// Logs the outcome of an upgrade, and passes it on.
fn log_and_pass_on_upgrade_outcome(
    outcome: Result<CompletedHandover, String>,
    on_outcome: impl FnOnce(&Result<CompletedHandover, String>),
) {
    match &outcome {
        Ok(CompletedHandover { pid, pause }) => {
            let pause_us = pause.as_micros();
            tracing::info!(pid, pause_us, "upgraded: the new process has taken over");
        }
        Err(why) => tracing::error!(why, "not upgraded: this process keeps serving"),
    }
    on_outcome(&outcome);
}
