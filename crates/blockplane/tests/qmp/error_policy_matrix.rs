//! Every error policy with every kind of request and error: which are answered, and how, and which wait.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use test_support::deadline::{Deadline, eventually};

use crate::client::Client;
use crate::process::Folder;
use crate::request_driver::commands::Data;
use crate::request_driver::{BLOCK, DISCARD, FLUSH, IN, OUT, RequestDriver, WRITE_ZEROES};
use crate::{MIB, start, start_with_disk};

const READ_POLICIES: [&str; 3] = ["report", "ignore", "stop"];
const WRITE_POLICIES: [&str; 4] = ["report", "ignore", "stop", "enospc"];

const EIO: u32 = 5;
const EFAULT: u32 = 14;
const ENOSPC: u32 = 28;
const EROFS: u32 = 30;
const ETIMEDOUT: u32 = 110;
const EDQUOT: u32 = 122;

/// Each in a slot of its own; the first is the one that reads.
const REQUESTS: [u32; 5] = [IN, OUT, FLUSH, DISCARD, WRITE_ZEROES];

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

/// An export with policies for reads and other requests, in front of a node with faults of its own.
struct Disk {
    id: String,
    policies: [&'static str; 2],
    guest: RequestDriver,
}

impl Disk {
    /// What becomes of each of [`REQUESTS`] when it fails.
    fn expected(&self, errno: u32) -> [Outcome; REQUESTS.len()] {
        std::array::from_fn(|slot| expected(self.policies[usize::from(slot != 0)], errno))
    }

    fn inject(&self, client: &mut Client, rules: Value) {
        let arguments = json!({"node-name": self.id, "inject-error": rules});
        client.done("x-blkdebug-set", arguments);
    }

