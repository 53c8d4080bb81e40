//! The daemon from its start to its orderly end: creates objects, nodes and exports in the order of the command line, and serves.

use std::sync::Arc;

use options::{DaemonSettingsAndDirectives, Directive, ObjectOptions, Sandbox};

use crate::actions;
use crate::actions::node::StoppedAtStart;
use crate::control::MainThread;
use crate::disk::lock_retry::ImageLockRetry;
use crate::error::BoxError;
use crate::monitor;
use crate::process::daemonize::{self, WaitingParentPipe};
use crate::process::pidfile::PidFile;
use crate::process::signals::BlockedSignals;
use crate::process::{ProcessOptions, confine, raise_descriptor_limit};
use crate::service::ServiceManagerConnection;
use crate::state::secret::SecretFiles;
use crate::upgrade;
use crate::upgrade::channel::RESPONSE_TIMEOUT;
use crate::upgrade::launcher::{LauncherConnection, LauncherOptions};

/// Runs the daemon with the options of `qemu-storage-daemon`.
///
/// # Errors
/// An object cannot be created, or the last flush failed.
pub fn run_as_qemu_storage_daemon(
    options: &DaemonSettingsAndDirectives,
    service: ServiceManagerConnection,
) -> Result<(), BoxError> {
    // After a live upgrade the process is in the background already.
    let is_to_fork = options.daemonize && !upgrade::has_predecessor();
    let daemonized = is_to_fork
        .then(daemonize::fork_and_await_child_in_parent)
        .transpose()?;
    run_until_stopped(
        ProcessOptions {
            directives: &options.directives,
            pidfile: options.pidfile.as_deref(),
            metrics: options.metrics.as_ref(),
            confinement: &options.confinement,
            created_files: &[],
            background: options.daemonize,
        },
        daemonized,
        service,
        || (),
    )
}

/// Creates everything, calls `announce`, and serves until a signal or a monitor's client stops it. `Ok` means that every
/// acknowledged write is on stable storage.
///
/// # Errors
/// An object cannot be created, or the last flush failed.
pub fn run_in_foreground(
    process: ProcessOptions<'_>,
    service: ServiceManagerConnection,
    announce: impl FnOnce(),
) -> Result<(), BoxError> {
    run_until_stopped(process, None, service, announce)
}

/// Confines the process, creates or takes over everything, serves until it is to stop or has been upgraded, and
/// shuts down.
fn run_until_stopped(
    process: ProcessOptions<'_>,
    daemonized: Option<WaitingParentPipe>,
    service: ServiceManagerConnection,
    announce: impl FnOnce(),
) -> Result<(), BoxError> {
    raise_descriptor_limit();
    confine::become_user_if_set(&process)?;
    let launcher = fork_launcher(&process, &service);
    // Before the first thread, which inherits that.
    let signals = BlockedSignals::block()?;
    confine::enter_sandbox_if_on(&process)?;
    let mut control = MainThread::new_with_helper_threads(
        signals,
        service,
        monitor::qmp_interface,
        |control| control.begin_upgrade(None, RESPONSE_TIMEOUT, |_| ()),
        actions::image_resize::adopt_announced_size,
        actions::activation::new_main_thread_activator,
    )?;
    control.launcher = launcher;
    let started = if upgrade::has_predecessor() {
        start_from_handover_or_exit(&process, &mut control)
    } else {
        create_objects_write_pidfile_and_report_ready(&process, &mut control, daemonized, announce)
    };
    let served = started.map(|in_background| {
        control.notify_ready_run_and_notify_stopping(in_background);
        if control.upgraded.is_none() {
            tracing::info!("stopping: accepting no more requests, waiting for those in flight");
        }
    });
    if control.upgraded.is_some() {
        control.close_monitors_and_images_and_exit();
    }
    // Removed at the end of this function, when everything is done.
    let _pidfile = control.pidfile.take();
    // Also after an error: acknowledged writes are flushed.
    let shut_down = control.shut_down();
    match served {
        Err(error) if error.is::<StoppedAtStart>() => tracing::info!("{error}"),
        served => served?,
    }
    shut_down
}

