//! Snapshots of disks whose backups copy what guests change.

use super::*;
use crate::SNAPSHOT_OVER;
use crate::disk_file::allocation::Allocation;

/// A backup whose moment has come, and the snapshot of it.
fn rig_with_snapshot() -> (Rig, Arc<Node>) {
    let rig = Rig::backup(CopyExtent::Changes);
    rig.moment.begin();
    let snapshot = Node::new_snapshot("snapshot", &rig.source).unwrap();
    (rig, snapshot)
}

/// Reads these bytes, and returns them with the result.
fn read(
    io: &mut IoContext,
    disk: &AttachedDisk,
    offset: u64,
    len: usize,
) -> (Result<(), Errno>, &'static [u8]) {
    let data = submit(io, disk, (Op::Read, offset), vec![0; len], 3);
    (run_until_completed(io, 1)[0].result, data)
}

#[test]
fn snapshot_has_what_guests_have_changed_since() {
    let (rig, snapshot) = rig_with_snapshot();
    assert!(snapshot.read_only());
    let (mut io, mut guest) = (testing::io(), testing::io());
    let disk = attach(&mut guest, &rig.source);
    let shown = attach(&mut io, &snapshot);
    for block in [0, 3, 4, 100] {
        write(&mut guest, &disk, block * BLOCK, 1);
    }
    let zeroes = Op::WriteZeroes { unmap: true };
    submit_range(&mut guest, &disk, zeroes, 1 << 18..1 << 19);
    run_until_completed(&mut guest, 1);
    for (offset, len) in [(0, BYTES), (512, 5 << 12), (99 * BLOCK + 512, 1024)] {
        let (result, data) = read(&mut io, &shown, offset, len);
        assert_eq!(result, Ok(()));
        assert!(*data == vec![7; len], "{len} bytes at {offset}");
    }
    assert!(rig.content("source")[..4096] == [1; 4096]);
}

/// The read hangs in front of the disk, and later ones do not.
#[test]
fn a_write_waits_for_a_read_of_what_it_changes() {
    let (rig, snapshot) = rig_with_snapshot();
    let first_read_hangs = FaultRule {
        times: Some(1),
        ..testing::fault(Some(Op::Read), FaultAction::Hang)
    };
    rig.set_faults(0, [first_read_hangs]);
    let (mut io, mut guest) = (testing::io(), testing::io());
    let shown = attach(&mut io, &snapshot);
    let data = submit(&mut io, &shown, (Op::Read, 0), vec![0; 4096], 1);
    io.poll_tasks_and_submit();
    let disk = attach(&mut guest, &rig.source);
    submit(&mut guest, &disk, (Op::Write, 0), vec![1; 4096], 1);
    assert_eq!(run_until_idle(&mut guest), []);
    assert_eq!(rig.content("source")[0], 7);
    rig.set_faults(0, []);
    run_until_completed(&mut io, 1);
    assert!(data == [7; 4096]);
    run_until_completed(&mut guest, 1);
    assert_eq!(rig.content("source")[0], 1);
}

/// The read hangs in front of the target.
#[test]
fn a_write_does_not_wait_for_a_read_of_old_data_beside_it() {
    let (rig, snapshot) = rig_with_snapshot();
    rig.set_fault(1, Op::Read, FaultAction::Hang);
    let (mut io, mut guest) = (testing::io(), testing::io());
    let disk = attach(&mut guest, &rig.source);
    write(&mut guest, &disk, 0, 1);
    let shown = attach(&mut io, &snapshot);
    let data = submit(&mut io, &shown, (Op::Read, 0), vec![0; BYTES], 1);
    io.poll_tasks_and_submit();
    write(&mut guest, &disk, BLOCK, 2);
    rig.set_faults(1, []);
    assert_eq!(run_until_completed(&mut io, 1)[0].result, Ok(()));
    assert!(data == [7; BYTES]);
}

#[test]
fn reads_fail_when_the_backup_is_over_and_a_full_one_has_no_snapshot() {
    let (rig, snapshot) = rig_with_snapshot();
    let (mut io, shown) = testing::attached(&snapshot);
    assert_eq!(read(&mut io, &shown, 0, 4096).0, Ok(()));
    rig.copy.end();
    assert_eq!(read(&mut io, &shown, 0, 4096).0, Err(SNAPSHOT_OVER));
    assert_eq!(snapshot.allocations(0, BLOCK, 1), Err(Errno::IO));
    for rig in [rig, Rig::backup(CopyExtent::All)] {
        let refused = Node::new_snapshot("snapshot", &rig.source).err().unwrap();
        assert!(refused.to_string().contains("sync=none"), "{refused}");
    }
}

/// One guest has discarded data since the moment, and the disk had a hole before.
#[test]
fn holes_are_those_of_the_moment() {
    let rig = Rig::backup(CopyExtent::Changes);
    let (mut guest, disk) = testing::attached(&rig.source);
    let half = BYTES as u64 / 2;
    let zeroes = Op::WriteZeroes { unmap: true };
    submit_range(&mut guest, &disk, zeroes, half..2 * half);
    run_until_completed(&mut guest, 1);
    rig.moment.begin();
    let snapshot = Node::new_snapshot("snapshot", &rig.source).unwrap();
    submit_range(&mut guest, &disk, zeroes, 0..half);
    run_until_completed(&mut guest, 1);
    let on_disk = rig.source.allocations(0, 2 * half, 8).unwrap();
    assert!(on_disk.iter().all(|piece| !piece.allocated), "{on_disk:?}");
    let [data, hole] = [true, false].map(|allocated| Allocation {
        len: half,
        allocated,
    });
    assert_eq!(snapshot.allocations(0, 2 * half, 8), Ok(vec![data, hole]));
}

/// Clients ask for the whole disk, and again and again, of which every other block was copied.
#[test]
fn block_status_of_a_snapshot_collects_only_the_parts_asked_for() {
    let rig = Rig::backup(CopyExtent::Changes);
    let (mut guest, disk) = testing::attached(&rig.source);
    let bytes = BYTES as u64;
    let zero = |guest: &mut IoContext, range| {
        submit_range(guest, &disk, Op::WriteZeroes { unmap: true }, range);
        run_until_completed(guest, 1);
    };
    zero(&mut guest, 0..bytes);
    rig.moment.begin();
    let snapshot = Node::new_snapshot("snapshot", &rig.source).unwrap();
    for block in (0..bytes / BLOCK).step_by(2) {
        zero(&mut guest, block * BLOCK..(block + 1) * BLOCK);
    }
    let found = snapshot.allocations(0, bytes, 3).unwrap();
    let allocated: Vec<bool> = found.iter().map(|piece| piece.allocated).collect();
    assert_eq!(allocated, [true, false, true]);
    assert!(found.capacity() < 16, "{}", found.capacity());
}
