//! A server to measure, as a process: started with its disks, connected to, ended by SIGTERM.
//!
//! blockplane takes the options of qemu-storage-daemon, so both get the same command line.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::error::{Error, Result};

/// To open its disks and listen; and to end after SIGTERM. Only a hanging server takes it.
const SERVER_LIMIT: Duration = Duration::from_secs(20);
/// For a server that crashes to be gone.
const EXPLAIN_LIMIT: Duration = Duration::from_secs(1);
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// Of the server's output in an error.
const MAX_LOG_BYTES: usize = 16 << 10;

/// What is behind a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// `null-co`: completes at once and stores nothing.
    Null,
    /// A file, through Linux AIO and past the host's page cache.
    File(PathBuf),
}

/// A disk to serve; guests cannot write to it, so that several servers may have the same file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// What is behind it.
    pub backing: Backing,
    /// Its queues.
    pub num_queues: u16,
}

/// A running server; killed when dropped without [`Server::stop`].
#[derive(Debug)]
pub struct Server {
    child: Child,
    command: String,
    log: File,
    // Sockets are in a short path: its length is limited to 107 bytes (unix(7)).
    folder: tempfile::TempDir,
}

impl Server {
    /// Starts `program` with one iothread for all of `disks`.
    ///
    /// # Errors
    /// [`Error::Io`] when it cannot be started.
    pub fn start(program: &Path, disks: &[Disk]) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("bench-")
            .tempdir()
            .map_err(Error::io("create a folder for sockets"))?;
        let log =
            tempfile::tempfile().map_err(Error::io("create a file for the server's output"))?;
        let output = || {
            log.try_clone()
                .map_err(Error::io("share a file with the server"))
        };
        let mut command = Command::new(program);
        command.args(["--object", "iothread,id=io"]);
        for (index, disk) in disks.iter().enumerate() {
            command
                .arg("--blockdev")
                .arg(blockdev(index, &disk.backing));
            command.arg("--export").arg(format!(
                "type=vhost-user-blk,id=e{index},node-name=d{index},iothread=io,num-queues={},\
                 addr.type=unix,addr.path={}",
                disk.num_queues,
                literal(&socket(folder.path(), index))
            ));
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(output()?)
            .stderr(output()?)
            .spawn()
            .map_err(Error::io(format!("start {}", program.display())))?;
        Ok(Server {
            child,
            command: abbreviated(&format!("{command:?}")),
            log,
            folder,
        })
    }

