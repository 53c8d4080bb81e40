//! Commands that report properties of a unit.

use block::Geometry;
use engine::Errno;
use scsi::{NexusNumber, NexusPorts, Status, TransportId, Unit, UnitError, UnitOptions};

use crate::rig::{BLOCK, Rig, cdb10, geometry, options};

fn inquiry(page: Option<u8>, allocation: u16) -> [u8; 6] {
    let [high, low] = allocation.to_be_bytes();
    [0x12, page.is_some().into(), page.unwrap_or(0), high, low, 0]
}

#[test]
fn standard_inquiry_data_is_that_of_a_disk() {
    let mut rig = Rig::plain();
    let data = rig.data(&inquiry(None, 260));
    assert_eq!(data.len(), 96);
    assert_eq!(data[..8], [0, 0, 6, 0x12, 91, 0, 0, 2]);
    assert_eq!(&data[8..36], b"BLKPLANEDISK            1   ");
    assert_eq!(data[58..64], [0x00, 0xa0, 0x04, 0x60, 0x04, 0xc0]);
    for allocation in 0..100 {
        let short = rig.data(&inquiry(None, allocation));
        assert_eq!(short, data[..short.len()]);
        assert_eq!(short.len(), usize::from(allocation).min(96));
    }
    rig.refused(&[0x12, 0, 1, 0, 96, 0], &[], 5, 0x2400);
    rig.refused(&[0x12, 2, 0, 0, 96, 0], &[], 5, 0x2400);
    // The LUN field of SCSI-2.
    assert_eq!(rig.data(&[0x12, 0xe0, 0, 0, 96, 0]), data);
}

#[test]
fn each_vpd_page_has_its_own_length() {
    let mut rig = Rig::plain();
    let pages = rig.data(&inquiry(Some(0), 255));
    assert_eq!(pages[4..], [0, 0x80, 0x83, 0x86, 0xb0, 0xb1, 0xb2]);
    for &page in &pages[4..] {
        let data = rig.data(&inquiry(Some(page), 0x400));
        assert_eq!(data[..2], [0, page]);
        let len = u16::from_be_bytes([data[2], data[3]]);
        assert_eq!(data.len(), usize::from(len) + 4, "page {page:#x}");
    }
    assert_eq!(rig.data(&inquiry(Some(0x80), 255))[4..], *b"S123");
    let extended = rig.data(&inquiry(Some(0x86), 255));
    assert_eq!(extended[4..8], [0, 0x07, 0x01, 0x01]);
    rig.refused(&inquiry(Some(0x81), 255), &[], 5, 0x2400);
    let nameless = UnitOptions::default();
    let mut rig = Rig::new(nameless);
    rig.refused(&inquiry(Some(0x80), 255), &[], 5, 0x2400);
}

#[test]
fn identification_names_the_unit_and_the_port() {
    let mut rig = Rig::plain();
    let data = rig.data(&inquiry(Some(0x83), 255));
    let expected = [
        &[2, 1, 0, 12][..],
        b"BLKPLANES123",
        &[1, 3, 0, 8, 0x50, 0, 0, 0, 0, 0, 0, 1],
        &[1, 0x14, 0, 4, 0, 0, 0, 1],
    ];
    assert_eq!(data[4..], expected.concat());
}

#[test]
fn block_limits_are_those_of_the_node() {
    let mut rig = Rig::plain();
    let limits = rig.data(&inquiry(Some(0xb0), 255));
    let be32 = |at: usize| u32::from_be_bytes(limits[at..at + 4].try_into().unwrap());
    assert_eq!(limits.len(), 64);
    assert_eq!(limits[4..8], [1, 255, 0, 8], "WSNZ, compare, granularity");
    assert_eq!(be32(8), 65_536, "transfer");
    assert_eq!(be32(12), 128, "optimal transfer");
    assert_eq!(be32(20), 2048, "unmap: what the node takes at once");
    assert_eq!(be32(24), 256, "ranges");
    assert_eq!(be32(28), 8, "granularity");
    assert_eq!(limits[36..44], u64::from(u32::MAX).to_be_bytes());
    let provisioning = rig.data(&inquiry(Some(0xb2), 255));
    assert_eq!(provisioning[4..], [0, 0xe0, 2, 0]);

    let mut thick = Rig::new(UnitOptions {
        thin: false,
        rotation_rate: 7200,
        ..options()
    });
    let limits = thick.data(&inquiry(Some(0xb0), 255));
    assert_eq!(limits[20..36], [0; 16]);
    assert_eq!(thick.data(&inquiry(Some(0xb2), 255))[4..], [0; 4]);
    let turning = thick.data(&inquiry(Some(0xb1), 255));
    assert_eq!(turning[4..6], 7200u16.to_be_bytes());
}

