//! Commands that move and clear blocks.

use block::Op;
use engine::Errno;
use scsi::{Status, UnitOptions};

use crate::rig::{BLOCK, BLOCKS, Rig, cdb10, cdb16, options, pattern};

const MIB: u64 = 1 << 20;

#[test]
fn every_length_of_read_and_write_moves_the_same_blocks() {
    let mut rig = Rig::plain();
    let writes: [&[u8]; 4] = [
        &[0x0a, 0, 1, 2, 3, 0],
        &cdb10(0x2a, 0, 0x102, 3),
        &[0xaa, 0, 0, 0, 1, 2, 0, 0, 0, 3, 0, 0],
        &cdb16(0x8a, 0, 0x102, 3),
    ];
    let reads: [&[u8]; 4] = [
        &[0x08, 0, 1, 2, 3, 0],
        &cdb10(0x28, 0, 0x102, 3),
        &[0xa8, 0, 0, 0, 1, 2, 0, 0, 0, 3, 0, 0],
        &cdb16(0x88, 0, 0x102, 3),
    ];
    for (seed, write) in (1..).zip(writes) {
        let data = pattern(seed, 3);
        rig.good(write, &data);
        for read in reads {
            assert_eq!(rig.data(read), data);
        }
        assert_eq!(rig.disk[0x102 * BLOCK..0x105 * BLOCK], data);
    }
}

#[test]
fn a_length_of_zero_moves_nothing_except_in_6_byte_commands() {
    let mut rig = Rig::plain();
    let most = rig.exchange(3, &[0x08, 0, 0, 0, 0, 0], &[], 1 << 20);
    assert_eq!(most.data.len(), 256 * BLOCK);
    rig.asked.clear();
    let end = BLOCKS as u32;
    for opcode in [0x28, 0x2a, 0x2e, 0x2f] {
        rig.good(&cdb10(opcode, 0, 0, 0), &[]);
        rig.good(&cdb10(opcode, 0, end, 0), &[]);
        rig.refused(&cdb10(opcode, 0, end + 1, 0), &[], 5, 0x2100);
        rig.refused(&cdb10(opcode, 0, u32::MAX, 0), &[], 5, 0x2100);
    }
    for opcode in [0x88, 0x8a, 0x8b, 0x8e, 0x8f] {
        rig.good(&cdb16(opcode, 0, 0, 0), &[]);
        rig.refused(&cdb16(opcode, 0, u64::MAX, 0), &[], 5, 0x2100);
    }
    assert_eq!(rig.asked, []);
}

#[test]
fn accesses_beyond_the_end_are_refused() {
    let mut rig = Rig::plain();
    let end = BLOCKS;
    for opcode in [0x88, 0x8a, 0x8b, 0x8e, 0x8f, 0x90, 0x91, 0x93] {
        for (lba, blocks) in [
            (end, 1),
            (end - 1, 2),
            (0, BLOCKS as u32 + 1),
            (u64::MAX, 1),
            (u64::MAX, u32::MAX),
            (1 << 63, 1),
        ] {
            rig.refused(&cdb16(opcode, 0, lba, blocks), &[], 5, 0x2100);
        }
    }
    assert_eq!(rig.asked, []);
    rig.good(&cdb16(0x8a, 0, end - 1, 1), &[9; BLOCK]);
    assert_eq!(rig.data(&cdb16(0x88, 0, end - 1, 1)), [9; BLOCK]);
}

#[test]
fn fua_writes_are_stable_and_fua_reads_flush_first() {
    let mut rig = Rig::plain();
    rig.good(&cdb10(0x2a, 0x18, 5, 1), &[1; BLOCK]);
    rig.good(&cdb10(0x2a, 0x10, 5, 1), &[1; BLOCK]);
    assert_eq!(rig.data(&cdb10(0x28, 0x08, 5, 1)), [1; BLOCK]);
    let expected = [
        (Op::Write, true, 2560, 512),
        (Op::Write, false, 2560, 512),
        (Op::Flush, false, 0, 0),
        (Op::Read, false, 2560, 512),
    ];
    assert_eq!(rig.asked, expected);
    let short = rig.exchange(3, &cdb10(0x28, 0x08, 5, 1), &[], 100);
    assert_eq!((short.status, short.transferred), (Status::Good, 100));
}

