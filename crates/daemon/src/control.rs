//! The main thread: its state, which owns all objects, monitors and the metrics endpoint, and its loop, which handles monitor
//! commands, those that have waited, and signals as messages, one after the other.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Instant;

use options::{ChardevOptions, MetricsAddr, MonitorOptions};
use qmp::{CommandCall, Interface, Server, ServerHandle};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::devices::image_use::NodeActivator;
use crate::error::BoxError;
use crate::metrics::MetricsEndpoint;
use crate::process;
use crate::process::pidfile::PidFile;
use crate::process::signals::BlockedSignals;
use crate::service::{IothreadWatchdog, ServiceManagerConnection};
use crate::state::DaemonObjects;
use crate::state::chardev::Chardevs;
use crate::state::reports;
use crate::state::slow_requests::SlowRequestWatchdog;
use crate::upgrade::CompletedHandover;
use crate::upgrade::launcher::LauncherConnection;

/// A message to the main thread.
pub(crate) enum MainThreadMessage {
    /// SIGTERM, SIGINT or SIGHUP was received.
    Stop,
    /// The queues of a removed export have drained.
    ExportDrained(String),
    /// Work that another thread wants done here: the end of a command that has waited, a job, or an upgrade.
    Run(MainThreadTask),
    /// A command of a monitor's client.
    Call(Box<CommandCall<MainThread>>),
}

/// Work for the main thread.
pub(crate) type MainThreadTask = Box<dyn FnOnce(&mut MainThread) + Send>;

/// Has the main thread do some work, unless the daemon shuts down.
pub(crate) fn run_on_main_thread(
    sender: &Sender<MainThreadMessage>,
    task: impl FnOnce(&mut MainThread) + Send + 'static,
) {
    let _ = sender.send(MainThreadMessage::Run(Box::new(task)));
}

/// Everything that the main thread owns.
pub(crate) struct MainThread {
    /// Iothreads, nodes and exports.
    pub objects: DaemonObjects,
    /// A client has sent `quit`.
    pub quit: bool,
    pub service: ServiceManagerConnection,
    /// Starts the program of an upgrade; `None` if its process could not be made.
    pub launcher: Option<Arc<LauncherConnection>>,
    /// An upgrade is in progress.
    pub upgrading: bool,
    /// The new process has taken over; this one only has to exit.
    pub upgraded: Option<CompletedHandover>,
    pub pidfile: Option<PidFile>,
    /// For other threads to send messages with.
    pub message_sender: Sender<MainThreadMessage>,
    inbox: Receiver<MainThreadMessage>,
    /// Number of waiting commands that a shutdown waits for.
    pub pending_command_count: usize,
    /// Becomes readable when a signal to stop is received.
    stop_fd: OwnedFd,
    /// Sockets for monitors, in use or not.
    pub chardevs: Chardevs,
    interface: fn() -> Interface<MainThread>,
    monitors: Option<Server>,
    /// Options of all monitors, in the order in which they were added.
    pub monitor_options: Vec<MonitorOptions>,
    pub metrics: Option<MetricsEndpoint>,
}

