//! Tests of a confined process. Confinement cannot be undone, so each test runs itself again as a process of
//! its own, and checks how that ends.

#![allow(clippy::unwrap_used, reason = "a test ends when it surprises")]

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use sandbox::{
    Access, AccessibleFiles, PathRule, ThreadKind, confine_process, confine_thread_if_process_is,
};

/// Set in the second process of a test: the folder that it may use.
const FOLDER: &str = "BLOCKPLANE_SANDBOX_TEST";

/// The test's folder in the second process; `None` in the first.
fn inside() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

/// Runs a test of this file as a process of its own, with further variables.
fn run(test: &str, variables: &[(&str, &str)]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    for name in ["disk", "other"] {
        fs::write(folder.path().join(name), "data").unwrap();
    }
    for name in ["sockets", "elsewhere"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(FOLDER, folder.path())
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}

/// Runs a test as a process of its own, which must pass.
fn succeeds(test: &str) {
    let output = run(test, &[]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{output:?}");
    assert!(text.contains("1 passed"), "{text}");
}

fn named(name: &str, what: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().name(name.into()).spawn(what);
    thread.unwrap().join().unwrap();
}

#[test]
fn only_what_was_configured_can_be_opened() {
    let Some(folder) = inside() else {
        return succeeds("only_what_was_configured_can_be_opened");
    };
    let path = |name: &str| folder.join(name);
    let (disk, sockets, missing) = (path("disk"), path("sockets"), path("missing"));
    let rules = [
        (&disk, Access::Write),
        (&sockets, Access::Sockets),
        (&missing, Access::Write),
    ]
    .map(|(path, access)| PathRule { path, access });
    let confined = confine_process(AccessibleFiles::Only(&rules)).unwrap();
    assert!(
        confined.is_complete(),
        "this kernel lacks something: {confined}"
    );
    assert!(
        confined
            .to_string()
            .starts_with("files: 2 paths (Landlock); "),
        "{confined}"
    );

    let write = |name| OpenOptions::new().write(true).open(path(name));
    write("disk").unwrap().write_all(b"more").unwrap();
    assert_eq!(fs::read(&disk).unwrap(), b"more");
    let denied = ErrorKind::PermissionDenied;
    assert_eq!(write("other").unwrap_err().kind(), denied);
    assert_eq!(File::open(path("other")).unwrap_err().kind(), denied);
    assert_eq!(File::create(path("new")).unwrap_err().kind(), denied);
    assert_eq!(fs::remove_file(&disk).unwrap_err().kind(), denied);
    // Not "denied": a mistyped path should be reported as missing.
    assert_eq!(
        File::open(&missing).unwrap_err().kind(),
        ErrorKind::NotFound
    );

    let _socket = UnixListener::bind(sockets.join("s")).unwrap();
    fs::remove_file(sockets.join("s")).unwrap();
    let elsewhere = UnixListener::bind(path("elsewhere/s"));
    assert_eq!(elsewhere.unwrap_err().kind(), denied);
    assert_eq!(File::create(sockets.join("f")).unwrap_err().kind(), denied);
    // Threads that start later are restricted as well.
    named("later", move || {
        let open = File::open(folder.join("other"));
        assert_eq!(open.unwrap_err().kind(), denied);
    });
}

#[test]
fn with_a_monitor_any_file_can_be_opened() {
    let Some(folder) = inside() else {
        return succeeds("with_a_monitor_any_file_can_be_opened");
    };
    confine_process(AccessibleFiles::Any).unwrap();
    assert_eq!(fs::read(folder.join("other")).unwrap(), b"data");
    File::create(folder.join("new")).unwrap();
}

#[test]
fn privileges_are_gone() {
    if inside().is_none() {
        return succeeds("privileges_are_gone");
    }
    let of = |key: &str| {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with(key)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    let had = u64::from_str_radix(&of("CapEff:"), 16).unwrap();
    let kept = [1_u32, 2, 14].map(|bit| 1 << bit).into_iter().sum::<u64>();
    let confined = confine_process(AccessibleFiles::Any).unwrap();
    assert_eq!(of("NoNewPrivs:"), "1");
    for key in ["CapEff:", "CapPrm:"] {
        assert_eq!(of(key), format!("{:016x}", had & kept));
    }
    assert_eq!(of("CapInh:"), format!("{:016x}", 0));
    assert_eq!(
        confined.to_string().contains("CAP_DAC_OVERRIDE"),
        had & 2 != 0,
        "{confined}"
    );
    named("IO io0", move || {
        confine_thread_if_process_is(ThreadKind::Iothread).unwrap();
        let status = capability_of_this_thread();
        assert_eq!(status, had & (1 << 14), "only to pin memory");
    });
}

/// Without a file, which an iothread cannot open.
fn capability_of_this_thread() -> u64 {
    rustix::thread::capabilities(None).unwrap().effective.bits()
}

/// Set in the second process of a test: the call that it makes.
const CALL: &str = "BLOCKPLANE_SANDBOX_TEST_CALL";

/// A confined thread, the system call that the sandbox ends it for, and what makes this call in a folder.
type ForbiddenCall = (&'static str, &'static str, fn(PathBuf));

const FORBIDDEN: [ForbiddenCall; 5] = [
    ("main", "mkdir", |folder| {
        let _ = fs::create_dir(folder.join("folder"));
    }),
    ("main", "execve", |_| {
        let nothing = [std::ptr::null()];
        // SAFETY: a path, and two lists without entries.
        unsafe { libc::execve(c"/bin/true".as_ptr(), nothing.as_ptr(), nothing.as_ptr()) };
    }),
    // Memory cannot become executable.
    ("main", "mprotect", |_| {
        let (read_write, page) = (libc::PROT_READ | libc::PROT_WRITE, 4096);
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new private mapping, which is not used.
        unsafe {
            let at = libc::mmap(std::ptr::null_mut(), page, read_write, private, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            libc::mprotect(at, page, read_write | libc::PROT_EXEC);
        }
    }),
    ("IO io0", "socketpair", |_| {
        confine_thread_if_process_is(ThreadKind::Iothread).unwrap();
        let _ = std::os::unix::net::UnixStream::pair();
    }),
    // An iothread may start threads.
    ("worker io0", "epoll_create1", |_| {
        confine_thread_if_process_is(ThreadKind::Iothread).unwrap();
        named("worker io0", || {
            confine_thread_if_process_is(ThreadKind::Worker).unwrap();
            let _ = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::empty());
        });
    }),
];

#[test]
fn a_forbidden_call_ends_the_process_with_a_report_of_the_thread_and_the_call() {
    if let Some(folder) = inside() {
        let call = std::env::var(CALL).unwrap();
        let mut calls = FORBIDDEN.into_iter();
        let (thread, _, make_call) = calls.find(|(_, name, _)| *name == call).unwrap();
        confine_process(AccessibleFiles::Any).unwrap();
        return named(thread, move || make_call(folder));
    }
    for (thread, call, _) in FORBIDDEN {
        let test = "a_forbidden_call_ends_the_process_with_a_report_of_the_thread_and_the_call";
        let output = run(test, &[(CALL, call)]);
        assert_eq!(output.status.signal(), Some(libc::SIGSYS), "{output:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        let wanted = format!("the thread '{thread}' make the system call {call} (");
        assert!(
            text.contains("blockplane: the sandbox does not let"),
            "{text}"
        );
        assert!(text.contains(&wanted), "{text}");
    }
}

#[test]
fn without_a_sandbox_threads_drop_no_privileges() {
    let Some(folder) = inside() else {
        return succeeds("without_a_sandbox_threads_drop_no_privileges");
    };
    confine_thread_if_process_is(ThreadKind::Worker).unwrap();
    File::open(folder.join("disk")).unwrap();
}

#[test]
fn root_can_switch_to_another_user() {
    if !rustix::process::geteuid().is_root() {
        test_support::report::not_run("only root can become another user");
        return;
    }
    if inside().is_none() {
        return succeeds("root_can_switch_to_another_user");
    }
    let unknown = sandbox::become_user("no-such-user")
        .unwrap_err()
        .to_string();
    assert_eq!(
        unknown,
        "--user: there is no user 'no-such-user' here; give the name or number of one that exists"
    );
    sandbox::become_user("nobody").unwrap();
    let user = rustix::process::getuid();
    assert!(!user.is_root() && rustix::process::geteuid() == user);
    assert!(!rustix::process::getegid().is_root());
    let back = sandbox::become_user("root").unwrap_err().to_string();
    assert!(back.contains("only root can"), "{back}");
    let confined = confine_process(AccessibleFiles::Any).unwrap().to_string();
    assert!(confined.contains("capabilities: none"), "{confined}");
}
