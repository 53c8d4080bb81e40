//! Commands that look at what is there: VERIFY, WRITE AND VERIFY, COMPARE AND WRITE, ORWRITE.

use block::Op;
use scsi::UnitOptions;

use crate::rig::{BLOCK, BLOCKS, Rig, cdb10, cdb16, options, pattern};

#[test]
fn verify_compares_bytes() {
    let mut rig = Rig::plain();
    let data = pattern(1, 6);
    rig.good(&cdb10(0x2a, 0, 10, 6), &data);
    rig.good(&cdb10(0x2f, 0, 10, 6), &[]);
    rig.good(&cdb10(0x2f, 0x10, 10, 6), &[]);
    rig.good(&cdb10(0x2f, 2, 10, 6), &data);
    let mut other = data.clone();
    other[1500] ^= 1;
    let reply = rig.send(&cdb10(0x2f, 2, 10, 6), &other);
    assert_eq!(reply.sense_code(), (0xe, 0x1d00));
    assert_eq!(reply.sense[0], 0xf0);
    assert_eq!(reply.sense[3..7], 1500u32.to_be_bytes());
    assert_eq!(reply.transferred, other.len() as u64);
    rig.refused(&cdb10(0x2f, 4, 10, 6), &data, 5, 0x2400);

    rig.good(&cdb10(0x41, 0, 20, 8), &data[..BLOCK]);
    rig.good(&cdb10(0x2f, 6, 20, 8), &data[..BLOCK]);
    rig.disk[27 * BLOCK + 5] ^= 1;
    let reply = rig.send(&cdb10(0x2f, 6, 20, 8), &data[..BLOCK]);
    assert_eq!(reply.sense_code(), (0xe, 0x1d00));
    assert_eq!(reply.sense[3..7], 5u32.to_be_bytes(), "within the block");
}

#[test]
fn verify_reads_long_ranges_in_steps() {
    let mut rig = Rig::plain();
    rig.disk.fill(7);
    let data = vec![7; 1000 * BLOCK];
    rig.good(&cdb10(0x2f, 2, 1, 1000), &data);
    let longest = rig.asked.iter().map(|(.., len)| *len).max();
    assert_eq!(longest, Some(256 << 10));
    let mut other = data;
    *other.last_mut().unwrap() = 8;
    let reply = rig.send(&cdb10(0x2f, 2, 1, 1000), &other);
    assert_eq!(reply.sense_code(), (0xe, 0x1d00));
    assert_eq!(reply.sense[3..7], 511_999u32.to_be_bytes());
}

#[test]
fn write_and_verify_writes_durably_and_reads_it_again() {
    let mut rig = Rig::plain();
    let data = pattern(2, 3);
    for flags in [0, 2] {
        rig.asked.clear();
        rig.good(&cdb10(0x2e, flags, 7, 3), &data);
        let write = (Op::Write, true, 3584, 1536);
        assert_eq!(rig.asked, [write, (Op::Read, false, 3584, 1536)]);
        assert_eq!(rig.disk[7 * BLOCK..10 * BLOCK], data);
    }
    rig.refused(&cdb10(0x2e, 4, 7, 3), &data, 5, 0x2400);
}

fn compare(lba: u64, blocks: u8, flags: u8) -> [u8; 16] {
    let mut cdb = cdb16(0x89, flags, lba, 0);
    cdb[13] = blocks;
    cdb
}

#[test]
fn compare_and_write_writes_only_after_a_match() {
    let mut rig = Rig::plain();
    let (old, new) = (pattern(1, 3), pattern(9, 3));
    rig.good(&cdb10(0x2a, 0, 50, 3), &old);
    let both = [old.clone(), new.clone()].concat();
    rig.asked.clear();
    rig.good(&compare(50, 3, 0x08), &both);
    assert_eq!(rig.data(&cdb10(0x28, 0, 50, 3)), new);
    let read = (Op::Read, false, 25_600, 1536);
    assert_eq!(rig.asked[..2], [read, (Op::Write, true, 25_600, 1536)]);
    let mut nearly = [new.clone(), old].concat();
    nearly[1535] ^= 0x80;
    let reply = rig.send(&compare(50, 3, 0), &nearly);
    assert_eq!(reply.sense_code(), (0xe, 0x1d00));
    assert_eq!(reply.sense[3..7], 1535u32.to_be_bytes());
    assert_eq!(rig.data(&cdb10(0x28, 0, 50, 3)), new);
    rig.good(&compare(50, 0, 0), &[]);
    rig.refused(&compare(BLOCKS, 1, 0), &[0; 1024], 5, 0x2100);
    rig.refused(&compare(0, 1, 0), &[0; 1023], 5, 0x0e03);
}

#[test]
fn compare_and_write_is_limited_as_announced() {
    let mut rig = Rig::new(UnitOptions {
        logical_block_size: 32_768,
        ..options()
    });
    let limits = rig.data(&[0x12, 1, 0xb0, 0, 64, 0]);
    assert_eq!(limits[5], 32, "a MiB");
    rig.good(&compare(0, 32, 0), &vec![0; 2 << 20]);
    let reply = rig.send(&compare(0, 33, 0), &vec![0; 33 << 16]);
    assert_eq!(reply.sense_code(), (5, 0x2400));
    assert_eq!(reply.sense[15..18], [0xc0, 0, 13]);
}

#[test]
fn or_write_sets_bits() {
    let mut rig = Rig::plain();
    rig.disk.fill(0x41);
    let data: Vec<u8> = (0..600 * BLOCK).map(|at| (at / 1100) as u8).collect();
    rig.good(&cdb16(0x8b, 0, 2, 600), &data);
    let expected: Vec<u8> = data.iter().map(|byte| byte | 0x41).collect();
    assert_eq!(rig.disk[2 * BLOCK..602 * BLOCK], expected);
    assert_eq!(rig.disk[602 * BLOCK], 0x41);
}