impl MainThread {
    /// A daemon without objects; signals become messages. `interface` defines the commands of monitors; `upgrade` is called on
    /// SIGUSR2, `adopt_image_size` when an image has been resized by another client of its cluster; `new_activator` gets a way to the
    /// objects for exports whose queues start and stop.
    pub fn new_with_helper_threads(
        signals: BlockedSignals,
        mut service: ServiceManagerConnection,
        interface: fn() -> Interface<MainThread>,
        upgrade: fn(&mut MainThread),
        adopt_image_size: fn(&mut MainThread, &str),
        new_activator: fn(Sender<MainThreadMessage>) -> Arc<dyn NodeActivator>,
    ) -> Result<Self, BoxError> {
        let (message_sender, inbox) = channel();
        // Sending fails only when the main thread is exiting already.
        let stop_sender = message_sender.clone();
        let upgrade_sender = message_sender.clone();
        let drained_sender = message_sender.clone();
        let resized_sender = message_sender.clone();
        let on_image_resized = move |node: &str| {
            let node = node.to_owned();
            run_on_main_thread(&resized_sender, move |control| {
                adopt_image_size(control, &node);
            });
        };
        let stop_fd = signals.spawn_thread_exiting_on_second_signal(
            move || drop(stop_sender.send(MainThreadMessage::Stop)),
            move || run_on_main_thread(&upgrade_sender, upgrade),
        )?;
        let events = ServerHandle::new()?;
        let reports = reports::spawn_reports_thread(events.clone())?;
        let slow_requests = SlowRequestWatchdog::spawn()?;
        eventfd::start_guard()?;
        Ok(MainThread {
            objects: DaemonObjects::new(
                events,
                reports,
                slow_requests,
                Arc::new(move |id| drop(drained_sender.send(MainThreadMessage::ExportDrained(id)))),
                Arc::new(on_image_resized),
                new_activator(message_sender.clone()),
                service.take_inherited_sockets(),
            ),
            quit: false,
            service,
            launcher: None,
            upgrading: false,
            upgraded: None,
            pidfile: None,
            message_sender,
            inbox,
            pending_command_count: 0,
            stop_fd,
            chardevs: Chardevs::default(),
            interface,
            monitors: None,
            monitor_options: Vec::new(),
            metrics: None,
        })
    }

    /// Adds a socket for a monitor.
    pub fn open_and_add_chardev(&mut self, options: &ChardevOptions) -> Result<(), BoxError> {
        let inherited = &mut self.objects.inherited_sockets;
        self.chardevs
            .open_and_add(options, inherited, self.stop_fd.as_fd())
    }

    /// Replaces an unused socket by another of the same name.
    pub fn replace_unused_chardev(&mut self, options: &ChardevOptions) -> Result<(), BoxError> {
        let inherited = &mut self.objects.inherited_sockets;
        self.chardevs
            .replace_unused(options, inherited, self.stop_fd.as_fd())
    }

    /// Adds a monitor. Its commands become messages.
    pub fn add_monitor(&mut self, options: &MonitorOptions) -> Result<(), BoxError> {
        if self.monitors.is_none() {
            let message_sender = self.message_sender.clone();
            let deliver = move |call| {
                // Fails only when the main thread has ended.
                let _ = message_sender.send(MainThreadMessage::Call(Box::new(call)));
            };
            let interface = Arc::new((self.interface)());
            self.monitors = Some(Server::spawn(
                self.objects.events.clone(),
                interface,
                deliver,
            )?);
        }
        if let Some(monitors) = &self.monitors {
            let open_monitor = |endpoint| monitors.open_monitor(endpoint, options.pretty);
            self.chardevs
                .attach_monitor_if_unused(&options.chardev, open_monitor)?;
            self.monitor_options.push(options.clone());
        }
        Ok(())
    }

    /// While `paused`, monitors accept no clients: those wait for this process, or for the one that takes over.
    pub fn set_monitor_accepting_paused(&self, paused: bool) {
        if let Some(monitors) = &self.monitors {
            monitors.set_accepting_paused(paused);
        }
    }

    /// Starts to serve metrics at this address. `handed_over` is the socket that the old process of a live upgrade listened
    /// on; without it, a new one is opened.
    pub fn start_metrics(
        &mut self,
        addr: &MetricsAddr,
        handed_over: Option<OwnedFd>,
    ) -> Result<(), BoxError> {
        let metrics =
            MetricsEndpoint::start(addr, handed_over, &mut self.objects.inherited_sockets)?;
        self.metrics = Some(metrics);
        Ok(())
    }