#[test]
fn read_capacity_returns_the_last_block() {
    let mut rig = Rig::plain();
    let mut rc10 = cdb10(0x25, 0, 0, 0);
    assert_eq!(rig.data(&rc10), [0, 0, 0x0f, 0xff, 0, 0, 2, 0]);
    rc10[8] = 1;
    rig.refused(&rc10, &[], 5, 0x2400);
    let rc16 = |allocation: u8| {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[13]) = (0x9e, 0x10, allocation);
        cdb
    };
    let data = rig.data(&rc16(96));
    assert_eq!(data.len(), 32);
    assert_eq!(data[..8], 0x0fffu64.to_be_bytes());
    assert_eq!(data[8..16], [0, 0, 2, 0, 0, 3, 0x80, 0]);
    for allocation in 0..16 {
        assert_eq!(rig.data(&rc16(allocation)).len(), usize::from(allocation));
    }
    let mut action = rc16(96);
    action[1] = 0x1f;
    rig.refused(&action, &[], 5, 0x2400);
}

#[test]
fn read_capacity_10_saturates() {
    let mut rig = Rig::plain();
    rig.unit.resize((1 << 33) * 512);
    assert_eq!(rig.ask(&[0; 6]).sense_code(), (6, 0x2a09));
    assert_eq!(rig.data(&cdb10(0x25, 0, 0, 0))[..4], [0xff; 4]);
}

#[test]
fn a_disk_smaller_than_a_block_is_refused() {
    let tiny = Geometry {
        size: 2048,
        ..geometry()
    };
    let large_blocks = UnitOptions {
        logical_block_size: 4096,
        ..options()
    };
    let (size, block) = (2048, 4096);
    let empty = UnitError::Empty { size, block };
    assert_eq!(Unit::new(large_blocks, tiny).err(), Some(empty));
    let odd = UnitOptions {
        logical_block_size: 1000,
        ..options()
    };
    let error = Unit::new(odd, geometry()).err();
    assert_eq!(error, Some(UnitError::BlockSize(1000)));
}

/// GET LBA STATUS.
fn lba_status(lba: u64, allocation: u16) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (0x9e, 0x12);
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[12..14].copy_from_slice(&allocation.to_be_bytes());
    cdb
}

#[test]
fn lba_status_reports_deallocated_blocks() {
    let mut rig = Rig::plain();
    rig.good(&cdb10(0x2a, 0, 4092, 2), &[1; 2 * BLOCK]);
    let descriptors = |data: &[u8]| -> Vec<(u64, u32, u8)> {
        let len = u32::from_be_bytes(data[..4].try_into().unwrap());
        assert_eq!(data.len(), 4 + len as usize);
        let descriptors = data[8..].chunks(16).map(|one| {
            let lba = u64::from_be_bytes(one[..8].try_into().unwrap());
            let blocks = u32::from_be_bytes(one[8..12].try_into().unwrap());
            (lba, blocks, one[12])
        });
        descriptors.collect()
    };
    let found = descriptors(&rig.data(&lba_status(4090, 255)));
    assert_eq!(found, [(4090, 2, 1), (4092, 2, 0), (4094, 2, 1)]);
    for (lba, descriptor) in [
        (0, (0, 4092, 1)),
        (4093, (4093, 1, 0)),
        (4095, (4095, 1, 1)),
    ] {
        let found = descriptors(&rig.data(&lba_status(lba, 24)));
        assert_eq!(found, [descriptor], "no room for more than one");
    }
    assert_eq!(rig.data(&lba_status(4090, 10)).len(), 10);
    assert_eq!(rig.data(&lba_status(4090, 0)).len(), 0);
    for block in (0..200).step_by(2) {
        rig.good(&cdb10(0x2a, 0, block, 1), &[1; BLOCK]);
    }
    let data = rig.data(&lba_status(0, 4096));
    let many = descriptors(&data);
    assert_eq!((many.len(), many[63]), (64, (63, 1, 1)), "bounded");
    rig.error = Some(Errno::IO);
    rig.refused(&lba_status(0, 24), &[], 0xb, 0x0006);
    for lba in [4096, 1 << 63, u64::MAX] {
        rig.refused(&lba_status(lba, 24), &[], 5, 0x2100);
    }
    let mut thick = Rig::thick();
    thick.error = Some(Errno::IO);
    let data = thick.data(&lba_status(4090, 255));
    assert_eq!(descriptors(&data), [(4090, 6, 0)], "no query");
}

