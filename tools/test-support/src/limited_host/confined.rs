//! Operations in the daemon's sandbox, each in a process of its own, because dropped privileges cannot be regained.
//!
//! A table names operations of a kind of thread. A test runs each of them, by running itself again.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

use sandbox::{AccessibleFiles, ThreadKind};

/// Environment of the other process: the operation.
const OPERATION: &str = "BLOCKPLANE_CONFINED_OPERATION";

/// A row of a table.
#[derive(Clone, Copy)]
pub struct Operation {
    /// Its name.
    pub name: &'static str,
    /// What is done in the other process, on threads that call [`confine`] and [`enter`].
    pub run: fn(),
    /// The other process ends by SIGABRT then.
    pub aborts: bool,
}

impl Operation {
    /// One that comes to its end.
    #[must_use]
    pub const fn new(name: &'static str, run: fn()) -> Self {
        let aborts = false;
        Operation { name, run, aborts }
    }

    /// One that ends the process.
    #[must_use]
    pub const fn aborting(name: &'static str, run: fn()) -> Self {
        let aborts = true;
        Operation { name, run, aborts }
    }

    fn ended_well(&self, output: &Output) -> bool {
        match self.aborts {
            true => output.status.signal() == Some(libc::SIGABRT),
            false => {
                let passed = String::from_utf8_lossy(&output.stdout).contains("1 passed");
                output.status.success() && passed
            }
        }
    }
}

/// Drops the privileges that the daemon drops at its start, on its control threads.
///
/// # Panics
/// If the kernel refuses, and in a process that has confined itself already.
pub fn confine() {
    let confined = sandbox::confine_process(AccessibleFiles::Any).expect("a sandbox");
    assert!(
        confined.is_complete(),
        "this kernel lacks something: {confined}"
    );
}

/// Runs `what` on an iothread, with what a control thread prepares. The calling thread is not confined: it may take down what it
/// has set up.
///
/// # Panics
/// If one of the two does, and as [`confine`].
pub fn on_an_iothread<T: Send>(prepare: impl FnOnce() -> T + Send, what: impl FnOnce(T) + Send) {
    on_thread("control", || {
        confine();
        let prepared = prepare();
        on_thread("IO io0", || {
            enter(ThreadKind::Iothread);
            what(prepared);
        });
    });
}

/// Runs `what` on a thread of this name.
///
/// # Panics
/// If `what` does.
pub fn on_thread(name: &str, what: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn_scoped(scope, what).expect("a thread");
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// As the daemon's threads of this kind begin.
///
/// # Panics
/// If the kernel refuses.
pub fn enter(thread: ThreadKind) {
    sandbox::confine_thread_if_process_is(thread).expect("a filter");
}

/// In the other process: does what it is for, and says so.
#[must_use]
pub fn is_inside(table: &[Operation]) -> bool {
    let Some(name) = std::env::var_os(OPERATION) else {
        return false;
    };
    let found = table.iter().find(|operation| *operation.name == *name);
    (found.expect("it is in the table").run)();
    true
}

fn run(test: &str, operation: &str) -> Output {
    let program = std::env::current_exe().expect("this program");
    Command::new(program)
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(OPERATION, operation)
        .output()
        .expect("this program runs")
}

/// Runs all operations of a table. `test`: the full name of the calling test, which begins with [`is_inside`].
///
/// # Panics
/// If one of them fails, or is ended.
pub fn all_are_allowed(test: &str, table: &[Operation]) {
    for operation in table {
        let output = run(test, operation.name);
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        let name = operation.name;
        assert!(
            operation.ended_well(&output),
            "{name}: {}\n{text}\n{errors}",
            output.status
        );
        // It has printed what it could not do.
        for line in errors
            .lines()
            .filter(|line| line.contains(" ... ignored, "))
        {
            crate::report::not_run(&format!("{name}: {line}"));
        }
    }
}
