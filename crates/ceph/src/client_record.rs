//! The record of a client: its address, and the process of a host that it is.
//!
//! It must never name a dead process when the client is alive. So a host is named by the boot of its kernel, which a cloned disk or
//! another machine cannot repeat, a process by its number and its start in namespaces of process numbers and of time: within others
//! nothing can be said about it.

use std::fmt;
use std::fs;
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::process::{Pid, getpriority_process};

/// A client's address and its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientRecord {
    process: ProcessIdentity,
    /// Number of the process, for messages.
    pub(crate) pid: i32,
    /// The client's address as Ceph writes it.
    pub(crate) address: String,
}

/// What tells a process from all others.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ProcessIdentity {
    /// The boot of the kernel, a UUID (`/proc/sys/kernel/random/boot_id`).
    boot: String,
    /// The namespace of process numbers (`/proc/self/ns/pid`).
    pid_namespace: String,
    /// When it started, in ticks since the boot as its time namespace has it (proc_pid_stat(5), field 22).
    start_ticks: u64,
    /// The time namespace (`/proc/self/ns/time`); `None` on kernels without, and in records of programs that did not name it.
    time_namespace: Option<String>,
}

/// Comes before the name of a time namespace in the text of a record.
const TIME_NAMESPACE: &str = " time-namespace=";

/// Reads the identity of this process, while nothing denies it yet.
pub(crate) fn read_identity() {
    this_process();
}

fn this_process() -> Option<&'static ProcessIdentity> {
    static THIS: OnceLock<Option<ProcessIdentity>> = OnceLock::new();
    THIS.get_or_init(|| {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        Some(ProcessIdentity {
            boot: boot.trim().to_owned(),
            pid_namespace: namespace.to_str()?.to_owned(),
            start_ticks: ProcessState::parse(&stat)?.start_ticks,
            time_namespace: fs::read_link("/proc/self/ns/time")
                .ok()
                .and_then(|name| Some(name.to_str()?.to_owned())),
        })
    })
    .as_ref()
}

impl ClientRecord {
    /// This process; `None` if its identity cannot be read.
    pub(crate) fn this_process(address: String) -> Option<Self> {
        Some(Self {
            process: this_process()?.clone(),
            pid: own_pid(),
            address,
        })
    }

    /// Reads the record of the client with this address; `None` if it is not one of this version.
    pub(crate) fn parse(address: &str, text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let mut value = |key| words.next()?.strip_prefix(key)?.strip_prefix('=');
        Some(Self {
            process: ProcessIdentity {
                boot: value("boot")?.to_owned(),
                pid_namespace: value("pid-namespace")?.to_owned(),
                start_ticks: value("start-ticks")?.parse().ok()?,
                // It comes last, where programs that do not know it ignore it.
                time_namespace: text
                    .split_once(TIME_NAMESPACE)
                    .map(|(_, name)| name.to_owned()),
            },
            pid: value("pid")?.parse().ok()?,
            address: address.to_owned(),
        })
    }

    /// Whether it is a client of this process.
    pub(crate) fn is_this_process(&self) -> bool {
        this_process().is_some_and(|process| *process == self.process) && self.pid == own_pid()
    }

    /// Whether the client is certainly dead: a process of this host, in our namespaces, that has ended.
    pub(crate) fn is_dead(&self) -> bool {
        self.is_on_this_host() && has_ended(self.pid, self.process.start_ticks)
    }

    /// Whether the client is a process of this host, in our namespaces, that has not ended.
    pub(crate) fn is_alive(&self) -> bool {
        self.is_on_this_host() && !has_ended(self.pid, self.process.start_ticks)
    }

    fn is_on_this_host(&self) -> bool {
        this_process().is_some_and(|this| {
            let (of_client, ours) = (&self.process, this);
            of_client.boot == ours.boot
                && of_client.pid_namespace == ours.pid_namespace
                && of_client.time_namespace == ours.time_namespace
        })
    }
}