#[test]
fn report_supported_opcodes_has_all_options() {
    let mut rig = Rig::plain();
    let rsoc = |options: u8, opcode: u8, action: u16| {
        let head = [0xa3, 0x0c, options, opcode];
        [&head[..], &action.to_be_bytes(), &[0, 0, 0xff, 0xff, 0, 0]].concat()
    };
    for (timed, size) in [(0, 8), (0x80, 20)] {
        let all = rig.data(&rsoc(timed, 0, 0));
        assert_eq!(all[..4], (all.len() as u32 - 4).to_be_bytes());
        for one in all[4..].chunks(size) {
            let (opcode, action) = (one[0], u16::from_be_bytes([one[2], one[3]]));
            let has_action = one[5] & 1 != 0;
            assert_eq!(one[5] & 2 != 0, timed != 0);
            if timed != 0 {
                assert_eq!(one[8..10], [0, 10]);
            }
            let (right, wrong) = if has_action { (2, 1) } else { (1, 2) };
            rig.refused(&rsoc(wrong, opcode, action), &[], 5, 0x2400);
            for options in [right, 3] {
                let usage = rig.data(&rsoc(timed | options, opcode, action));
                assert_eq!(usage[1] & 7, 3);
                let len = usize::from(usage[3]);
                assert_eq!(usage[4], opcode);
                assert_eq!(usage.len(), 4 + len + if timed == 0 { 0 } else { 12 });
            }
        }
    }
    assert_eq!(rig.data(&rsoc(1, 0x41, 0))[5], 0x08, "UNMAP");
    let mut thick = Rig::thick();
    assert_eq!(thick.data(&rsoc(1, 0x41, 0))[5], 0, "no UNMAP");
    assert_eq!(thick.data(&rsoc(1, 0x42, 0))[1] & 7, 1, "no UNMAP");
    assert_eq!(rig.data(&rsoc(1, 0x04, 0))[1] & 7, 1, "no FORMAT UNIT");
    assert_eq!(rig.data(&rsoc(2, 0x9e, 0x11))[1] & 7, 1, "no such action");
    rig.refused(&rsoc(4, 0, 0), &[], 5, 0x2400);
}

#[test]
fn supported_task_management_depends_on_the_transport() {
    let mut rig = Rig::plain();
    let functions = [0xa3, 0x0d, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0];
    assert_eq!(rig.data(&functions), [0xd8, 0, 0, 0], "a parallel bus");
    rig.nexus = NexusNumber(9);
    let sas = NexusPorts {
        initiator: TransportId::Sas(9),
        target: 1,
    };
    rig.unit.attach_initiator_and_start(rig.nexus, sas);
    assert_eq!(rig.ask(&functions).sense_code(), (6, 0x2900));
    assert_eq!(rig.data(&functions), [0xdc, 0x03, 0, 0]);
    let mut timed = functions;
    timed[2] = 0x80;
    assert_eq!(rig.data(&timed)[..4], [0xdc, 0x03, 0, 12]);
}

#[test]
fn log_sense_lists_its_pages() {
    let mut rig = Rig::plain();
    let log = |page: u8| [0x4d, 0, 0x40 | page, 0, 0, 0, 0, 0, 255, 0];
    assert_eq!(rig.data(&log(0)), [0, 0, 0, 1, 0]);
    rig.refused(&log(0x0d), &[], 5, 0x2400);
}

#[test]
fn a_lun_without_a_unit_supports_mandatory_commands() {
    let mut rig = Rig::plain();
    let no_unit = 9;
    let inquiry = rig.exchange(no_unit, &inquiry(None, 96), &[], 96);
    assert_eq!((inquiry.status, inquiry.data[0]), (Status::Good, 0x7f));
    assert_eq!(inquiry.data.len(), usize::from(inquiry.data[4]) + 5);
    let sense = rig.exchange(no_unit, &[3, 0, 0, 0, 252, 0], &[], 252);
    assert_eq!(sense.status, Status::Good);
    assert_eq!((sense.data[2], sense.data[12]), (5, 0x25));
    let luns = [0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
    let luns = rig.exchange(no_unit, &luns, &[], 256);
    assert_eq!(luns.data, [0, 0, 0, 8, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0]);
    for cdb in [[0; 6], [0x1a, 0, 0x3f, 0, 255, 0], [0xff; 6]] {
        let reply = rig.exchange(no_unit, &cdb, &[], 0);
        assert_eq!(reply.sense_code(), (5, 0x2500));
    }
}

#[test]
fn report_luns_needs_room_for_one_lun() {
    let mut rig = Rig::plain();
    let luns = |select: u8, allocation: u8| [0xa0, 0, select, 0, 0, 0, 0, 0, 0, allocation, 0, 0];
    rig.refused(&luns(0, 15), &[], 5, 0x2400);
    rig.refused(&luns(3, 16), &[], 5, 0x2400);
    assert_eq!(rig.data(&luns(1, 16)), [0; 8]);
    assert_eq!(rig.data(&luns(2, 255)).len(), 16);
}
