//! `--daemonize`: to the background once everything is started.
//!
//! The process forks before it has threads. The parent stays until the child says that it is
//! ready, so that a script may go on when the command returns, and fails when the child fails.

use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::ManuallyDrop;

/// The child's side: to be told when all is ready.
pub(crate) struct Daemonized {
    /// Closed by [`Daemonized::ready`] or else by the end of the process: the parent leaves when it
    /// is, and must not before it is said what was wrong.
    parent: ManuallyDrop<File>,
}

/// What the child writes when it is ready.
const READY: [u8; 1] = [1];

/// Forks. Returns in the child; the parent leaves with the child's success or failure.
pub(crate) fn fork() -> io::Result<Daemonized> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // SAFETY: the process has one thread, so the child's memory is whole.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(reader);
            rustix::process::setsid()?;
            Ok(Daemonized {
                parent: ManuallyDrop::new(writer.into()),
            })
        }
        _ => {
            drop(writer);
            let mut answer = [0];
            let ready = File::from(reader).read_exact(&mut answer).is_ok() && answer == READY;
            // The child has said on stderr what was wrong.
            std::process::exit(i32::from(!ready));
        }
    }
}

impl Daemonized {
    /// All is started: lets go of the terminal and of the folder, and the parent go.
    pub fn ready(mut self) -> io::Result<()> {
        let null = File::options().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
        rustix::process::chdir("/")?;
        self.parent.write_all(&READY)?;
        drop(ManuallyDrop::into_inner(self.parent));
        Ok(())
    }
}