impl fmt::Display for ClientRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ProcessIdentity {
            boot,
            pid_namespace,
            start_ticks,
            time_namespace,
        } = &self.process;
        write!(
            f,
            "boot={boot} pid-namespace={pid_namespace} start-ticks={start_ticks} pid={}",
            self.pid
        )?;
        match time_namespace {
            Some(name) => write!(f, "{TIME_NAMESPACE}{name}"),
            None => Ok(()),
        }
    }
}

fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// Whether the process that had this number and start has ended. False also if it cannot be known.
fn has_ended(pid: i32, start_ticks: u64) -> bool {
    let Some(number) = Pid::from_raw(pid) else {
        return false;
    };
    // The sandbox forbids signals, and an administrator may have hidden processes of other users in /proc.
    if getpriority_process(Some(number)) == Err(Errno::SRCH) {
        return true;
    }
    let state = fs::read_to_string(format!("/proc/{pid}/stat"))
        .ok()
        .and_then(|stat| ProcessState::parse(&stat));
    // Without its file, the process of that number counts as the one that we look for.
    state.is_some_and(|state| state.is_zombie || state.start_ticks != start_ticks)
}

/// Fields of `/proc/PID/stat`.
struct ProcessState {
    /// It has ended, and its parent has not noticed.
    is_zombie: bool,
    start_ticks: u64,
}

impl ProcessState {
    fn parse(stat: &str) -> Option<Self> {
        // The second field, the name in parentheses, may have anything in it.
        let (_, fields) = stat.rsplit_once(") ")?;
        let mut fields = fields.split(' ');
        let is_zombie = matches!(fields.next()?, "Z" | "X");
        // Field 22; the state was field 3.
        let start_ticks = fields.nth(18)?.parse().ok()?;
        Some(Self {
            is_zombie,
            start_ticks,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use proptest::prelude::*;

    use super::*;

    fn record(pid: i32, start_ticks: u64) -> ClientRecord {
        let mut record = ClientRecord::this_process("192.0.2.1:0/1234".to_owned()).unwrap();
        record.pid = pid;
        record.process.start_ticks = start_ticks;
        record
    }

    fn start_ticks(pid: i32) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        ProcessState::parse(&stat).unwrap().start_ticks
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let address = "192.0.2.1:0/1234";
        let record = ClientRecord::this_process(address.to_owned()).unwrap();
        let read = ClientRecord::parse(address, &record.to_string());
        assert_eq!(read.as_ref(), Some(&record));
        assert!(record.is_this_process());
        assert!(!record.is_dead());
    }

    #[test]
    fn a_client_is_dead_only_as_long_as_host_namespace_and_start_agree() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let alive = record(pid, start_ticks(pid));
        assert!(alive.is_alive() && !alive.is_dead() && !alive.is_this_process());
        // Another process has the number now.
        assert!(record(pid, alive.process.start_ticks + 1).is_dead());
        child.kill().unwrap();
        test_support::deadline::eventually("a zombie", || alive.is_dead());
        child.wait().unwrap();
        assert!(alive.is_dead());
        for change in [
            |record: &mut ClientRecord| record.process.boot.push('0'),
            |record: &mut ClientRecord| record.process.pid_namespace.push('0'),
            |record: &mut ClientRecord| {
                let name = record.process.time_namespace.take();
                record.process.time_namespace = name.map(|name| name + "0").or(Some(String::new()));
            },
        ] {
            let mut elsewhere = alive.clone();
            change(&mut elsewhere);
            assert!(!elsewhere.is_dead() && !elsewhere.is_alive(), "{elsewhere}");
        }
    }

    #[test]
    fn a_name_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let fields = (4..=21).map(|field| field.to_string()).collect::<Vec<_>>();
        let stat = format!("7 (a) b (c) S {} 4711 23", fields.join(" "));
        let state = ProcessState::parse(&stat).unwrap();
        assert_eq!((state.is_zombie, state.start_ticks), (false, 4711));
    }

    proptest! {
        #[test]
        fn other_text_is_no_record(text in "[ -~]{0,100}") {
            prop_assume!(!text.starts_with("boot="));
            prop_assert_eq!(ClientRecord::parse("", &text), None);
        }
    }
}
