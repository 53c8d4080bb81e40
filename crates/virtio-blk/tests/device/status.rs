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

fn rig() -> Rig {
    Rig::new(DeviceOptions::default())
}

/// Asserts the status of a request, and which block request reaches the disk, if any.
#[track_caller]
fn check_answer(
    rig: &mut Rig,
    kind: u32,
    sector: u64,
    out: &[u8],
    in_len: u32,
    status: u8,
    op: Option<(Op, u64, u64)>,
) {
    let (answered, submitted) = rig.answer(kind, sector, out, in_len);
    assert_eq!(answered, status, "type {kind:#x}, sector {sector:#x}");
    let reached: Vec<_> = submitted
        .iter()
        .map(|request| (request.op, request.offset, request.len))
        .collect();
    assert_eq!(
        reached,
        Vec::from_iter(op),
        "type {kind:#x}, sector {sector:#x}"
    );
}

#[test]
fn transfers_within_the_disk_reach_it_and_no_others() {
    // Status, and offset and length of what reaches the disk.
    type Answer = (u8, Option<(u64, u64)>);
    let ok = |sector, bytes| (OK, Some((sector * 512, bytes)));
    let refused = (IOERR, None);
    let rows: &[(u64, u32, Answer)] = &[
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
    ];
    for &(sector, bytes, (status, reached)) in rows {
        // The test allocator does not free memory.
        let mut rig = rig();
        let op = |op| reached.map(|(offset, len)| (op, offset, len));
        check_answer(&mut rig, IN, sector, &[], bytes, status, op(Op::Read));
        let out = vec![1; bytes as usize];
        check_answer(&mut rig, OUT, sector, &out, 0, status, op(Op::Write));
    }
}

#[test]
fn transfers_are_whole_blocks_of_the_guest() {
    let mut rig = Rig::new(DeviceOptions {
        logical_block_size: 4096,
        ..DeviceOptions::default()
    });
    check_answer(&mut rig, IN, 8, &[], 4096, OK, Some((Op::Read, 4096, 4096)));
    check_answer(&mut rig, IN, 1, &[], 4096, IOERR, None);
    check_answer(&mut rig, IN, 8, &[], 512, IOERR, None);
    check_answer(&mut rig, OUT, 8, &[0; 512], 0, IOERR, None);
    check_answer(&mut rig, OUT, 4, &[0; 4096], 0, IOERR, None);
    for kind in [DISCARD, WRITE_ZEROES] {
        check_answer(&mut rig, kind, 0, &range(1, 8, 0), 0, IOERR, None);
        check_answer(&mut rig, kind, 0, &range(8, 1, 0), 0, IOERR, None);
    }
    let op = Op::Discard;
    check_answer(
        &mut rig,
        DISCARD,
        0,
        &range(8, 8, 0),
        0,
        OK,
        Some((op, 4096, 4096)),
    );
}

#[test]
fn a_failed_transfer_has_an_error_status() {
    let mut rig = rig();
    let (read, write) = (rig.read(0, 1), rig.write(8, 1, 1));
    rig.admit_all();
    for submitted in std::mem::take(&mut rig.sink.submitted) {
        rig.complete(&submitted, Err(engine::Errno::IO));
    }
    assert_eq!(
        rig.used(),
        [(read.head, 513), (write.head, 1)],
        "used.len does not depend on the outcome"
    );
    assert_eq!((rig.status(&read), rig.status(&write)), (IOERR, IOERR));
}

#[test]
fn a_flush_reaches_the_disk_whatever_its_sector_says() {
    let mut rig = rig();
    for sector in [0, 5, u64::MAX] {
        check_answer(&mut rig, FLUSH, sector, &[], 0, OK, Some((Op::Flush, 0, 0)));
    }
}

#[test]
fn discard_and_write_zeroes_take_one_good_segment() {
    let mut rig = rig();
    for kind in [DISCARD, WRITE_ZEROES] {
        let op = match kind {
            DISCARD => Op::Discard,
            _ => Op::WriteZeroes { unmap: false },
        };
        let good = |sector: u64, count: u32| Some((op, sector * 512, u64::from(count) * 512));
        let max = MAX_DISCARD_SECTORS;
        let rows: &[(Vec<u8>, u8, _)] = &[
            (range(0, 1, 0), OK, good(0, 1)),
            (range(7, 9, 0), OK, good(7, 9)),
            (range(END - 1, 1, 0), OK, good(END - 1, 1)),
            (range(0, max, 0), OK, good(0, max)),
            (range(0, max + 1, 0), IOERR, None),
            (range(0, u32::MAX, 0), IOERR, None),
            (range(END - 1, 2, 0), IOERR, None),
            (range(END, 1, 0), IOERR, None),
            (range(u64::MAX, 1, 0), IOERR, None),
            (range(u64::MAX, u32::MAX, 0), IOERR, None),
            (range(WRAPS, 1, 0), IOERR, None),
            (range(WRAPS - 1, 1, 0), IOERR, None),
            (range(4, 0, 0), OK, None),
            (range(END, 0, 0), OK, None),
            (range(END + 1, 0, 0), IOERR, None),
            (range(0, 1, 2), UNSUPP, None),
            (range(0, 1, 1 << 31), UNSUPP, None),
            (range(0, 1, 3), UNSUPP, None),
            (Vec::new(), IOERR, None),
            (range(0, 1, 0)[..15].to_vec(), IOERR, None),
            (range(0, 1, 0)[..1].to_vec(), IOERR, None),
            ([range(0, 1, 0), range(2, 1, 0)].concat(), UNSUPP, None),
            ([range(0, 1, 0), vec![0]].concat(), UNSUPP, None),
        ];
        for (out, status, op) in rows {
            // The header's own sector is ignored.
            check_answer(&mut rig, kind, u64::MAX, out, 0, *status, *op);
        }
    }
    let unmap = Op::WriteZeroes { unmap: true };
    check_answer(
        &mut rig,
        WRITE_ZEROES,
        0,
        &range(8, 8, 1),
        0,
        OK,
        Some((unmap, 4096, 4096)),
    );
    check_answer(&mut rig, DISCARD, 0, &range(8, 8, 1), 0, UNSUPP, None);
}

