//! Every error policy with every kind of request and error: which are answered, and how, and which wait.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use test_support::deadline::{Deadline, eventually};

use crate::client::Client;
use crate::guest::commands::Data;
use crate::guest::{BLOCK, DISCARD, FLUSH, Guest, IN, OUT, WRITE_ZEROES};
use crate::process::Folder;
use crate::start;

const MIB: u64 = 1 << 20;

const READ_POLICIES: [&str; 3] = ["report", "ignore", "stop"];
const WRITE_POLICIES: [&str; 4] = ["report", "ignore", "stop", "enospc"];

const EIO: u32 = 5;
const EFAULT: u32 = 14;
const ENOSPC: u32 = 28;
const EROFS: u32 = 30;
const ETIMEDOUT: u32 = 110;
const EDQUOT: u32 = 122;

/// Each in a slot of its own; the first is the one that reads.
const REQUESTS: [(&str, u32); 5] = [
    ("read", IN),
    ("write", OUT),
    ("flush", FLUSH),
    ("discard", DISCARD),
    ("write zeroes", WRITE_ZEROES),
];

const OK: u8 = 0;
const IO_ERROR: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    Answered(u8),
    Waits,
}

/// The table of docs/faults.md.
fn expected(policy: &str, errno: u32) -> Outcome {
    match (policy, errno) {
        // It says that the guest's memory has gone, and nothing of the disk.
        (_, EFAULT) => Outcome::Answered(IO_ERROR),
        ("ignore", _) => Outcome::Answered(OK),
        ("stop", _) | ("enospc", ENOSPC) => Outcome::Waits,
        ("report" | "enospc", _) => Outcome::Answered(IO_ERROR),
        other => panic!("{other:?}"),
    }
}

/// What events call it.
fn action(policy: &str, errno: u32) -> &'static str {
    match expected(policy, errno) {
        Outcome::Answered(OK) => "ignore",
        Outcome::Answered(_) => "report",
        Outcome::Waits => "stop",
    }
}

/// An export with a policy, in front of a node with faults of its own.
struct Disk {
    id: String,
    policies: [&'static str; 2],
    guest: Guest,
}

impl Disk {
    /// The policy for a request of [`REQUESTS`].
    fn policy(&self, slot: usize) -> &'static str {
        self.policies[usize::from(slot != 0)]
    }

    fn waiting(&self, errno: u32) -> usize {
        let slots = 0..REQUESTS.len();
        slots
            .filter(|slot| expected(self.policy(*slot), errno) == Outcome::Waits)
            .count()
    }

    fn inject(&self, client: &mut Client, rules: Value) {
        let arguments = json!({"node-name": self.id, "inject-error": rules});
        client.done("x-blkdebug-set", arguments);
    }

    fn ask_all(&mut self) {
        for (slot, (_, kind)) in REQUESTS.into_iter().enumerate() {
            self.guest.add(0, slot, kind, slot as u64, 7);
        }
        self.guest.submit(0);
    }

    fn answered(&mut self) -> Vec<bool> {
        let slots = 0..REQUESTS.len();
        slots.map(|slot| self.guest.is_answered(0, slot)).collect()
    }

    /// Until each request is answered or waits; which are answered.
    #[track_caller]
    fn settled(&mut self, client: &mut Client) -> (Vec<bool>, Value) {
        let deadline = Deadline::default();
        loop {
            // In this order: a parked request is not answered before it is resumed.
            let shown = shown(client, &self.id);
            let answered = self.answered();
            let waiting = shown["waiting-requests"].as_u64().unwrap();
            let settled = answered.iter().filter(|answered| **answered).count();
            if settled as u64 + waiting == REQUESTS.len() as u64 {
                return (answered, shown);
            }
            let id = &self.id;
            deadline.pause(format_args!(
                "{id}: each request is answered or waits: {answered:?}, {shown}"
            ));
        }
    }
}

fn shown(client: &mut Client, id: &str) -> Value {
    let exports = client.done("query-block-exports", json!({}));
    let mut exports = exports.as_array().unwrap().iter();
    exports.find(|export| export["id"] == *id).unwrap().clone()
}

