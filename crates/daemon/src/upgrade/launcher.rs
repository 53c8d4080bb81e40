//! A process that can start a program when this one no longer may.
//!
//! It is forked before the daemon gives its rights away (docs/security.md) and waits, without a thread, for a word on a
//! socket that nobody else has. It starts the program that it was made from, with the same arguments, environment and folder,
//! and nothing else: another program only where the daemon is not confined. It ends with the daemon.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use super::VARIABLE;
use super::channel::{Channel, START_TIME};

/// The name that ps(1) shows.
const NAME: &std::ffi::CStr = c"bp-launcher";

/// What is to be started.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// What was taken out of the environment, and is to be there again.
    pub environment: Vec<(String, OsString)>,
    /// Any other program may be started as well.
    pub any: bool,
    /// Nothing is written to where the daemon writes: it is in the background.
    pub silent: bool,
}

/// The way to that process.
pub(crate) struct Launcher(Mutex<Channel>);

/// The other end of its channel is a program that was started.
pub(crate) struct Started {
    pub pid: i64,
    pub channel: Channel,
}

impl Launcher {
    /// Forks.
    ///
    /// # Safety
    /// The process has one thread.
    pub unsafe fn fork(program: &Program) -> io::Result<Self> {
        let path = own_path()?;
        let (ours, theirs) = Channel::pair()?;
        // SAFETY: the process has one thread, so the child's memory is whole.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(ours);
                serve(&theirs, &path, program);
                std::process::exit(0);
            }
            _ => Ok(Launcher(Mutex::new(ours))),
        }
    }

    fn channel(&self) -> MutexGuard<'_, Channel> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the program, or another one.
    pub(crate) fn start(&self, other: Option<&Path>) -> Result<Started, String> {
        let gone = |error: io::Error| {
            format!(
                "the process that starts programs has gone ({error}): start the daemon anew instead"
            )
        };
        let path = match other {
            None => Value::Null,
            Some(path) => {
                let text = path.to_str();
                text.ok_or("the program's path is not UTF-8: give it another name")?
                    .into()
            }
        };
        let pair = Channel::pair().and_then(|(ours, theirs)| {
            ours.limit_waiting(START_TIME)?;
            Ok((ours, theirs))
        });
        let (ours, theirs) = pair.map_err(|error| {
            format!("no channel to a new program: {error}; see `ulimit -n` and `LimitNOFILE=`")
        })?;
        let channel = self.channel();
        channel
            .send_json(&json!({"start": path}), &[theirs.as_fd()])
            .map_err(gone)?;
        let (answer, _) = channel.recv_json().map_err(gone)?;
        match (answer["started"].as_i64(), answer["failed"].as_str()) {
            (Some(pid), _) => Ok(Started { pid, channel: ours }),
            (None, why) => Err(why.unwrap_or("it was not started").to_owned()),
        }
    }

    /// Ends the program that was started last, and says how it has ended.
    pub(crate) fn end(&self) -> Option<String> {
        let channel = self.channel();
        channel.send_json(&json!({"end": true}), &[]).ok()?;
        let (answer, _) = channel.recv_json().ok()?;
        Some(answer["ended"].as_str()?.to_owned())
    }
}

/// All that the process does.
fn serve(channel: &Channel, path: &Path, program: &Program) {
    prepare(channel, program.silent);
    let mut child = None;
    // An error: the daemon has gone.
    while let Ok((asked, fds)) = channel.recv_json() {
        let answer = match asked.get("start") {
            Some(other) => match fds.into_iter().next() {
                Some(fd) => start(other.as_str(), fd, path, program, &mut child),
                None => json!({"failed": "no channel came with the word to start"}),
            },
            None => json!({"ended": end(child.take())}),
        };
        if channel.send_json(&answer, &[]).is_err() {
            return;
        }
    }
}

/// Lets go of everything that is the daemon's.
fn prepare(channel: &Channel, silent: bool) {
    // SAFETY: the name lives as long as the call takes.
    unsafe { libc::prctl(libc::PR_SET_NAME, NAME.as_ptr()) };
    // Who tells all processes of the daemon's name to be upgraded does not mean this one.
    // SAFETY: the set is made valid before it is used, and the signal exists.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGUSR2);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
    }
    let own = channel.as_fd().as_raw_fd();
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten();
    let open = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<RawFd>().ok());
    for fd in open.filter(|fd| *fd > 2 && *fd != own).collect::<Vec<_>>() {
        // SAFETY: nothing in this process uses it from here on; an error says that it is closed already.
        unsafe { libc::close(fd) };
    }
    if silent
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

fn start(
    other: Option<&str>,
    fd: OwnedFd,
    path: &Path,
    program: &Program,
    child: &mut Option<Child>,
) -> Value {
    end(child.take());
    let path = match other {
        Some(_) if !program.any => {
            let why = "in the sandbox only the daemon's own program can be started: put the new one in its place \
                (mv), or start the daemon with --sandbox off";
            return json!({"failed": why});
        }
        Some(other) => Path::new(other),
        None => path,
    };
    let number = fd.as_raw_fd();
    if rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::empty()).is_err() {
        return json!({"failed": "its channel cannot be handed over"});
    }
    let mut args = std::env::args_os();
    let name = args.next();
    let mut command = Command::new(path);
    if let (Some(name), None) = (name, other) {
        command.arg0(name);
    }
    let environment = program
        .environment
        .iter()
        .map(|(name, value)| (name, value));
    command
        .args(args)
        .envs(environment)
        .env(VARIABLE, number.to_string());
    match command.spawn() {
        Ok(started) => {
            let pid = started.id();
            *child = Some(started);
            json!({"started": pid})
        }
        Err(error) => json!({"failed": format!("cannot start {}: {error}", path.display())}),
    }
}

fn end(child: Option<Child>) -> String {
    let Some(mut child) = child else {
        return "it was not started".to_owned();
    };
    // An error: it has ended already.
    let _ = child.kill();
    match child.wait() {
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    }
}

/// Where this program was found, as whoever started it named it: a link of that name may lead to a newer version by
/// then.
fn own_path() -> io::Result<PathBuf> {
    let resolved = std::env::current_exe()?;
    let id = |path: &Path| {
        let metadata = path.metadata().ok()?;
        Some((metadata.dev(), metadata.ino()))
    };
    let name = std::env::args_os().next().unwrap_or_default();
    let named = if name.as_bytes().contains(&b'/') {
        std::path::absolute(&name).ok()
    } else {
        in_search_path(&name)
    };
    let same = |named: &PathBuf| id(named).is_some() && id(named) == id(&resolved);
    Ok(named.filter(same).unwrap_or(resolved))
}

fn in_search_path(name: &OsStr) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    let mut found = std::env::split_paths(&folders).map(|folder| folder.join(name));
    found.find(|path| path.is_file())
}
