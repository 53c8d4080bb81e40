//! Status bytes of requests, valid and invalid ones, and which of them reach the disk.

use block::Op;
use virtio_blk::DeviceOptions;

use crate::harness::{
    CAPACITY_SECTORS, DISCARD, FLUSH, GET_ID, IN, IOERR, MAX_DISCARD_SECTORS, OK, OUT, Rig, UNSUPP,
    UNTOUCHED, WRITE_ZEROES, range,
};

const END: u64 = CAPACITY_SECTORS;
/// Times 512 it is 2^64.
const WRAPS: u64 = 1 << 55;

/// The status of a request, and the block request that reaches the disk, if any: operation, offset and bytes.
type Answer = (u8, Option<(Op, u64, u64)>);

const NOTHING_TO_DO: Answer = (OK, None);
const REFUSED: Answer = (IOERR, None);
const UNSUPPORTED: Answer = (UNSUPP, None);

/// A request that reaches the disk, in sectors.
fn done(op: Op, sector: u64, sectors: u32) -> Answer {
    (OK, Some((op, sector * 512, u64::from(sectors) * 512)))
}

fn rig() -> Rig {
    Rig::new(DeviceOptions::default())
}

/// Asserts the answer to a request of this type, sector, data and buffer for the answer.
#[track_caller]
fn check_answer(rig: &mut Rig, asked: (u32, u64, &[u8], u32), expected: Answer) {
    let (kind, sector, out, in_len) = asked;
    let (status, submitted) = rig.answer(kind, sector, out, in_len);
    assert!(submitted.len() <= 1);
    let reached = submitted
        .first()
        .map(|request| (request.op, request.offset, request.len));
    let name = format!("type {kind:#x}, sector {sector:#x}, {} bytes", out.len());
    assert_eq!((status, reached), expected, "{name}");
}

#[test]
fn transfers_within_the_disk_reach_it_and_no_others() {
    let ok = |sector, bytes| (OK, Some((sector * 512, bytes)));
    let refused = (IOERR, None);
    for (sector, bytes, (status, reached)) in [
        (0, 512, ok(0, 512)),
        (3, 1536, ok(3, 1536)),
        (0, 1 << 20, ok(0, 1 << 20)),
        (END - 1, 512, ok(END - 1, 512)),
        (END - 1, 1024, refused),
        (END, 512, refused),
        (1, 1 << 20, refused),
        (u64::MAX, 512, refused),
        (u64::MAX / 512, 512, refused),
        (WRAPS, 512, refused),
        (WRAPS - 1, 512, refused),
        (WRAPS + 1, 512, refused),
        (0, 511, refused),
        (0, 1, refused),
        (0, 513, refused),
        (END - 1, 513, refused),
        // Nothing to do is done, where it would be allowed.
        (0, 0, (OK, None)),
        (END, 0, (OK, None)),
        (END + 1, 0, refused),
        (u64::MAX, 0, refused),
    ] {
        // The test allocator does not free memory.
        let mut rig = rig();
        let answer = |op| (status, reached.map(|(offset, len)| (op, offset, len)));
        check_answer(&mut rig, (IN, sector, &[], bytes), answer(Op::Read));
        let out = vec![1; bytes as usize];
        check_answer(&mut rig, (OUT, sector, &out, 0), answer(Op::Write));
    }
}

#[test]
fn transfers_are_whole_blocks_of_the_guest() {
    let rig = &mut Rig::new(DeviceOptions {
        logical_block_size: 4096,
        ..DeviceOptions::default()
    });
    check_answer(rig, (IN, 8, &[], 4096), done(Op::Read, 8, 8));
    check_answer(rig, (IN, 1, &[], 4096), REFUSED);
    check_answer(rig, (IN, 8, &[], 512), REFUSED);
    check_answer(rig, (OUT, 8, &[0; 512], 0), REFUSED);
    check_answer(rig, (OUT, 4, &[0; 4096], 0), REFUSED);
    for kind in [DISCARD, WRITE_ZEROES] {
        check_answer(rig, (kind, 0, &range(1, 8, 0), 0), REFUSED);
        check_answer(rig, (kind, 0, &range(8, 1, 0), 0), REFUSED);
    }
    let discarded = done(Op::Discard, 8, 8);
    check_answer(rig, (DISCARD, 0, &range(8, 8, 0), 0), discarded);
}