#[test]
fn a_read_into_smaller_buffers_is_truncated() {
    for (room, requests) in [(0, 0), (100, 1), (512, 1), (1024, 1), (1300, 2), (2047, 2)] {
        let mut rig = Rig::plain();
        let data = pattern(3, 4);
        rig.good(&cdb10(0x2a, 0, 0, 4), &data);
        rig.asked.clear();
        let reply = rig.exchange(3, &cdb10(0x28, 0, 0, 4), &[], room);
        assert_eq!(reply.status, Status::Good);
        assert_eq!(reply.data, data[..room]);
        assert_eq!(rig.asked.len(), requests, "{room}");
    }
}

#[test]
fn a_write_with_too_little_data_is_refused() {
    let mut rig = Rig::plain();
    let data = pattern(1, 2);
    for cdb in [
        cdb10(0x2a, 0, 0, 2).as_slice(),
        &cdb10(0x2e, 2, 0, 2),
        &cdb10(0x2f, 2, 0, 2),
        &cdb16(0x8b, 0, 0, 2),
        &[0x55, 0x10, 0, 0, 0, 0, 0, 4, 0, 0],
    ] {
        rig.refused(cdb, &data[..1000], 5, 0x0e03);
    }
    assert_eq!(rig.asked, []);
    rig.refused(&cdb10(0x41, 0, 0, 2), &data, 5, 0x0e03);
    rig.refused(&cdb10(0x41, 0, 0, 2), &data[..100], 5, 0x0e03);
    let reply = rig.send(&cdb10(0x2a, 0, 0, 1), &data);
    assert_eq!((reply.status, reply.transferred), (Status::Good, 512));
}

#[test]
fn transfers_are_limited_as_announced() {
    let mut rig = Rig::plain();
    rig.unit.resize(1 << 40);
    rig.ask(&[0; 6]);
    let reply = rig.ask(&cdb16(0x88, 0, 0, 65_537));
    assert_eq!(reply.sense_code(), (5, 0x2400));
    assert_eq!(reply.sense[15..18], [0xc0, 0, 10], "TRANSFER LENGTH");
}

#[test]
fn write_same_fills_a_range() {
    let mut rig = Rig::plain();
    let block = pattern(4, 1);
    rig.good(&cdb10(0x41, 0, 100, 3000), &block);
    for at in [100, 1000, 3099] {
        assert_eq!(rig.data(&cdb10(0x28, 0, at, 1)), block);
    }
    assert_eq!(rig.disk[99 * BLOCK..100 * BLOCK], [0; BLOCK]);
    assert_eq!(rig.disk[3100 * BLOCK..3101 * BLOCK], [0; BLOCK]);
    let writes = rig.asked.iter().filter(|(op, ..)| *op == Op::Write);
    let lengths: Vec<_> = writes.map(|(.., len)| *len).collect();
    assert_eq!(lengths, [MIB, 1_536_000 - MIB], "a MiB at a time");
}

#[test]
fn write_same_of_zeroes_uses_write_zeroes() {
    let mut rig = Rig::plain();
    rig.disk.fill(1);
    rig.good(&cdb10(0x41, 0, 8, 8), &[0; BLOCK]);
    rig.good(&cdb10(0x41, 8, 16, 8), &[0; BLOCK]);
    rig.good(&cdb16(0x93, 9, 24, 4000), &[]);
    let zeroes = |unmap, at, len| (Op::WriteZeroes { unmap }, false, at, len);
    let expected = [
        zeroes(false, 4096, 4096),
        zeroes(true, 8192, 4096),
        zeroes(true, 12_288, MIB),
        zeroes(true, 12_288 + MIB, 2_048_000 - MIB),
    ];
    assert_eq!(rig.asked, expected);
    rig.asked.clear();
    rig.good(&cdb10(0x41, 8, 0, 1), &[5; BLOCK]);
    assert_eq!(rig.asked, [(Op::Write, false, 0, 512)]);
    rig.refused(&cdb10(0x41, 0, 0, 0), &[0; BLOCK], 5, 0x2400);
    rig.refused(&cdb10(0x41, 0x10, 0, 1), &[0; BLOCK], 5, 0x2400);
    rig.refused(&cdb10(0x41, 0x01, 0, 1), &[], 5, 0x2400);
}