#[test]
fn an_unknown_request_type_is_unsupported() {
    let mut rig = rig();
    let known = [IN, OUT, FLUSH, GET_ID, DISCARD, WRITE_ZEROES];
    let others = (0..=40).filter(|kind| !known.contains(kind)).chain([
        0x100,
        0x0100_0000,
        0x7fff_ffff,
        u32::MAX,
        u32::MAX - 7,
    ]);
    for kind in others {
        check_answer(&mut rig, kind, 0, &[], 0, UNSUPP, None);
        check_answer(&mut rig, kind, u64::MAX, &[1; 512], 512, UNSUPP, None);
    }
}

#[test]
fn the_barrier_bit_of_old_drivers_is_ignored() {
    let mut rig = rig();
    let barrier = 1 << 31;
    check_answer(
        &mut rig,
        IN | barrier,
        1,
        &[],
        512,
        OK,
        Some((Op::Read, 512, 512)),
    );
    check_answer(
        &mut rig,
        OUT | barrier,
        1,
        &[1; 512],
        0,
        OK,
        Some((Op::Write, 512, 512)),
    );
    check_answer(
        &mut rig,
        FLUSH | barrier,
        0,
        &[],
        0,
        OK,
        Some((Op::Flush, 0, 0)),
    );
    check_answer(&mut rig, 2 | barrier, 0, &[], 0, UNSUPP, None);
}

#[test]
fn a_read_only_disk_is_read_and_flushed_but_not_written() {
    let mut rig = Rig::new(DeviceOptions {
        read_only: true,
        ..DeviceOptions::default()
    });
    check_answer(&mut rig, IN, 1, &[], 512, OK, Some((Op::Read, 512, 512)));
    check_answer(&mut rig, FLUSH, 0, &[], 0, OK, Some((Op::Flush, 0, 0)));
    check_answer(&mut rig, OUT, 1, &[1; 512], 0, IOERR, None);
    check_answer(&mut rig, OUT, 1, &[], 0, IOERR, None);
    check_answer(&mut rig, DISCARD, 0, &range(0, 1, 0), 0, IOERR, None);
    check_answer(&mut rig, WRITE_ZEROES, 0, &range(0, 1, 0), 0, IOERR, None);
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

#[test]
fn writes_are_stable_on_completion_when_there_is_no_write_cache() {
    const F_FLUSH: u64 = 1 << 9;
    const F_CONFIG_WCE: u64 = 1 << 11;
    for request_merging in [true, false] {
        let mut rig = Rig::new(DeviceOptions {
            request_merging,
            ..DeviceOptions::default()
        });
        let mut fua_of = |stable: bool| {
            let rows = [
                (OUT, vec![1; 512], stable),
                (WRITE_ZEROES, range(0, 1, 0), stable),
                (WRITE_ZEROES, range(0, 1, 1), stable),
                (DISCARD, range(0, 1, 0), false),
                (FLUSH, Vec::new(), false),
            ];
            for (kind, out, fua) in rows {
                let (_, submitted) = rig.answer(kind, 0, &out, 0);
                assert_eq!(submitted[0].fua, fua, "type {kind}");
            }
            let (_, submitted) = rig.answer(IN, 0, &[], 512);
            assert!(!submitted[0].fua);
            rig.device.clone()
        };
        let device = fua_of(false);
        device.set_features(F_CONFIG_WCE);
        fua_of(true);
        device.set_features(F_FLUSH | F_CONFIG_WCE);
        fua_of(false);
        assert!(device.write_config(32, &[0]));
        fua_of(true);
        assert!(device.write_config(32, &[1]));
        fua_of(false);
        device.set_features(0);
        fua_of(true);
        device.reset();
        fua_of(false);
    }
    let mut rig = Rig::new(DeviceOptions {
        write_through: true,
        ..DeviceOptions::default()
    });
    assert!(rig.answer(OUT, 0, &[1; 512], 0).1[0].fua);
}

#[test]
fn a_new_size_applies_from_the_next_batch_on() {
    let mut rig = rig();
    check_answer(&mut rig, IN, END, &[], 512, IOERR, None);
    rig.sink.disk_bytes += 512;
    assert!(rig.device.resize((END + 1) * 512));
    assert!(!rig.device.resize((END + 1) * 512), "it has that");
    assert_eq!(rig.device.config_space()[..8], (END + 1).to_le_bytes());
    let reached = Some((Op::Read, END * 512, 512));
    check_answer(&mut rig, IN, END, &[], 512, OK, reached);
    // What was taken goes on.
    let asked = rig.write(END, 1, 1);
    rig.admit_all();
    assert!(rig.device.resize(1023));
    rig.complete_all();
    assert_eq!((rig.used().len(), rig.status(&asked)), (1, OK));
    check_answer(&mut rig, IN, 0, &[], 512, OK, Some((Op::Read, 0, 512)));
    check_answer(&mut rig, OUT, 1, &[1; 512], 0, IOERR, None);
    check_answer(&mut rig, DISCARD, 0, &range(0, 2, 0), 0, IOERR, None);
}