#[test]
fn discard_and_write_zeroes_take_one_good_segment() {
    let rig = &mut rig();
    let max = MAX_DISCARD_SECTORS;
    for (kind, op) in [
        (DISCARD, Op::Discard),
        (WRITE_ZEROES, Op::WriteZeroes { unmap: false }),
    ] {
        for (sector, sectors, flags, expected) in [
            (0, 1, 0, done(op, 0, 1)),
            (7, 9, 0, done(op, 7, 9)),
            (END - 1, 1, 0, done(op, END - 1, 1)),
            (0, max, 0, done(op, 0, max)),
            (0, max + 1, 0, REFUSED),
            (0, u32::MAX, 0, REFUSED),
            (END - 1, 2, 0, REFUSED),
            (END, 1, 0, REFUSED),
            (u64::MAX, 1, 0, REFUSED),
            (u64::MAX, u32::MAX, 0, REFUSED),
            (WRAPS, 1, 0, REFUSED),
            (WRAPS - 1, 1, 0, REFUSED),
            (4, 0, 0, NOTHING_TO_DO),
            (END, 0, 0, NOTHING_TO_DO),
            (END + 1, 0, 0, REFUSED),
            (0, 1, 2, UNSUPPORTED),
            (0, 1, 1 << 31, UNSUPPORTED),
            (0, 1, 3, UNSUPPORTED),
        ] {
            // The header's own sector is ignored.
            let out = range(sector, sectors, flags);
            check_answer(rig, (kind, u64::MAX, &out, 0), expected);
        }
        let two = range(0, 1, 0).repeat(2);
        for (bytes, expected) in [
            (0, REFUSED),
            (1, REFUSED),
            (15, REFUSED),
            (17, UNSUPPORTED),
            (32, UNSUPPORTED),
        ] {
            check_answer(rig, (kind, 0, &two[..bytes], 0), expected);
        }
    }
    let unmap = done(Op::WriteZeroes { unmap: true }, 8, 8);
    check_answer(rig, (WRITE_ZEROES, 0, &range(8, 8, 1), 0), unmap);
    check_answer(rig, (DISCARD, 0, &range(8, 8, 1), 0), UNSUPPORTED);
}

#[test]
fn an_unknown_request_type_is_unsupported() {
    let rig = &mut rig();
    let known = [IN, OUT, FLUSH, GET_ID, DISCARD, WRITE_ZEROES];
    let small = (0..=40).filter(|kind| !known.contains(kind));
    for kind in small.chain([0x100, 0x0100_0000, 0x7fff_ffff, u32::MAX, u32::MAX - 7]) {
        check_answer(rig, (kind, 0, &[], 0), UNSUPPORTED);
        check_answer(rig, (kind, u64::MAX, &[1; 512], 512), UNSUPPORTED);
    }
}

#[test]
fn the_barrier_bit_of_old_drivers_and_the_sector_of_a_flush_are_ignored() {
    let rig = &mut rig();
    let barrier = 1 << 31;
    check_answer(rig, (IN | barrier, 1, &[], 512), done(Op::Read, 1, 1));
    let written = done(Op::Write, 1, 1);
    check_answer(rig, (OUT | barrier, 1, &[1; 512], 0), written);
    check_answer(rig, (2 | barrier, 0, &[], 0), UNSUPPORTED);
    for (kind, sector) in [(FLUSH | barrier, 0), (FLUSH, 5), (FLUSH, u64::MAX)] {
        check_answer(rig, (kind, sector, &[], 0), done(Op::Flush, 0, 0));
    }
}

#[test]
fn a_read_only_disk_is_read_and_flushed_but_not_written() {
    let rig = &mut Rig::new(DeviceOptions {
        read_only: true,
        ..DeviceOptions::default()
    });
    check_answer(rig, (IN, 1, &[], 512), done(Op::Read, 1, 1));
    check_answer(rig, (FLUSH, 0, &[], 0), done(Op::Flush, 0, 0));
    check_answer(rig, (OUT, 1, &[1; 512], 0), REFUSED);
    check_answer(rig, (OUT, 1, &[], 0), REFUSED);
    check_answer(rig, (DISCARD, 0, &range(0, 1, 0), 0), REFUSED);
    check_answer(rig, (WRITE_ZEROES, 0, &range(0, 1, 0), 0), REFUSED);
}