fn unmap_list(ranges: &[(u64, u32)]) -> Vec<u8> {
    let len = u16::try_from(ranges.len() * 16).unwrap();
    let mut list = [&(len + 6).to_be_bytes()[..], &len.to_be_bytes(), &[0; 4]].concat();
    for (lba, blocks) in ranges {
        list.extend([&lba.to_be_bytes()[..], &blocks.to_be_bytes(), &[0; 4]].concat());
    }
    list
}

fn unmap_cdb(len: usize) -> [u8; 10] {
    let [high, low] = u16::try_from(len).unwrap().to_be_bytes();
    [0x42, 0, 0, 0, 0, 0, 0, high, low, 0]
}

#[test]
fn unmap_discards_the_ranges_of_its_list() {
    let mut rig = Rig::plain();
    let list = unmap_list(&[(0, 8), (100, 0), (BLOCKS - 2000, 2000)]);
    rig.good(&unmap_cdb(list.len()), &list);
    let end = (BLOCKS - 2000) * 512;
    let last = (Op::Discard, false, end, 1_024_000);
    assert_eq!(rig.asked, [(Op::Discard, false, 0, 4096), last]);
    rig.asked.clear();
    rig.good(&unmap_cdb(0), &[]);
    rig.good(&unmap_cdb(8), &[0; 8]);
    rig.refused(&unmap_cdb(7), &[0; 7], 5, 0x1a00);
    // A range that is not whole does not count; one that is not there is missed.
    let mut odd = unmap_list(&[(0, 8)]);
    odd[3] = 15;
    rig.good(&unmap_cdb(odd.len()), &odd);
    odd[3] = 32;
    rig.refused(&unmap_cdb(odd.len()), &odd, 5, 0x1a00);
    assert_eq!(rig.asked, []);
}

#[test]
fn unmap_does_all_or_nothing() {
    let mut rig = Rig::plain();
    for (ranges, code) in [
        (vec![(0, 8), (BLOCKS, 1)], 0x2100),
        (vec![(0, 8), (u64::MAX, 2)], 0x2100),
        (vec![(0, 2000), (0, 49)], 0x2600),
        (vec![(0, 0); 257], 0x2600),
    ] {
        let list = unmap_list(&ranges);
        rig.refused(&unmap_cdb(list.len()), &list, 5, code);
    }
    assert_eq!(rig.asked, []);
    let mut anchored = unmap_cdb(24);
    anchored[1] = 1;
    rig.refused(&anchored, &unmap_list(&[(0, 8)]), 5, 0x2400);
}

#[test]
fn a_disk_without_thin_provisioning_has_no_unmap() {
    let mut rig = Rig::thick();
    rig.refused(&unmap_cdb(24), &unmap_list(&[(0, 8)]), 5, 0x2000);
    rig.refused(&cdb10(0x41, 8, 0, 1), &[0; BLOCK], 5, 0x2400);
    rig.good(&cdb10(0x41, 0, 0, 1), &[0; BLOCK]);
}

#[test]
fn synchronize_cache_flushes() {
    let mut rig = Rig::plain();
    rig.good(&cdb10(0x35, 0, 0, 0), &[]);
    rig.good(&cdb16(0x91, 2, 5, 6), &[]);
    assert_eq!(rig.asked, [(Op::Flush, false, 0, 0); 2]);
    rig.good(&cdb10(0x34, 0, 0, 0), &[]);
    rig.good(&cdb16(0x90, 2, 5, 6), &[]);
    assert_eq!(rig.asked.len(), 2, "nothing is fetched before it is read");
}

