//! The main thread after startup: receives commands of monitors, finished jobs and signals as messages, and handles one
//! after the other.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Instant;

use options::{ChardevOptions, MetricsAddr, MonitorOptions};
use qmp::{Call, Handle, Interface, Server};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::BoxError;
use crate::metrics::Metrics;
use crate::process::pidfile::PidFile;
use crate::process::signals::Signals;
use crate::service::{ServiceManager, Watchdog};
use crate::state::chardev::Chardevs;
use crate::state::objects::Objects;
use crate::state::reports;
use crate::state::slow_requests::SlowRequestWatchdog;
use crate::upgrade::Upgrade;
use crate::upgrade::launcher::Launcher;

/// A message to the main thread.
pub(crate) enum Message {
    /// SIGTERM, SIGINT or SIGHUP was received.
    Stop,
    /// The queues of a removed export have drained.
    ExportDrained(String),
    /// Work that another thread wants done here: the end of a job, or an upgrade.
    Run(MainThreadTask),
    /// A command of a monitor's client.
    Call(Box<Call<Control>>),
}

/// Work for the main thread.
pub(crate) type MainThreadTask = Box<dyn FnOnce(&mut Control) + Send>;

/// Everything that the main thread owns.
pub(crate) struct Control {
    /// Iothreads, nodes and exports.
    pub objects: Objects,
    /// A client has sent `quit`.
    pub quit: bool,
    pub service: ServiceManager,
    /// Starts the program of an upgrade; `None` if its process could not be made.
    pub launcher: Option<Arc<Launcher>>,
    /// An upgrade is in progress.
    pub upgrading: bool,
    /// The new process has taken over; this one only has to exit.
    pub upgraded: Option<Upgrade>,
    pub pidfile: Option<PidFile>,
    /// For other threads to send messages with.
    pub messages: Sender<Message>,
    inbox: Receiver<Message>,
    /// Jobs that a shutdown waits for.
    pub pending_jobs: usize,
    /// Becomes readable when a signal to stop is received.
    stop_fd: OwnedFd,
    /// Sockets for monitors, in use or not.
    pub chardevs: Chardevs,
    interface: fn() -> Interface<Control>,
    monitors: Option<Server>,
    /// Options of all monitors, in the order in which they were added.
    pub monitor_options: Vec<MonitorOptions>,
    pub metrics: Option<Metrics>,
}

impl Control {
    /// A daemon without objects; signals become messages. `interface` defines the commands of monitors; `upgrade` is called on
    /// SIGUSR2.
    pub fn new(
        signals: Signals,
        mut service: ServiceManager,
        interface: fn() -> Interface<Control>,
        upgrade: fn(&mut Control),
    ) -> Result<Self, BoxError> {
        let (messages, inbox) = channel();
        // Sending fails only when the main thread is exiting already.
        let (stop, start_upgrade, drained) = (messages.clone(), messages.clone(), messages.clone());
        let stop_fd = signals.watch(
            move || drop(stop.send(Message::Stop)),
            move || drop(start_upgrade.send(Message::Run(Box::new(upgrade)))),
        )?;
        let events = Handle::new()?;
        let reports = reports::spawn(events.clone())?;
        let slow_requests = SlowRequestWatchdog::spawn()?;
        Ok(Control {
            objects: Objects::new(
                events,
                reports,
                slow_requests,
                Arc::new(move |id| drop(drained.send(Message::ExportDrained(id)))),
                service.take_inherited_sockets(),
            ),
            quit: false,
            service,
            launcher: None,
            upgrading: false,
            upgraded: None,
            pidfile: None,
            messages,
            inbox,
            pending_jobs: 0,
            stop_fd,
            chardevs: Chardevs::default(),
            interface,
            monitors: None,
            monitor_options: Vec::new(),
            metrics: None,
        })
    }

    /// Adds a socket for a monitor.
    pub fn add_chardev(&mut self, options: &ChardevOptions) -> Result<(), BoxError> {
        let inherited = &mut self.objects.inherited;
        self.chardevs.add(options, inherited, self.stop_fd.as_fd())
    }

    /// Replaces an unused socket by another of the same name.
    pub fn change_chardev(&mut self, options: &ChardevOptions) -> Result<(), BoxError> {
        let inherited = &mut self.objects.inherited;
        self.chardevs
            .change(options, inherited, self.stop_fd.as_fd())
    }