/// All policies for one error: the outcome, the events, and how parked requests resume.
fn all_policies(errno: u32, reason: &str) {
    let folder = Folder::new();
    let mut line = String::new();
    let mut all = Vec::new();
    for rerror in READ_POLICIES {
        for werror in WRITE_POLICIES {
            let id = format!("{rerror}.{werror}");
            folder.image(&format!("n.{id}"), MIB);
            line += &format!(
                " --blockdev file,node-name=n.{id},filename=n.{id},discard=unmap \
                 --blockdev blkdebug,node-name={id},image=n.{id},discard=unmap,inject-error.0.errno={errno} \
                 --export vhost-user-blk,id={id},node-name={id},addr.type=unix,addr.path={id},writable=on,rerror={rerror},werror={werror}"
            );
            all.push((id, [rerror, werror]));
        }
    }
    let (mut program, mut client) = start(&folder, &line);
    let mut disks: Vec<Disk> = Vec::new();
    for (id, policies) in all {
        let socket = folder.join(&id);
        program.wait_until_accepting(&socket);
        let guest = Guest::connect(&socket, 1);
        disks.push(Disk {
            id,
            policies,
            guest,
        });
    }
    // The way on for those that wait, and how they are answered then.
    for (action, status) in [("retry", OK), ("report", IO_ERROR)] {
        for disk in &mut disks {
            disk.inject(&mut client, json!([{"errno": errno}]));
            disk.ask_all();
            let (answered, shown) = disk.settled(&mut client);
            for (slot, (kind, _)) in REQUESTS.into_iter().enumerate() {
                let found = match answered[slot] {
                    true => Outcome::Answered(disk.guest.status(0, slot)),
                    false => Outcome::Waits,
                };
                let policy = disk.policy(slot);
                assert_eq!(
                    found,
                    expected(policy, errno),
                    "{kind} with policy {policy} of {}: {reason}",
                    disk.id
                );
            }
            let io_status = match (disk.waiting(errno), errno) {
                (0, _) => "ok",
                (_, ENOSPC) => "nospace",
                _ => "failed",
            };
            assert_eq!(shown["io-status"], io_status, "{}", disk.id);
            disk.inject(&mut client, json!([]));
            let resume = match action {
                "retry" => json!({"id": disk.id}),
                _ => json!({"id": disk.id, "action": action}),
            };
            client.done("block-export-resume", resume);
            for (slot, answered) in answered.into_iter().enumerate() {
                disk.guest.watch(0, slot);
                let wanted = match answered {
                    true => continue,
                    false => status,
                };
                assert_eq!(disk.guest.status(0, slot), wanted, "{}: {action}", disk.id);
            }
            let (_, shown) = disk.settled(&mut client);
            assert_eq!(shown["io-status"], "ok", "{}: {action}", disk.id);
        }
    }
    check_events(&mut client, &disks, errno, reason);
    let log = program.stop().stderr;
    assert!(!log.contains("panicked"), "{log}");
}

/// Checks that each export sent an event for reads and one for other requests, with the action taken.
fn check_events(client: &mut Client, disks: &[Disk], errno: u32, reason: &str) {
    let mut missing = BTreeMap::new();
    for disk in disks {
        for (operation, policy) in ["read", "write"].into_iter().zip(disk.policies) {
            missing.insert((disk.id.clone(), operation.to_owned()), policy);
        }
    }
    let deadline = Deadline::default();
    while !missing.is_empty() {
        deadline.check(format_args!("reports of {missing:?}"));
        let event = client.wait_for_event("BLOCK_IO_ERROR");
        let text = |key: &str| event[key].as_str().unwrap().to_owned();
        let key = (text("export"), text("operation"));
        // One a second: there may be a second one of the same requests.
        let Some(policy) = missing.remove(&key) else {
            continue;
        };
        assert_eq!(event["action"], action(policy, errno), "{event}");
        assert_eq!(event["nospace"], errno == ENOSPC, "{event}");
        assert_eq!(event["reason"], reason, "{event}");
        assert_eq!(event["node-name"], event["export"], "{event}");
    }
}

#[test]
fn io_error_follows_each_policy() {
    all_policies(EIO, "Input/output error");
}

#[test]
fn full_disk_follows_each_policy() {
    all_policies(ENOSPC, "No space left on device");
}

/// `enospc` is about the disk, and this about one user of it.
#[test]
fn exhausted_quota_follows_each_policy() {
    all_policies(EDQUOT, "Disk quota exceeded");
}

#[test]
fn read_only_error_follows_each_policy() {
    all_policies(EROFS, "Read-only file system");
}

#[test]
fn unreachable_disk_follows_each_policy() {
    all_policies(ETIMEDOUT, "Connection timed out");
}

#[test]
fn lost_guest_memory_is_reported_under_each_policy() {
    all_policies(EFAULT, "Bad address");
}

#[test]
fn rerror_rejects_enospc_and_scsi_rejects_policies() {
    let folder = Folder::new();
    let (program, mut client) = start(&folder, "--blockdev null-co,node-name=d");
    let export = |kind: &str, option: &str, policy: &str| {
        json!({"type": kind, "id": "e", "node-name": "d", option: policy,
            "addr": {"type": "unix", "path": "e"}})
    };
    for (kind, option, policy) in [
        ("vhost-user-blk", "rerror", "enospc"),
        ("vhost-user-blk", "werror", "nospace"),
        ("vhost-user-scsi", "rerror", "stop"),
        ("vhost-user-scsi", "werror", "stop"),
        ("vfio-user-lsi53c895a", "werror", "stop"),
    ] {
        let text = client.fails("block-export-add", export(kind, option, policy));
        assert!(text.contains(option), "{kind}: {text}");
    }
    program.stop();
}