#[test]
fn errors_of_the_node_become_sense_data() {
    for (errno, read, write) in [
        (Errno::IO, (0xb, 0x0006), (0xb, 0x0006)),
        (Errno::NODATA, (3, 0x1100), (3, 0x0c00)),
        (Errno::NOSPC, (7, 0x2707), (7, 0x2707)),
        (Errno::NOMEDIUM, (2, 0x3a00), (2, 0x3a00)),
    ] {
        let mut rig = Rig::plain();
        rig.error = Some(errno);
        let reply = rig.ask(&cdb10(0x28, 0, 0, 1));
        assert_eq!((reply.sense_code(), reply.transferred), (read, 0));
        for cdb in [cdb10(0x2a, 0, 0, 1), cdb10(0x41, 0, 0, 1)] {
            let reply = rig.send(&cdb, &[1; BLOCK]);
            assert_eq!(reply.sense_code(), write);
        }
        let written = rig.send(&cdb10(0x2e, 0, 0, 1), &[1; BLOCK]);
        assert_eq!(written.sense_code(), write, "it writes first");
        let flushed = rig.ask(&cdb10(0x35, 0, 0, 0));
        assert_eq!(flushed.sense_code(), write, "of a write cache");
        // These read first: that is what failed.
        let mut compare = cdb16(0x89, 0, 0, 0);
        compare[13] = 1;
        for (cdb, data) in [
            (cdb16(0x8f, 0, 0, 1), 0),
            (cdb16(0x8f, 2, 0, 1), BLOCK),
            (cdb16(0x8b, 0, 0, 1), BLOCK),
            (compare, 2 * BLOCK),
        ] {
            let reply = rig.send(&cdb, &vec![1; data]);
            assert_eq!(reply.sense_code(), read, "{cdb:x?}");
        }
    }
    let mut rig = Rig::plain();
    rig.error = Some(Errno::BADE);
    let reply = rig.ask(&cdb10(0x28, 0, 0, 1));
    assert_eq!(reply.status, Status::ReservationConflict);
    assert!(reply.sense.is_empty());
    rig.error = Some(Errno::DOM);
    let reply = rig.send(&cdb10(0x2e, 0, 0, 1), &[0; BLOCK]);
    assert_eq!(reply.status, Status::TaskSetFull);
}

#[test]
fn a_self_test_reads_a_block() {
    let mut rig = Rig::plain();
    rig.asked.clear();
    rig.good(&[0x1d, 0x04, 0, 0, 0, 0], &[]);
    assert_eq!(rig.asked, [(Op::Read, false, 0, BLOCK as u64)]);
    rig.good(&[0x1d, 0x10, 0, 0, 0, 0], &[]);
    assert_eq!(rig.asked.len(), 1, "nothing was to be tested");
    for cdb in [[0x1d, 0x24, 0, 0, 0, 0], [0x1d, 0x10, 0, 0, 8, 0]] {
        rig.refused(&cdb, &[], 5, 0x2400);
    }
    rig.error = Some(Errno::NODATA);
    let reply = rig.ask(&[0x1d, 0x04, 0, 0, 0, 0]);
    assert_eq!(reply.sense_code(), (3, 0x1100));
}

#[test]
fn blocks_of_4096_bytes_are_counted_as_such() {
    let mut rig = Rig::new(UnitOptions {
        logical_block_size: 4096,
        ..options()
    });
    let blocks = BLOCKS / 8;
    let data: Vec<u8> = (0..4096).map(|at| (at / 16) as u8).collect();
    rig.good(&cdb10(0x2a, 0, blocks as u32 - 1, 1), &data);
    assert_eq!(rig.asked, [(Op::Write, false, (blocks - 1) * 4096, 4096)]);
    rig.refused(&cdb10(0x28, 0, blocks as u32, 1), &[], 5, 0x2100);
    let capacity = rig.data(&cdb10(0x25, 0, 0, 0));
    assert_eq!(capacity, [0, 0, 1, 0xff, 0, 0, 0x10, 0]);
    rig.good(&cdb10(0x41, 0, 1, 300), &data);
    assert_eq!(rig.data(&cdb10(0x28, 0, 300, 1)), data);
}
