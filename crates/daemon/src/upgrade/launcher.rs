//! Launcher: a helper process that starts the new program of a live upgrade, which the sandboxed daemon cannot do.
//!
//! It is forked before the daemon drops privileges (docs/security.md) and waits for commands on a socket that only the
//! daemon has. It starts the program that it was forked from, with the same arguments, environment and working directory.
//! Any other program is refused if the daemon is sandboxed. It exits with the daemon, after it has killed a new program that
//! has not responded yet: one that hangs would not notice that its channel is closed.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use super::CHANNEL_VARIABLE;
use super::channel::UpgradeChannel;

/// Process name that ps(1) shows.
const PROCESS_NAME: &std::ffi::CStr = c"bp-launcher";

/// Settings of the launcher.
#[derive(Clone, Debug)]
pub(crate) struct LauncherOptions {
    /// Variables that the daemon removed from its environment, to be set again for the new program.
    pub environment: Vec<(String, OsString)>,
    /// Programs other than the daemon's own may be started.
    pub may_start_any_program: bool,
    /// Standard input and output are /dev/null: the daemon is in the background.
    pub background: bool,
}

/// Connection to the launcher process.
pub(crate) struct LauncherConnection(Mutex<UpgradeChannel>);

/// A new program, and the channel to it.
pub(crate) struct StartedProgram {
    pub pid: i64,
    pub channel: UpgradeChannel,
    /// Time after which it is given up if it stops in the middle of a message, or does not read one. Valid until *go*.
    pub stall_timeout: Duration,
}

/// Longest [`stall_timeout`](StartedProgram::stall_timeout): the service manager gets no keep-alive while a message stalls, and our unit
/// files tell it to wait for 30 s.
const MAX_STALL_TIMEOUT: Duration = Duration::from_secs(10);

impl LauncherConnection {
    /// Forks the launcher process.
    ///
    /// # Safety
    /// The process has one thread.
    pub unsafe fn fork(options: &LauncherOptions) -> io::Result<Self> {
        let path = own_program_path_as_invoked()?;
        let (ours, theirs) = UpgradeChannel::pair()?;
        // SAFETY: the process has one thread, so no lock is held in the child's copy of the memory.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(ours);
                detach_and_serve_commands(&theirs, &path, options);
                std::process::exit(0);
            }
            _ => Ok(LauncherConnection(Mutex::new(ours))),
        }
    }

    /// Locks the channel to the launcher process for a command and its reply.
    fn lock_channel(&self) -> MutexGuard<'_, UpgradeChannel> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the daemon's own program, or `other`. A message of it may stall for `response_timeout`, at most
    /// [`MAX_STALL_TIMEOUT`].
    pub(crate) fn start_program(
        &self,
        other: Option<&Path>,
        response_timeout: Duration,
    ) -> Result<StartedProgram, String> {
        let launcher_gone = |error: io::Error| {
            format!("the launcher process is gone ({error}): restart the daemon instead")
        };
        let path = match other {
            None => Value::Null,
            Some(path) => {
                let text = path.to_str();
                text.ok_or("the program's path is not UTF-8: rename it")?
                    .into()
            }
        };
        let stall_timeout = response_timeout.min(MAX_STALL_TIMEOUT);
        let pair = UpgradeChannel::pair().and_then(|(ours, theirs)| {
            ours.set_timeout(stall_timeout)?;
            Ok((ours, theirs))
        });
        let (ours, theirs) = pair.map_err(|error| {
            format!(
                "cannot create a channel to the new program: {error}; see `ulimit -n` and `LimitNOFILE=`"
            )
        })?;
        let channel = self.lock_channel();
        channel
            .send_json_and_fds(&json!({"start": path}), &[theirs.as_fd()])
            .map_err(launcher_gone)?;
        let (reply, _) = channel.recv_json_and_fds().map_err(launcher_gone)?;
        match (reply["started"].as_i64(), reply["failed"].as_str()) {
            (Some(pid), _) => Ok(StartedProgram {
                pid,
                channel: ours,
                stall_timeout,
            }),
            (None, reason) => Err(reason.unwrap_or("it was not started").to_owned()),
        }
    }

    /// Leaves the program that was started last alone when this process ends, however that happens: it reads its channel, so it
    /// either takes over or ends by itself.
    pub(crate) fn release_program(&self) {
        let channel = self.lock_channel();
        // Without the launcher process nothing would kill the program.
        let _ = channel
            .send_json_and_fds(&json!({"release": true}), &[])
            .and_then(|()| channel.recv_json_and_fds());
    }

    /// Kills the program that was started last, and returns its exit status as text.
    pub(crate) fn kill_program(&self) -> Option<String> {
        let channel = self.lock_channel();
        channel.send_json_and_fds(&json!({"end": true}), &[]).ok()?;
        let (reply, _) = channel.recv_json_and_fds().ok()?;
        Some(reply["ended"].as_str()?.to_owned())
    }
}

