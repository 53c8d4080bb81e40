//! `--daemonize`: forks a child that runs in the background, while the parent waits until it is ready.
//!
//! The process forks before it has threads. The parent waits until the child is ready, so that scripts can rely on the
//! daemon when the command returns, and fails if the child fails.

use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::ManuallyDrop;

/// The child's connection to the waiting parent.
pub(crate) struct WaitingParentPipe {
    /// Pipe to the parent, which exits when it is closed. Closed only by [`WaitingParentPipe::detach_and_report_ready`] or
    /// by the end of the process: the parent must not exit before the child has printed its error.
    pipe_to_parent: ManuallyDrop<File>,
}

/// Written to the pipe when the child is ready.
const READY: [u8; 1] = [1];

/// Forks. Returns in the child; the parent exits with the child's success or failure.
pub(crate) fn fork_and_await_child_in_parent() -> io::Result<WaitingParentPipe> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // SAFETY: the process has one thread, so no lock is held in the child's copy of the memory.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(reader);
            rustix::process::setsid()?;
            Ok(WaitingParentPipe {
                pipe_to_parent: ManuallyDrop::new(writer.into()),
            })
        }
        _ => {
            drop(writer);
            let mut received = [0];
            let ready = File::from(reader).read_exact(&mut received).is_ok() && received == READY;
            // On failure the child has printed an error on stderr.
            std::process::exit(i32::from(!ready));
        }
    }
}

impl WaitingParentPipe {
    /// Reports success to the parent, after detaching from the terminal and the working directory.
    pub fn detach_and_report_ready(mut self) -> io::Result<()> {
        let null = File::options().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
        rustix::process::chdir("/")?;
        self.pipe_to_parent.write_all(&READY)?;
        drop(ManuallyDrop::into_inner(self.pipe_to_parent));
        Ok(())
    }
}