#[test]
fn the_serial_ends_with_a_zero_byte_when_it_is_short() {
    for serial in ["", "a", "blockplane-19-bytes", "blockplane-20-bytes!"] {
        for buffer in [0, 1, 2, 5, 19, 20, 21, 64] {
            let mut rig = Rig::new(DeviceOptions {
                serial: serial.to_owned(),
                ..DeviceOptions::default()
            });
            let asked = rig.ask(GET_ID, u64::MAX, &[], buffer);
            rig.admit_all();
            assert!(rig.queue.take_has_unpublished());
            assert!(!rig.queue.take_has_unpublished(), "it is said once");
            assert_eq!(rig.used(), [(asked.head, buffer + 1)]);
            assert_eq!(rig.status(&asked), OK);

            let mut expected = vec![UNTOUCHED; buffer as usize];
            let mut id = serial.as_bytes().to_vec();
            if id.len() < 20 {
                id.push(0);
            }
            id.truncate(expected.len());
            expected[..id.len()].copy_from_slice(&id);
            if buffer > 0 {
                assert_eq!(rig.memory.read(asked.data, buffer as usize), expected);
            }
        }
    }
}

/// When there is no write cache is tested in `config_space.rs`.
#[test]
fn writes_are_stable_on_completion_when_there_is_no_write_cache() {
    for (request_merging, write_through) in [(true, true), (true, false), (false, true)] {
        let mut rig = Rig::new(DeviceOptions {
            request_merging,
            write_through,
            ..DeviceOptions::default()
        });
        for (kind, out, in_len, fua) in [
            (OUT, vec![1; 512], 0, write_through),
            (WRITE_ZEROES, range(0, 1, 0), 0, write_through),
            (WRITE_ZEROES, range(0, 1, 1), 0, write_through),
            (DISCARD, range(0, 1, 0), 0, false),
            (FLUSH, Vec::new(), 0, false),
            (IN, Vec::new(), 512, false),
        ] {
            let (_, submitted) = rig.answer(kind, 0, &out, in_len);
            assert_eq!(submitted[0].fua, fua, "type {kind}");
        }
    }
    // Also when the driver has changed the mode.
    let mut rig = rig();
    assert!(rig.device.write_config(32, &[0]));
    assert!(rig.answer(OUT, 0, &[1; 512], 0).1[0].fua);
}

#[test]
fn a_new_size_applies_from_the_next_batch_on() {
    let rig = &mut rig();
    check_answer(rig, (IN, END, &[], 512), REFUSED);
    rig.sink.disk_bytes += 512;
    assert!(rig.device.resize((END + 1) * 512));
    assert!(!rig.device.resize((END + 1) * 512), "it has that");
    assert_eq!(rig.device.config_space()[..8], (END + 1).to_le_bytes());
    check_answer(rig, (IN, END, &[], 512), done(Op::Read, END, 1));
    // What was taken goes on.
    let asked = rig.write(END, 1, 1);
    rig.admit_all();
    assert!(rig.device.resize(1023));
    rig.complete_all();
    assert_eq!((rig.used().len(), rig.status(&asked)), (1, OK));
    check_answer(rig, (IN, 0, &[], 512), done(Op::Read, 0, 1));
    check_answer(rig, (OUT, 1, &[1; 512], 0), REFUSED);
    check_answer(rig, (DISCARD, 0, &range(0, 2, 0), 0), REFUSED);
}

/// Each has its own error policy.
#[test]
fn write_with_a_larger_reply_buffer_follows_werror() {
    let mut rig = rig();
    rig.ask(OUT, 8, &[1; 512], 3);
    rig.read(64, 1);
    rig.admit_all();
    let are_reads = rig.sink.submitted.iter();
    let are_reads: Vec<bool> = are_reads.map(|one| rig.queue.is_read(one.slot)).collect();
    assert_eq!(are_reads, [false, true]);
}