    /// Handles messages until the daemon is to stop or has been upgraded. Notifies the service manager of readiness, and of
    /// the beginning of the shutdown.
    pub fn notify_ready_run_and_notify_stopping(&mut self, in_background: bool) {
        self.service.notify_ready(in_background);
        let mut watchdog = self.service.new_watchdog();
        let mut may_have_changed = true;
        while !self.quit && self.upgraded.is_none() {
            if may_have_changed {
                self.update_status_metrics_and_jobs();
            }
            let message = self.next_message_serving_watchdog(watchdog.as_mut());
            // Queries change nothing. With a hundred disks, publishing takes longer than most replies.
            may_have_changed =
                !matches!(&message, MainThreadMessage::Call(call) if call.is_query());
            match message {
                MainThreadMessage::Call(call) => call.run(self),
                MainThreadMessage::ExportDrained(id) => {
                    self.objects.remove_drained_export_and_emit_event(&id)
                }
                MainThreadMessage::Run(task) => task(self),
                MainThreadMessage::Stop => break,
            }
        }
        if self.upgraded.is_none() {
            self.service.notify_stopping();
        }
    }

    /// Exits after an upgrade: clients of monitors receive their last replies, images of Ceph clusters are closed, and
    /// everything else is left to the new process.
    pub fn close_monitors_and_images_and_exit(mut self) -> ! {
        drop(self.monitors.take());
        // The cluster would wait for the watch of a client that has vanished whenever the lock changes hands.
        self.objects.drop_nodes_of_handed_over_exports();
        process::close_images_and_exit(0);
    }

    /// Whether a signal to stop was received, perhaps while the main thread was busy.
    pub fn has_received_stop_signal(&self) -> bool {
        let mut fds = [PollFd::new(&self.stop_fd, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1..))
    }

    /// Sends the service manager its status line if it has changed, gives the metrics thread a new snapshot, and jobs their guests.
    fn update_status_metrics_and_jobs(&mut self) {
        let (exports, iothreads) = (self.objects.exports.len(), self.objects.iothreads.len());
        self.service.notify_status_if_changed(exports, iothreads);
        self.objects.update_guests_of_jobs();
        if let Some(metrics) = &self.metrics {
            metrics.publish_snapshot(&self.objects);
        }
    }

    /// Waits for a message, and serves the service manager's watchdog meanwhile.
    fn next_message_serving_watchdog(
        &self,
        watchdog: Option<&mut IothreadWatchdog>,
    ) -> MainThreadMessage {
        // (The channel cannot be closed: `self.message_sender` exists.)
        let Some(watchdog) = watchdog else {
            return self.inbox.recv().unwrap_or(MainThreadMessage::Stop);
        };
        loop {
            // Checked before the inbox, so that many messages do not delay it.
            let until_check = watchdog
                .next_step_at()
                .saturating_duration_since(Instant::now());
            if until_check.is_zero() {
                let threads = self
                    .objects
                    .iothreads
                    .iter()
                    .map(|iothread| &iothread.thread);
                let ping_iothreads = || {
                    threads
                        .map(|t| (t.id().to_owned(), t.send_ping()))
                        .collect()
                };
                if watchdog.ping_or_check_replies(ping_iothreads) {
                    self.service.send_keep_alive();
                }
                continue;
            }
            match self.inbox.recv_timeout(until_check) {
                Ok(message) => return message,
                Err(RecvTimeoutError::Disconnected) => return MainThreadMessage::Stop,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// The orderly shutdown. Commands that are changing a disk are finished first, and jobs are cancelled; commands that have not
    /// begun are refused by dropping them. Connections of monitors are closed last.
    pub fn shut_down(mut self) -> Result<(), BoxError> {
        // Some commands wait for requests that a filter delays until their queue stops, or that wait for those of a job; or they are a
        // job's.
        self.objects.begin_stop_exports();
        self.objects.begin_stop_jobs();
        while self.pending_command_count > 0 {
            match self.inbox.recv() {
                Ok(MainThreadMessage::Run(task)) => task(&mut self),
                Ok(MainThreadMessage::ExportDrained(id)) => {
                    self.objects.remove_drained_export_and_emit_event(&id)
                }
                Ok(MainThreadMessage::Call(_) | MainThreadMessage::Stop) => {}
                Err(_) => break,
            }
        }
        self.objects.cancel_jobs_and_wait();
        drop(self.inbox);
        let result = self.objects.drain_exports_and_flush_nodes();
        drop(self.monitors);
        result
    }
}
