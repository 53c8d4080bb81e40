//! Snapshots of disks whose backups copy what guests change.

use std::sync::Arc;

use engine::{Completion, Errno, Op};

use super::{BLOCK, BYTES, Rig, fault_of, submit_copy, write};
use crate::copy::CopyExtent;
use crate::disk_file::allocation::Allocation;
use crate::{
    Aio, AttachedDisk, FaultAction, FaultRule, FaultRules, Faults, IoContext, Node, SNAPSHOT_OVER,
    testing,
};

fn rig() -> Rig {
    Rig::with_nodes(Aio::Threads, CopyExtent::Changes, |source, target| {
        (source, target)
    })
}

/// Reads these bytes, and returns them with the result.
fn read(
    io: &mut IoContext,
    disk: &AttachedDisk,
    offset: u64,
    len: usize,
) -> (Result<(), Errno>, Vec<u8>) {
    let data = testing::submit(io, disk, (Op::Read, offset), vec![0; len], 3);
    let done = testing::run_until_completed(io, 1);
    (done[0].result, data.to_vec())
}

#[test]
fn snapshot_has_what_guests_have_changed_since() {
    let rig = rig();
    rig.moment.begin();
    let snapshot = Node::new_snapshot("snapshot", &rig.source).unwrap();
    assert!(snapshot.read_only());
    let (mut io, mut guest) = (testing::io(), testing::io());
    let disk = testing::attach(&mut guest, &rig.source);
    let shown = testing::attach(&mut io, &snapshot);
    for block in [0, 3, 4, 100] {
        write(&mut guest, &disk, block * BLOCK, 1);
    }
    let zeroes = Op::WriteZeroes { unmap: true };
    submit_copy(&mut guest, &disk, zeroes, 1 << 18, 1 << 18);
    testing::run_until_completed(&mut guest, 1);
    for (offset, len) in [(0, BYTES), (512, 5 << 12), (99 * BLOCK + 512, 1024)] {
        let (result, data) = read(&mut io, &shown, offset, len);
        assert_eq!(result, Ok(()));
        assert!(
            data.iter().all(|byte| *byte == 7),
            "{len} bytes at {offset}"
        );
    }
    assert!(rig.content("source")[..4096] == [1; 4096]);
}

/// The read hangs in front of the disk, and later ones do not.
#[test]
fn a_write_waits_for_a_read_of_what_it_changes() {
    let first_read_hangs = FaultRules {
        rules: vec![FaultRule {
            begins: None,
            op: Some(Op::Read),
            bytes: None,
            times: Some(1),
            one_in: 1,
            action: FaultAction::Hang,
        }],
        seed: 1,
    };
    let faults = Faults::new(first_read_hangs);
    let rig = Rig::with_nodes(Aio::Threads, CopyExtent::Changes, |source, target| {
        let source = Node::new_filter("filter", &source, faults.clone(), false, true);
        (source, target)
    });
    rig.moment.begin();
    let snapshot = Node::new_snapshot("snapshot", &rig.source).unwrap();
    let (mut io, mut guest) = (testing::io(), testing::io());
    let shown = testing::attach(&mut io, &snapshot);
    let data = testing::submit(&mut io, &shown, (Op::Read, 0), vec![0; 4096], 1);
    io.poll_tasks_and_submit();
    let disk = testing::attach(&mut guest, &rig.source);
    testing::submit(&mut guest, &disk, (Op::Write, 0), vec![1; 4096], 1);
    let mut done: Vec<Completion> = Vec::new();
    for _ in 0..50 {
        guest.poll_tasks_and_submit();
        guest.reap_and_poll_tasks(&mut done);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(done, []);
    assert_eq!(rig.content("source")[0], 7);
    faults.release_hanging_and_set_rules(None);
    testing::run_until_completed(&mut io, 1);
    assert!(data == [7; 4096]);
    testing::run_until_completed(&mut guest, 1);
    assert_eq!(rig.content("source")[0], 1);
}

/// The read hangs in front of the target.
#[test]
fn a_write_does_not_wait_for_a_read_of_old_data_beside_it() {
    let mut faults = None;
    let rig = Rig::with_nodes(Aio::Threads, CopyExtent::Changes, |source, target| {
        let (target, hang) = fault_of(&target, Op::Read, None, FaultAction::Hang);
        faults = Some(hang);
        (source, target)
    });
    rig.moment.begin();
    let snapshot = Node::new_snapshot("snapshot", &rig.source).unwrap();
    let (mut io, mut guest) = (testing::io(), testing::io());
    let disk = testing::attach(&mut guest, &rig.source);
    write(&mut guest, &disk, 0, 1);
    let shown = testing::attach(&mut io, &snapshot);
    let data = testing::submit(&mut io, &shown, (Op::Read, 0), vec![0; BYTES], 1);
    io.poll_tasks_and_submit();
    write(&mut guest, &disk, BLOCK, 2);
    let _no_hang = faults.unwrap().release_and_prevent_hangs();
    assert_eq!(testing::run_until_completed(&mut io, 1)[0].result, Ok(()));
    assert!(data.iter().all(|byte| *byte == 7));
}

#[test]
fn reads_fail_when_the_backup_is_over() {
    let rig = rig();
    rig.moment.begin();
    let snapshot = Node::new_snapshot("snapshot", &rig.source).unwrap();
    let mut io = testing::io();
    let shown = testing::attach(&mut io, &snapshot);
    assert_eq!(read(&mut io, &shown, 0, 4096).0, Ok(()));
    rig.copy.end();
    assert_eq!(read(&mut io, &shown, 0, 4096).0, Err(SNAPSHOT_OVER));
    assert_eq!(snapshot.allocations(0, BLOCK, 1), Err(Errno::IO));
    let refused = Node::new_snapshot("snapshot", &rig.source).err().unwrap();
    assert!(refused.to_string().contains("sync=none"), "{refused}");
}

#[test]
fn a_full_backup_has_no_snapshot() {
    let rig = Rig::new(Aio::Threads);
    rig.moment.begin();
    let refused = Node::new_snapshot("snapshot", &rig.source).err().unwrap();
    assert!(refused.to_string().contains("sync=none"), "{refused}");
}

/// One guest has discarded data since the moment, and the disk had a hole before.
#[test]
fn holes_are_those_of_the_moment() {
    let rig = rig();
    let mut guest = testing::io();
    let disk = testing::attach(&mut guest, &rig.source);
    let half = BYTES as u64 / 2;
    let zeroes = Op::WriteZeroes { unmap: true };
    submit_copy(&mut guest, &disk, zeroes, half, half);
    testing::run_until_completed(&mut guest, 1);
    rig.moment.begin();
    let snapshot: Arc<Node> = Node::new_snapshot("snapshot", &rig.source).unwrap();
    submit_copy(&mut guest, &disk, zeroes, 0, half);
    testing::run_until_completed(&mut guest, 1);
    let on_disk = rig.source.allocations(0, 2 * half, 8).unwrap();
    assert!(on_disk.iter().all(|piece| !piece.allocated), "{on_disk:?}");
    let [data, hole] = [true, false].map(|allocated| Allocation {
        len: half,
        allocated,
    });
    assert_eq!(snapshot.allocations(0, 2 * half, 8), Ok(vec![data, hole]));
}