    /// Adds a monitor. Its commands become messages.
    pub fn add_monitor(&mut self, options: &MonitorOptions) -> Result<(), BoxError> {
        if self.monitors.is_none() {
            let messages = self.messages.clone();
            let deliver = move |call| {
                // Fails only when the main thread has ended.
                let _ = messages.send(Message::Call(Box::new(call)));
            };
            let interface = Arc::new((self.interface)());
            self.monitors = Some(Server::spawn(
                self.objects.events.clone(),
                interface,
                deliver,
            )?);
        }
        if let Some(monitors) = &self.monitors {
            let open = |door| monitors.open(door, options.pretty);
            self.chardevs.attach_monitor(&options.chardev, open)?;
            self.monitor_options.push(options.clone());
        }
        Ok(())
    }

    /// While `paused`, monitors accept no clients: those wait for this process, or for the one that takes over.
    pub fn pause_monitors(&self, paused: bool) {
        if let Some(monitors) = &self.monitors {
            monitors.pause_accepting(paused);
        }
    }

    /// Starts to serve metrics at this address.
    pub fn serve_metrics(&mut self, addr: &MetricsAddr) -> Result<(), BoxError> {
        self.serve_metrics_on(addr, None)
    }

    /// Starts to serve metrics, on the listening socket that an upgrade has passed on if there is one.
    pub fn serve_metrics_on(
        &mut self,
        addr: &MetricsAddr,
        listener: Option<OwnedFd>,
    ) -> Result<(), BoxError> {
        let metrics = Metrics::start(addr, listener, &mut self.objects.inherited)?;
        self.metrics = Some(metrics);
        Ok(())
    }

    /// Handles messages until the daemon is to stop or has been upgraded. Notifies the service manager of readiness, and of
    /// the beginning of the shutdown.
    pub fn run(&mut self, in_background: bool) {
        self.service.notify_ready(in_background);
        let mut watchdog = self.service.watchdog();
        let mut changed = true;
        while !self.quit && self.upgraded.is_none() {
            if changed {
                self.publish_state();
            }
            let message = self.next_message(watchdog.as_mut());
            // Queries change nothing. With a hundred disks, publishing takes longer than most replies.
            changed = !matches!(&message, Message::Call(call) if call.is_query());
            match message {
                Message::Call(call) => call.run(self),
                Message::ExportDrained(id) => self.objects.remove_drained_export(&id),
                Message::Run(task) => task(self),
                Message::Stop => break,
            }
        }
        if self.upgraded.is_none() {
            self.service.notify_stopping();
        }
    }

    /// Exits after an upgrade: clients of monitors receive their last replies, and everything else is left to the new process.
    pub fn exit_after_upgrade(mut self) -> ! {
        drop(self.monitors.take());
        std::process::exit(0);
    }

    /// Whether a signal to stop was received, perhaps while the main thread was busy.
    pub fn stop_requested(&self) -> bool {
        let mut fds = [PollFd::new(&self.stop_fd, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1..))
    }

    /// Updates what the service manager and the metrics show of exports and iothreads.
    fn publish_state(&mut self) {
        let (exports, iothreads) = (self.objects.exports.len(), self.objects.iothreads.len());
        self.service.notify_status(exports, iothreads);
        if let Some(metrics) = &self.metrics {
            metrics.update(&self.objects);
        }
    }

    /// Waits for a message, and serves the service manager's watchdog meanwhile.
    fn next_message(&self, watchdog: Option<&mut Watchdog>) -> Message {
        // (The channel cannot be closed: `self.messages` is a sender.)
        let Some(watchdog) = watchdog else {
            return self.inbox.recv().unwrap_or(Message::Stop);
        };
        loop {
            // Checked before the inbox, so that many messages do not delay it.
            let left = watchdog
                .next_check()
                .saturating_duration_since(Instant::now());
            if left.is_zero() {
                let iothreads = self
                    .objects
                    .iothreads
                    .iter()
                    .map(|iothread| &iothread.thread);
                let ping_all = || iothreads.map(|t| (t.id().to_owned(), t.ping())).collect();
                if watchdog.check(ping_all) {
                    self.service.keep_alive();
                }
                continue;
            }
            match self.inbox.recv_timeout(left) {
                Ok(message) => return message,
                Err(RecvTimeoutError::Disconnected) => return Message::Stop,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// The orderly shutdown. Jobs that are changing a disk are finished first; commands that have not begun are refused by
    /// dropping them. Connections of monitors are closed last.
    pub fn shut_down(mut self) -> Result<(), BoxError> {
        // Some jobs wait for requests that a filter delays until their queue stops.
        self.objects.begin_stop();
        while self.pending_jobs > 0 {
            match self.inbox.recv() {
                Ok(Message::Run(task)) => task(&mut self),
                Ok(Message::ExportDrained(id)) => self.objects.remove_drained_export(&id),
                Ok(Message::Call(_) | Message::Stop) => {}
                Err(_) => break,
            }
        }
        drop(self.inbox);
        let result = self.objects.shut_down();
        drop(self.monitors);
        result
    }
}
