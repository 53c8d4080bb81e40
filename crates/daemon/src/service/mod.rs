//! Interface to a service manager such as systemd: reads its environment variables for socket activation, notifications and the
//! watchdog, and sends notifications.
//!
//! The protocols are systemd's (sd_listen_fds(3), sd_notify(3), sd_watchdog_enabled(3)), which other managers support
//! too. They are environment variables and datagrams of text, so no library is needed. Without the variables nothing
//! happens: no socket is created, and nothing wakes up.

mod inherited_sockets;
mod notify;
mod watchdog;

use std::ffi::OsString;
use std::time::Duration;

use crate::error::BoxError;
pub(crate) use inherited_sockets::InheritedAndUsedSockets;
use notify::ServiceNotifier;
pub(crate) use watchdog::IothreadWatchdog;

/// The service manager that started the daemon, if any. Used by the main thread.
pub struct ServiceManagerConnection {
    notifier: Option<ServiceNotifier>,
    watchdog_period: Option<Duration>,
    /// The status that was sent last.
    last_status: String,
    /// Variables that were removed from the environment, for the successor in a live upgrade.
    environment_for_successor: Vec<(String, OsString)>,
    inherited: InheritedAndUsedSockets,
}

impl ServiceManagerConnection {
    /// Reads the variables of the protocols and removes them from the environment: they are meant for this process
    /// only, not for its children.
    ///
    /// # Safety
    /// The process has one thread.
    pub unsafe fn take_from_environment() -> Result<Self, BoxError> {
        let inherited_fds = inherited_sockets::find_inherited_fds();
        // SAFETY: guaranteed by the caller.
        let take_var = |name: &str| unsafe { take_environment_variable(name) };
        let socket = take_var("NOTIFY_SOCKET");
        let notifier = ServiceNotifier::try_new(socket.as_deref().unwrap_or_default())?;
        let (usec, pid) = (take_var("WATCHDOG_USEC"), take_var("WATCHDOG_PID"));
        let watchdog_period = watchdog::parse_watchdog_period(usec.clone(), pid)?;
        let for_successor = [
            ("NOTIFY_SOCKET", socket),
            ("WATCHDOG_USEC", usec.filter(|_| watchdog_period.is_some())),
        ];
        let pair_if_set = |(name, value): (&str, Option<OsString>)| Some((name.to_owned(), value?));
        let environment_for_successor = for_successor.into_iter().filter_map(pair_if_set).collect();
        Ok(ServiceManagerConnection {
            watchdog_period: watchdog_period.filter(|_| notifier.is_some()),
            notifier,
            last_status: String::new(),
            environment_for_successor,
            inherited: InheritedAndUsedSockets::from_listen_variables(
                take_var("LISTEN_FDS"),
                take_var("LISTEN_PID"),
                take_var("LISTEN_FDNAMES"),
                &inherited_fds,
            )?,
        })
    }

    /// Takes the sockets that the service manager passed; empty from the second call on.
    pub(crate) fn take_inherited_sockets(&mut self) -> InheritedAndUsedSockets {
        std::mem::take(&mut self.inherited)
    }

    /// Environment variables that a successor in a live upgrade needs.
    pub(crate) fn environment_for_successor(&self) -> Vec<(String, OsString)> {
        self.environment_for_successor.clone()
    }

    /// Reports that another process has taken over.
    pub(crate) fn notify_main_pid(&self, pid: i64) {
        self.send_notification(&format!("MAINPID={pid}"));
    }

    /// Reports that all sockets are listening. In the background it also sends the PID, which is not that of the
    /// process that the service manager started.
    pub(crate) fn notify_ready(&self, in_background: bool) {
        let mut state = "READY=1".to_owned();
        if in_background {
            state.push_str(&format!("\nMAINPID={}", std::process::id()));
        }
        self.send_notification(&state);
    }

    /// Sends the text that `systemctl status` shows, if it has changed.
    pub(crate) fn notify_status_if_changed(&mut self, exports: usize, iothreads: usize) {
        let Some(notifier) = &self.notifier else {
            return;
        };
        let status = format!(
            "STATUS=serving {}, on {}",
            count_with_noun(exports, "export"),
            count_with_noun(iothreads, "iothread")
        );
        if status != self.last_status && notifier.try_send(&status) {
            self.last_status = status;
        }
    }

    /// Reports that shutdown has begun.
    pub(crate) fn notify_stopping(&self) {
        self.send_notification(
            "STOPPING=1\nSTATUS=finishing requests in flight, and flushing disks",
        );
    }

    /// Creates the watchdog, if the service manager has enabled it.
    pub(crate) fn new_watchdog(&self) -> Option<IothreadWatchdog> {
        self.watchdog_period.map(IothreadWatchdog::new)
    }

    /// Sends the keep-alive ping of the watchdog.
    pub(crate) fn send_keep_alive(&self) {
        if let Some(notifier) = &self.notifier {
            // If the service manager does not read its socket, nothing can be done.
            notifier.try_send("WATCHDOG=1");
        }
    }

    /// Sends a notification that must arrive, unless there is no service manager.
    fn send_notification(&self, state: &str) {
        if let Some(notifier) = &self.notifier {
            notifier.send(state);
        }
    }
}

/// A number and what it counts: `1 export`, `2 exports`.
fn count_with_noun(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// Reads a variable and removes it from the environment.
///
/// # Safety
/// The process has one thread.
unsafe fn take_environment_variable(name: &str) -> Option<OsString> {
    let value = std::env::var_os(name)?;
    // SAFETY: no other thread reads or writes the environment, as the caller guarantees.
    unsafe { std::env::remove_var(name) };
    Some(value)
}