    /// Until each request is answered or waits; what became of each, and how the export is shown then.
    #[track_caller]
    fn settled(&mut self, client: &mut Client) -> ([Outcome; REQUESTS.len()], Value) {
        let deadline = Deadline::default();
        loop {
            // In this order: a parked request is not answered before it is resumed.
            let shown = client.export(&self.id);
            let outcomes = std::array::from_fn(|slot| match self.guest.is_answered(0, slot) {
                true => Outcome::Answered(self.guest.status(0, slot)),
                false => Outcome::Waits,
            });
            let waiting = outcomes.iter().filter(|one| **one == Outcome::Waits);
            if shown["waiting-requests"] == waiting.count() {
                return (outcomes, shown);
            }
            let id = &self.id;
            deadline.pause(format_args!(
                "{id}: each request is answered or waits: {outcomes:?}, {shown}"
            ));
        }
    }
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
    let (program, mut client) = start(&folder, &line);
    let mut disks: Vec<Disk> = Vec::new();
    for (id, policies) in all {
        let guest = RequestDriver::connect(&folder.join(&id), 1);
        disks.push(Disk {
            id,
            policies,
            guest,
        });
    }
    // The way on for those that wait, and how they are answered then.
    for (action, status) in [("retry", OK), ("report", IO_ERROR)] {
        for disk in &mut disks {
            let (id, wanted) = (disk.id.clone(), disk.expected(errno));
            disk.inject(&mut client, json!([{"errno": errno}]));
            for (slot, kind) in REQUESTS.into_iter().enumerate() {
                disk.guest.add(0, slot, kind, slot as u64, 7);
            }
            disk.guest.submit(0);
            let (outcomes, shown) = disk.settled(&mut client);
            assert_eq!(outcomes, wanted, "{REQUESTS:?} of {id}: {reason}");
            let io_status = match (outcomes.contains(&Outcome::Waits), errno) {
                (false, _) => "ok",
                (true, ENOSPC) => "nospace",
                (true, _) => "failed",
            };
            assert_eq!(shown["io-status"], io_status, "{id}");
            disk.inject(&mut client, json!([]));
            client.execute(&format!("block-export-resume id={id} action={action}"));
            for (slot, outcome) in outcomes.into_iter().enumerate() {
                disk.guest.watch(0, slot);
                if outcome == Outcome::Waits {
                    assert_eq!(disk.guest.status(0, slot), status, "{id}: {action}");
                }
                if outcome == Outcome::Waits && slot == 0 && action == "retry" {
                    assert_eq!(disk.guest.data(0, slot), [0; BLOCK], "{id}");
                }
            }
            let (_, shown) = disk.settled(&mut client);
            assert_eq!(shown["io-status"], "ok", "{id}: {action}");
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
fn errors_of_a_disk_follow_each_policy() {
    all_policies(EIO, "Input/output error");
    all_policies(EROFS, "Read-only file system");
    all_policies(ETIMEDOUT, "Connection timed out");
}

/// `enospc` is about the disk, and not about a quota, which is one user's.
#[test]
fn full_disk_and_exhausted_quota_follow_each_policy() {
    all_policies(ENOSPC, "No space left on device");
    all_policies(EDQUOT, "Disk quota exceeded");
}

#[test]
fn lost_guest_memory_is_reported_under_each_policy() {
    all_policies(EFAULT, "Bad address");
}

const GOOD: u8 = 0;
const CHECK_CONDITION: u8 = 2;
const RESERVATION_CONFLICT: u8 = 0x18;
const TASK_SET_FULL: u8 = 0x28;

/// Sense key and additional sense code.
type Sense = (u8, u16);

const ENODATA: u32 = 61;

/// The table of docs/scsi.md: status, sense key and code, which differ for reads in one case.
const SCSI_ERRORS: [(u32, u8, Option<Sense>); 13] = [
    (EIO, CHECK_CONDITION, Some((0xb, 0x0006))),
    // EAGAIN
    (11, CHECK_CONDITION, Some((0xb, 0x0006))),
    (ETIMEDOUT, CHECK_CONDITION, Some((0xb, 0x0006))),
    (ENODATA, CHECK_CONDITION, Some((3, 0x0c00))),
    (ENOSPC, CHECK_CONDITION, Some((7, 0x2707))),
    (EDQUOT, CHECK_CONDITION, Some((7, 0x2707))),
    // EFBIG
    (27, CHECK_CONDITION, Some((7, 0x2707))),
    (EROFS, CHECK_CONDITION, Some((7, 0x2700))),
    // ENOMEDIUM
    (123, CHECK_CONDITION, Some((2, 0x3a00))),
    // ENOMEM
    (12, CHECK_CONDITION, Some((4, 0x4400))),
    // EREMOTEIO
    (121, CHECK_CONDITION, Some((4, 0x4400))),
    // EBADE
    (52, RESERVATION_CONFLICT, None),
    // EDOM
    (33, TASK_SET_FULL, None),
];

/// The first queue for commands.
const QUEUE: u32 = 2;
const UNIT: (u8, u8) = (0, 0);

#[test]
fn scsi_disk_error_becomes_sense_data() {
    let line = "--blockdev file,node-name=n,filename=disk,discard=unmap \
        --blockdev blkdebug,node-name=b,image=n,discard=unmap \
        --export vhost-user-scsi,id=e,node-name=b,addr.type=unix,addr.path=e,writable=on";
    let (folder, program, mut client) = start_with_disk(line);
    let mut guest = RequestDriver::connect_scsi(&folder.join("e"), 1);
    eventually("the unit is ready", || {
        guest.command(QUEUE, UNIT, &[0; 6]) == GOOD
    });
    // UNMAP of one range of 8 blocks.
    let mut ranges = [0; 24];
    ranges[..4].copy_from_slice(&[0, 22, 0, 16]);
    ranges[19] = 8;
    let read = ([0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0], Data::In(BLOCK));
    let write = ([0x2a, 0, 0, 0, 0, 0, 0, 0, 8, 0], Data::Out(&[0; BLOCK]));
    let flush = ([0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], Data::None);
    let unmap = ([0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], Data::Out(&ranges));
    for (errno, status, sense) in SCSI_ERRORS {
        for (cdb, data) in [read, write, flush, unmap] {
            let set = "x-blkdebug-set node-name=b inject-error";
            client.execute(&format!("{set}.0.errno={errno}"));
            let answer = guest.carry_out(QUEUE, UNIT, &cdb, data);
            let found = (answer.sense.len() >= 14).then(|| {
                let code = u16::from_be_bytes([answer.sense[12], answer.sense[13]]);
                (answer.sense[2] & 0xf, code)
            });
            let sense = match (errno, data) {
                (ENODATA, Data::In(_)) => Some((3, 0x1100)),
                _ => sense,
            };
            assert_eq!(
                (answer.status, found),
                (status, sense),
                "error {errno} of {cdb:x?}: status, sense key and code"
            );
            // It is over with this command.
            client.execute(&format!("{set}=[]"));
            let answer = guest.carry_out(QUEUE, UNIT, &cdb, data);
            assert_eq!(answer.status, GOOD, "{cdb:x?} after error {errno}");
        }
    }
    program.stop();
}
