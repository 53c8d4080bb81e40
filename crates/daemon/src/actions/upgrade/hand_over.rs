//! The side of the program that runs: it starts another one, hands everything over, and leaves. Whatever goes wrong
//! before the other one has all of it, this one goes on.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use iothread::IoStatus;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use super::describe;
use super::scsi;
use super::standing::{self, Standing};
use crate::control::Control;
use crate::devices::export_server::ExportServer;
use crate::disk::exported_disk::GuestDevice;
use crate::jobs::OnShutdown;
use crate::state::export::{Export, ExportState};
use crate::state::node::OpenNode;
use crate::upgrade::Upgrade;
use crate::upgrade::channel::{Channel, Said};
use crate::upgrade::hear::{expect, gone, hear};
use crate::upgrade::launcher::{Launcher, Started};
use crate::upgrade::state::{self, Outgoing};

/// `CLOCK_MONOTONIC`, which all processes have in common.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let part = |part: i64| u64::try_from(part).unwrap_or(0);
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}

impl Control {
    /// Starts the program anew, or `other`, and lets it take over; `answer` hears what came of it.
    pub fn upgrade(
        &mut self,
        other: Option<PathBuf>,
        answer: impl FnOnce(&Result<Upgrade, String>) + Send + 'static,
    ) {
        let begun = self.begin_upgrade();
        let launcher = match begun {
            Ok(launcher) => launcher,
            Err(why) => return finish(Err(why), answer),
        };
        tracing::info!("upgrade: a new process is started");
        let starter = launcher.clone();
        self.run_job(
            "upgrade".to_owned(),
            OnShutdown::Abandon,
            move || Ok(start(&starter, other)),
            move |control, started| {
                control.upgrading = false;
                let started = started.map_err(|error| error.text).flatten();
                let outcome = started.and_then(|started| control.hand_over(&started, &launcher));
                if let Ok(upgrade) = &outcome {
                    control.upgraded = Some(*upgrade);
                } else {
                    launcher.end();
                    control.pause_monitors(false);
                }
                finish(outcome, answer);
            },
        );
    }

    fn begin_upgrade(&mut self) -> Result<std::sync::Arc<Launcher>, String> {
        if self.upgrading {
            return Err("an upgrade is under way already: wait for it".to_owned());
        }
        if std::process::id() == 1 {
            return Err(
                "this process is the first of its container, which ends with it: run it below an init, or start the container anew"
                    .to_owned(),
            );
        }
        let launcher = self.launcher.clone();
        let launcher = launcher.ok_or(
            "no process could be made at the start that starts programs (see the log): restart instead",
        )?;
        self.check_free()?;
        self.description()?;
        self.upgrading = true;
        Ok(launcher)
    }