    /// Connects to the disk `index`, as soon as the server listens.
    ///
    /// # Errors
    /// [`Error::Server`] with its output when it ended or does not listen; [`Error::Io`].
    pub fn connect(&mut self, index: usize) -> Result<UnixStream> {
        let path = socket(self.folder.path(), index);
        let deadline = Instant::now() + SERVER_LIMIT;
        loop {
            match UnixStream::connect(&path) {
                Ok(stream) => return Ok(stream),
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::NotFound | ErrorKind::ConnectionRefused
                    ) => {}
                Err(error) => {
                    return Err(Error::io(format!("connect to {}", path.display()))(error));
                }
            }
            let ended = self
                .child
                .try_wait()
                .map_err(Error::io("wait for the server"))?;
            if let Some(status) = ended {
                return Err(self.failed(format!("ended by itself: {status}")));
            }
            if Instant::now() >= deadline {
                return Err(self.failed(format!("does not listen after {SERVER_LIMIT:?}")));
            }
            sleep(LOOK_INTERVAL);
        }
    }

    /// The process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it with SIGTERM.
    ///
    /// # Errors
    /// [`Error::Server`] when it does not end, or not with status 0.
    pub fn stop(mut self) -> Result<()> {
        if let Some(pid) = i32::try_from(self.pid()).ok().and_then(Pid::from_raw) {
            // An error says that it has ended already, which its status tells below.
            let _ = kill_process(pid, Signal::TERM);
        }
        let deadline = Instant::now() + SERVER_LIMIT;
        loop {
            let ended = self
                .child
                .try_wait()
                .map_err(Error::io("wait for the server"))?;
            match ended {
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    return Err(self.failed(format!("did not end well after SIGTERM: {status}")));
                }
                None if Instant::now() >= deadline => {
                    return Err(
                        self.failed(format!("has not ended {SERVER_LIMIT:?} after SIGTERM"))
                    );
                }
                None => sleep(LOOK_INTERVAL),
            }
        }
    }

    /// What is to be told of an `error` that our side of a connection saw: when the server has
    /// ended, that and what it said; else the error.
    #[must_use]
    pub fn explain(&mut self, error: Error) -> Error {
        // Its sockets are closed a moment before it can be waited for.
        let deadline = Instant::now() + EXPLAIN_LIMIT;
        while Instant::now() < deadline {
            if let Ok(Some(status)) = self.child.try_wait() {
                return self.failed(format!("ended by itself: {status}; {error}"));
            }
            sleep(LOOK_INTERVAL);
        }
        error
    }

    fn failed(&self, what: String) -> Error {
        // By position: the server writes at the offset that it shares with us.
        let mut bytes = vec![0; MAX_LOG_BYTES];
        let read = self.log.read_at(&mut bytes, 0).unwrap_or_default();
        Error::Server {
            what,
            command: self.command.clone(),
            log: String::from_utf8_lossy(&bytes[..read]).into_owned(),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if it has ended already, which is what we want.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn blockdev(index: usize, backing: &Backing) -> String {
    match backing {
        Backing::Null => {
            format!("driver=null-co,node-name=d{index},size=1073741824,read-only=on")
        }
        Backing::File(path) => format!(
            "driver=file,node-name=d{index},filename={},cache.direct=on,aio=native,read-only=on",
            literal(path)
        ),
    }
}

fn socket(folder: &Path, index: usize) -> PathBuf {
    folder.join(format!("{index}.sock"))
}

/// In key=value options a comma is written twice.
fn literal(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// A command line that an error can show: a hundred disks are all alike.
fn abbreviated(command: &str) -> String {
    const MAX_CHARS: usize = 500;
    let mut short: String = command.chars().take(MAX_CHARS).collect();
    if short.len() < command.len() {
        short.push_str(" ...");
    }
    short
}

/// The blockplane to measure: `given`, else `BLOCKPLANE_BIN`, else one that is built now, optimised
/// as this program is.
///
/// # Errors
/// [`Error::Unsuitable`] when there is none and it cannot be built.
pub fn blockplane(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = given {
        return Ok(path.to_owned());
    }
    if let Some(path) = std::env::var_os("BLOCKPLANE_BIN") {
        return Ok(PathBuf::from(path));
    }
    let ours = std::env::current_exe().map_err(Error::io("find this program"))?;
    // target/PROFILE/bench, or target/PROFILE/deps/TEST
    let profile = ours
        .ancestors()
        .skip(1)
        .find(|folder| folder.file_name().is_some_and(|name| name != "deps"));
    let (Some(profile), Some(target)) = (profile, profile.and_then(Path::parent)) else {
        return Err(Error::Unsuitable(
            "which blockplane? name it with --server PATH".to_owned(),
        ));
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args([
        "build",
        "--quiet",
        "--package",
        "blockplane",
        "--target-dir",
    ]);
    build.arg(target).current_dir(env!("CARGO_MANIFEST_DIR"));
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    match build.status() {
        Ok(status) if status.success() => Ok(profile.join("blockplane")),
        outcome => Err(Error::Unsuitable(format!(
            "blockplane cannot be built ({outcome:?}): name one with --server PATH"
        ))),
    }
}

/// A program of this name in `PATH`.
#[must_use]
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}

/// A folder of our own for images: in `given`, else beside this program, which is a real file
/// system where the one for temporary files may be memory.
///
/// # Errors
/// [`Error::Io`] when nothing can be created there.
pub fn image_folder(given: Option<&Path>) -> Result<tempfile::TempDir> {
    let beside_us = std::env::current_exe().ok();
    let parent = given
        .or_else(|| beside_us.as_deref().and_then(Path::parent))
        .unwrap_or(Path::new("."));
    tempfile::Builder::new()
        .prefix("bench-images-")
        .tempdir_in(parent)
        .map_err(Error::io(format!(
            "create a folder in {} (choose another with --folder)",
            parent.display()
        )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_ends_is_told_with_what_it_said() {
        let disk = Disk {
            backing: Backing::Null,
            num_queues: 1,
        };
        let mut server = Server::start(Path::new("/bin/ls"), &[disk]).unwrap();
        let error = server.connect(0).unwrap_err().to_string();
        assert!(error.contains("ended by itself"), "{error}");
        assert!(error.contains("unrecognized option"), "{error}");
        let explained = server.explain(Error::Protocol("reset".into())).to_string();
        assert!(explained.contains("ended by itself"), "{explained}");
        assert!(explained.contains("reset"), "{explained}");
    }

    #[test]
    fn commas_in_a_path_do_not_end_it() {
        let backing = Backing::File("/a,b".into());
        assert!(blockdev(3, &backing).contains("node-name=d3,filename=/a,,b,cache"));
    }
}