const GOOD: u8 = 0;
const CHECK_CONDITION: u8 = 2;
const RESERVATION_CONFLICT: u8 = 0x18;
const TASK_SET_FULL: u8 = 0x28;

/// Sense key and additional sense code.
type Sense = (u8, u16);

/// The table of docs/scsi.md: status, sense key and code, which differ for reads in one case.
const SCSI_ERRORS: [(u32, &str, u8, Option<Sense>); 13] = [
    (EIO, "EIO", CHECK_CONDITION, Some((0xb, 0x0006))),
    (11, "EAGAIN", CHECK_CONDITION, Some((0xb, 0x0006))),
    (ETIMEDOUT, "ETIMEDOUT", CHECK_CONDITION, Some((0xb, 0x0006))),
    (61, "ENODATA", CHECK_CONDITION, Some((3, 0x0c00))),
    (ENOSPC, "ENOSPC", CHECK_CONDITION, Some((7, 0x2707))),
    (EDQUOT, "EDQUOT", CHECK_CONDITION, Some((7, 0x2707))),
    (27, "EFBIG", CHECK_CONDITION, Some((7, 0x2707))),
    (EROFS, "EROFS", CHECK_CONDITION, Some((7, 0x2700))),
    (123, "ENOMEDIUM", CHECK_CONDITION, Some((2, 0x3a00))),
    (12, "ENOMEM", CHECK_CONDITION, Some((4, 0x4400))),
    (121, "EREMOTEIO", CHECK_CONDITION, Some((4, 0x4400))),
    (52, "EBADE", RESERVATION_CONFLICT, None),
    (33, "EDOM", TASK_SET_FULL, None),
];

const TEST_UNIT_READY: [u8; 6] = [0; 6];
/// The first queue for commands.
const QUEUE: u32 = 2;
const UNIT: (u8, u8) = (0, 0);

#[test]
fn scsi_disk_error_becomes_sense_data_for_every_command() {
    let folder = Folder::new();
    folder.image("disk", MIB);
    let line = "--blockdev file,node-name=n,filename=disk,discard=unmap \
        --blockdev blkdebug,node-name=b,image=n,discard=unmap \
        --export vhost-user-scsi,id=e,node-name=b,addr.type=unix,addr.path=e,writable=on";
    let (mut program, mut client) = start(&folder, line);
    program.wait_until_accepting(&folder.join("e"));
    let mut guest = Guest::connect_scsi(&folder.join("e"), 1);
    eventually("the unit is ready", || {
        guest.command(QUEUE, UNIT, &TEST_UNIT_READY) == GOOD
    });
    let block = [0; BLOCK];
    // One range of 8 blocks.
    let mut ranges = [0; 24];
    ranges[..8].copy_from_slice(&[0, 22, 0, 16, 0, 0, 0, 0]);
    ranges[19] = 8;
    let commands: [(&str, &[u8], Data<'_>); 5] = [
        ("READ", &[0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0], Data::In(BLOCK)),
        (
            "WRITE",
            &[0x2a, 0, 0, 0, 0, 0, 0, 0, 8, 0],
            Data::Out(&block),
        ),
        (
            "SYNCHRONIZE CACHE",
            &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            Data::None,
        ),
        (
            "UNMAP",
            &[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0],
            Data::Out(&ranges),
        ),
        (
            "WRITE SAME",
            &[0x41, 0, 0, 0, 0, 0, 0, 0, 8, 0],
            Data::Out(&block[..512]),
        ),
    ];
    for (errno, name, status, sense) in SCSI_ERRORS {
        for (command, cdb, data) in commands {
            let rules = json!({"node-name": "b", "inject-error": [{"errno": errno}]});
            client.done("x-blkdebug-set", rules);
            let answer = guest.carry_out(QUEUE, UNIT, cdb, data);
            let found = (answer.sense.len() >= 14).then(|| {
                let code = u16::from_be_bytes([answer.sense[12], answer.sense[13]]);
                (answer.sense[2] & 0xf, code)
            });
            let sense = match (name, command) {
                ("ENODATA", "READ") => Some((3, 0x1100)),
                _ => sense,
            };
            assert_eq!(
                (answer.status, found),
                (status, sense),
                "{name} of {command}: status, sense key and code"
            );
            // It is over with this command.
            client.done(
                "x-blkdebug-set",
                json!({"node-name": "b", "inject-error": []}),
            );
            let answer = guest.carry_out(QUEUE, UNIT, cdb, data);
            assert_eq!(answer.status, GOOD, "{command} after {name}");
        }
    }
    drop(guest);
    program.stop();
}