/// Main loop of the launcher process.
fn detach_and_serve_commands(channel: &UpgradeChannel, path: &Path, options: &LauncherOptions) {
    detach_from_daemon(channel, options.background);
    let mut child = None;
    let mut is_released = false;
    // On an error the daemon has exited.
    while let Ok((command, fds)) = channel.recv_json_and_fds() {
        let reply = match command.get("start") {
            Some(program) => match fds.into_iter().next() {
                Some(fd) => replace_child(program.as_str(), fd, path, options, &mut child),
                None => json!({"failed": "the start command came without a channel"}),
            },
            None if command.get("release").is_some() => json!({"released": true}),
            None => json!({"ended": kill_child(child.take())}),
        };
        is_released = command.get("release").is_some();
        if channel.send_json_and_fds(&reply, &[]).is_err() {
            break;
        }
    }
    if !is_released {
        kill_child(child);
    }
}

/// Makes the launcher process independent of the daemon: renames it, blocks SIGUSR2, and closes what the fork inherited.
fn detach_from_daemon(channel: &UpgradeChannel, background: bool) {
    // SAFETY: the name is static.
    unsafe { libc::prctl(libc::PR_SET_NAME, PROCESS_NAME.as_ptr()) };
    // A `pkill -USR2 blockplane` is meant for the daemon.
    // SAFETY: the set is made valid before it is used, and the signal exists.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGUSR2);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
    let channel_fd = channel.as_fd().as_raw_fd();
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
    let open_fds =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<RawFd>().ok());
    for fd in open_fds
        .filter(|fd| *fd > 2 && *fd != channel_fd)
        .collect::<Vec<_>>()
    {
        // SAFETY: nothing in this process uses it from here on; an error means that it is closed already.
        unsafe { libc::close(fd) };
    }
    if background
        && let Ok(null) = std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/null")
    {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}

/// Starts `other_program`, or the daemon's own, with a channel on `fd`, in place of an earlier child. Returns the reply
/// to the daemon.
fn replace_child(
    other_program: Option<&str>,
    fd: OwnedFd,
    own_path: &Path,
    options: &LauncherOptions,
    child: &mut Option<Child>,
) -> Value {
    kill_child(child.take());
    let path = match other_program {
        Some(_) if !options.may_start_any_program => {
            let reason = "in the sandbox only the daemon's own program can be started: replace its file with the new \
                program (mv), or start the daemon with --sandbox off";
            return json!({"failed": reason});
        }
        Some(other) => Path::new(other),
        None => own_path,
    };
    let fd_number = fd.as_raw_fd();
    if rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::empty()).is_err() {
        return json!({"failed": "cannot pass the channel to the new program"});
    }
    let mut args = std::env::args_os();
    let name = args.next();
    let mut command = Command::new(path);
    if let (Some(name), None) = (name, other_program) {
        command.arg0(name);
    }
    let environment = options
        .environment
        .iter()
        .map(|(name, value)| (name, value));
    command
        .args(args)
        .envs(environment)
        .env(CHANNEL_VARIABLE, fd_number.to_string());
    match command.spawn() {
        Ok(started) => {
            let pid = started.id();
            *child = Some(started);
            json!({"started": pid})
        }
        Err(error) => json!({"failed": format!("cannot start {}: {error}", path.display())}),
    }
}

/// Kills the child and returns its exit status as text.
fn kill_child(child: Option<Child>) -> String {
    let Some(mut child) = child else {
        return "it was not started".to_owned();
    };
    // An error means that it has already exited.
    let _ = child.kill();
    match child.wait() {
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    }
}

/// Path of this program, as it was given when it was started: by the time of an upgrade, a link of that name may point to
/// a newer version.
fn own_program_path_as_invoked() -> io::Result<PathBuf> {
    let resolved = std::env::current_exe()?;
    let file_id = |path: &Path| {
        let metadata = path.metadata().ok()?;
        Some((metadata.dev(), metadata.ino()))
    };
    let name = std::env::args_os().next().unwrap_or_default();
    let named = if name.as_bytes().contains(&b'/') {
        std::path::absolute(&name).ok()
    } else {
        find_in_search_path(&name)
    };
    let is_this_program =
        |named: &PathBuf| file_id(named).is_some() && file_id(named) == file_id(&resolved);
    Ok(named.filter(is_this_program).unwrap_or(resolved))
}

/// The first file of this name in the folders of `PATH`.
fn find_in_search_path(name: &OsStr) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    let mut candidates = std::env::split_paths(&folders).map(|folder| folder.join(name));
    candidates.find(|path| path.is_file())
}