/// Creates what the command line describes and the pidfile, reports readiness to the parent of a daemonized process, and calls
/// `announce`. Returns whether the daemon runs in the background.
fn create_objects_write_pidfile_and_report_ready(
    process: &ProcessOptions<'_>,
    control: &mut MainThread,
    daemonized: Option<WaitingParentPipe>,
    announce: impl FnOnce(),
) -> Result<bool, BoxError> {
    start_metrics_and_create_objects(process, control)?;
    // The path is relative to the folder that the daemon was started in; the process id is that of the forked child.
    let pidfile = process.pidfile.map(std::path::absolute).transpose()?;
    control.pidfile = pidfile
        .as_deref()
        .map(PidFile::lock_and_write)
        .transpose()?;
    let in_background = daemonized.is_some();
    if let Some(daemonized) = daemonized {
        daemonized.detach_and_report_ready()?;
    }
    announce();
    Ok(in_background)
}

/// Takes over from the old process of a live upgrade, or exits if that fails. Returns false: no child was forked here.
fn start_from_handover_or_exit(
    process: &ProcessOptions<'_>,
    control: &mut MainThread,
) -> Result<bool, BoxError> {
    actions::upgrade::restore::take_over_or_exit_if_successor(process, control);
    if process.background {
        rustix::process::chdir("/")?;
    }
    Ok(false)
}

/// Forks the process that starts the program of an upgrade later. Without it everything else works.
fn fork_launcher(
    process: &ProcessOptions<'_>,
    service: &ServiceManagerConnection,
) -> Option<Arc<LauncherConnection>> {
    let launch_options = LauncherOptions {
        environment: service.environment_for_successor(),
        may_start_any_program: process.confinement.sandbox.degree == Sandbox::Off,
        background: process.background,
    };
    // SAFETY: the process has one thread.
    let launcher = unsafe { LauncherConnection::fork(&launch_options) };
    if let Err(error) = &launcher {
        tracing::warn!(
            %error,
            advice = "see TasksMax= and `ulimit -u`",
            "cannot create the process that starts programs: the daemon cannot be upgraded in place"
        );
    }
    launcher.ok().map(Arc::new)
}

/// Creates what the command line describes, in its order.
fn start_metrics_and_create_objects(
    process: &ProcessOptions<'_>,
    control: &mut MainThread,
) -> Result<(), BoxError> {
    if let Some(addr) = process.metrics {
        control.start_metrics(addr, None)?;
    }
    let mut lock_retry = ImageLockRetry::default();
    for directive in process.directives {
        match directive {
            Directive::Object(ObjectOptions::Iothread(options)) => {
                control.objects.spawn_and_add_iothread(options)?
            }
            Directive::Object(ObjectOptions::Secret(options)) => control
                .objects
                .read_and_add_secret(options, SecretFiles::Any)?,
            Directive::Object(ObjectOptions::TlsCreds(options)) => control
                .objects
                .read_and_add_tls_creds(options, SecretFiles::Any)?,
            Directive::Object(ObjectOptions::AuthzList(options)) => {
                control.objects.add_authz_list(options)?
            }
            Directive::Object(ObjectOptions::ThrottleGroup(options)) => {
                control.objects.add_throttle_group(options)?
            }
            Directive::Blockdev(options) => {
                actions::node::open_and_add_node_retrying_locks(options, control, &mut lock_retry)?
            }
            Directive::Export(options) => {
                actions::export::create_and_start_export(options, &mut control.objects)?
            }
            Directive::NbdServer(options) => control
                .objects
                .start_nbd_server(options)
                .map_err(|failure| format!("--nbd-server: {failure}"))?,
            Directive::Chardev(options) => control
                .open_and_add_chardev(options)
                .map_err(|failure| format!("--chardev: {failure}"))?,
            Directive::Monitor(options) => control.add_monitor(options)?,
        }
    }
    Ok(())
}