    /// Nothing is half done.
    fn check_free(&self) -> Result<(), String> {
        let objects = &self.objects;
        if let Some(name) = objects.opening_nodes.first() {
            return Err(format!(
                "node '{name}' is being opened: try again when it is"
            ));
        }
        for OpenNode { options, busy, .. } in &objects.nodes {
            if let Some(command) = busy {
                let name = &options.node_name;
                return Err(format!(
                    "node '{name}' is busy with a {command}: try again when that is answered"
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
            if matches!(state, ExportState::Ending(_)) {
                return Err(format!(
                    "export '{id}' is shutting down: try again when it has"
                ));
            }
            let is_adapter = matches!(state, ExportState::Serving(ExportServer::Adapter(_)));
            if is_adapter && stats.connected.load(Ordering::Relaxed) {
                return Err(standing::is_connected(export));
            }
            let status = reports.as_ref().map(|reports| reports.waiting().status());
            if status.is_some_and(|status| status != IoStatus::Ok) {
                return Err(format!(
                    "export '{id}' has requests that wait after an error: end that with block-export-resume, and try again"
                ));
            }
        }
        Ok(())
    }

    fn description(&self) -> Result<Vec<String>, String> {
        let chardevs: Vec<_> = self
            .chardevs
            .iter()
            .map(|chardev| chardev.options())
            .collect();
        let described = describe::options(&self.objects, &chardevs, &self.monitor_options);
        described.map_err(|error| error.to_string())
    }

    /// Hands everything over to a program that has started.
    fn hand_over(&mut self, started: &Started, launcher: &Launcher) -> Result<Upgrade, String> {
        // Commands were carried out meanwhile.
        self.check_free()?;
        // Before guests have to wait.
        self.pause_monitors(true);
        let mut standing = self.stand_still()?;
        let handed = self.hand_over_all(&mut standing, started, launcher);
        if handed.is_err() {
            // It may have begun to use the queues, and is gone before they go on here.
            launcher.end();
        }
        handed
    }

    fn hand_over_all(
        &mut self,
        standing: &mut Vec<Standing>,
        started: &Started,
        launcher: &Launcher,
    ) -> Result<Upgrade, String> {
        let channel = &started.channel;
        let mut fds = Outgoing::default();
        let state = self.state(standing, &mut fds)?;
        let lost = |error| gone(&error, launcher);
        fds.send(channel, &Said::State(state)).map_err(lost)?;
        self.expect(channel, &Said::Prepared, launcher)?;

        let begin_ns = now_ns();
        standing::rest(standing, || self.service.alive())?;
        // Some of what was in flight may have failed, and waits now.
        self.check_free()?;
        let mut fds = Outgoing::default();
        let stopped = self.stopped(standing, &mut fds)?;
        fds.send(channel, &Said::Stopped(stopped)).map_err(lost)?;
        self.expect(channel, &Said::Started, launcher)?;
        if self.stop_requested() {
            return Err("the daemon is told to end".to_owned());
        }
        channel.send(&Said::Go, &[]).map_err(lost)?;

        for standing in standing.drain(..) {
            standing.leave();
        }
        block::leave_locks(true);
        self.objects.inherited.leave(true);
        let Ok(Some(Said::Gone(end_ns))) = hear(channel, || self.service.alive()) else {
            // Of one that hangs nothing is left either: front-ends connect to who comes next.
            launcher.end();
            tracing::error!(
                advice =
                    "start the daemon again; see the log of the new process, and tell who made it",
                "the new process ended, or hung, right after it had taken over: what it has done is not known, so this one ends as well"
            );
            std::process::exit(1);
        };
        self.service.main_process(started.pid);
        // It has seen that we go if it has gone itself.
        let _ = channel.send(&Said::Go, &[]);
        Ok(Upgrade {
            pid: started.pid,
            pause: Duration::from_nanos(end_ns.saturating_sub(begin_ns)),
        })
    }

    /// No front-end is heard from here on.
    fn stand_still(&self) -> Result<Vec<Standing>, String> {
        let exports = self.objects.exports.iter();
        exports
            .filter_map(|export| Standing::of(export, || self.service.alive()).transpose())
            .collect()
    }

    /// All that the other program needs, and what it goes on with.
    fn state(&self, standing: &mut [Standing], fds: &mut Outgoing) -> Result<Value, String> {
        let too_many = |error: std::io::Error| {
            format!("cannot hand descriptors over: {error}; see `ulimit -n` and `LimitNOFILE=`")
        };
        let mut nodes = Vec::new();
        for OpenNode { options, node, .. } in &self.objects.nodes {
            let mut json = json!({"name": options.node_name, "size": node.size()});
            if options.driver.child().is_none()
                && let Some(opened) = node.opened()
            {
                json["fd"] = fds.add(opened.try_clone_to_owned().map_err(too_many)?);
            }
            nodes.push(json);
        }
        let mut sockets = Vec::new();
        for (addr, fd) in self.objects.inherited.duplicate().map_err(too_many)? {
            sockets.push(json!({"addr": state::addr(&addr)?, "fd": fds.add(fd)}));
        }
        let mut exports = Vec::new();
        for standing in standing {
            let id = &standing.id;
            let found = self
                .objects
                .exports
                .iter()
                .find(|export| export.options.id == *id);
            let guest_device = found.and_then(|export| Some(&export.disks.first()?.guest_device));
            let connection = standing.hand_over()?;
            exports.push(json!({
                "id": standing.id,
                "write-cache": match guest_device {
                    Some(GuestDevice::Blk(device)) => device.cache_mode().into(),
                    _ => Value::Null,
                },
                "connection": connection.map(|connection| fds.connection(connection)),
            }));
        }
        let metrics = self.metrics.as_ref().and_then(|metrics| metrics.tcp());
        let metrics = metrics.map(|fd| fd.try_clone_to_owned().map(|fd| fds.add(fd)));
        let metrics = metrics.transpose().map_err(too_many)?;
        let pidfile = match &self.pidfile {
            None => Value::Null,
            Some(pidfile) => {
                let (path, fd) = pidfile.shared().map_err(too_many)?;
                json!({"path": state::text(path)?, "fd": fds.add(fd)})
            }
        };
        Ok(json!({
            "pid": std::process::id(),
            "options": self.description()?,
            "nodes": nodes,
            "sockets": sockets,
            "exports": exports,
            "metrics": metrics,
            "pidfile": pidfile,
        }))
    }

    /// Where the queues have stopped, and what else changes until they have.
    fn stopped(&self, standing: &mut [Standing], fds: &mut Outgoing) -> Result<Value, String> {
        let mut exports = serde_json::Map::new();
        for standing in &mut *standing {
            let queues = state::bases(&standing.stop());
            exports.insert(standing.id.clone(), json!({"queues": queues}));
        }
        for export in &self.objects.exports {
            if let Some(json) = exports.get_mut(&export.options.id) {
                json["scsi"] = scsi::describe(export, fds)?;
            }
        }
        Ok(exports.into())
    }

    /// Waits until the other program says this.
    fn expect(&self, channel: &Channel, what: &Said, launcher: &Launcher) -> Result<(), String> {
        expect(channel, what, launcher, || self.service.alive())
    }
}

/// Starts it, and waits until it says that it has.
fn start(launcher: &Launcher, other: Option<PathBuf>) -> Result<Started, String> {
    let started = launcher.start(other.as_deref())?;
    expect(&started.channel, &Said::Hello, launcher, || ())?;
    Ok(started)
}

fn finish(outcome: Result<Upgrade, String>, answer: impl FnOnce(&Result<Upgrade, String>)) {
    match &outcome {
        Ok(Upgrade { pid, pause }) => {
            let pause_us = pause.as_micros();
            tracing::info!(pid, pause_us, "upgraded: the new process goes on");
        }
        Err(why) => tracing::error!(why, "not upgraded: this process goes on"),
    }
    answer(&outcome);
}
