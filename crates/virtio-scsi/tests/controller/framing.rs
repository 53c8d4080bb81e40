//! Requests cut into descriptors in any way, and in ways that break a queue.

use telemetry::queue::AdmissionEnd;
use virtio_scsi::{AdmitError, Device, DeviceOptions, OptionsError, RequestError};
use virtqueue::testing::Buffer;

use crate::harness::{
    Asked, BLOCK, DISKS, GOOD, READ, RESPONSE, Rig, UNANSWERED, WRITE, cdb10, pattern,
};

fn add(rig: &mut Rig, buffers: &[Buffer]) -> u16 {
    let driver = &mut rig.queues[0].driver;
    let head = driver.add_indirect(buffers);
    driver.publish();
    head
}

#[test]
fn header_response_and_data_may_be_cut_anywhere() {
    let places = [1, 8, 18, 19, 50, 51, 52, 51 + 511];
    for (place, of_answer) in places
        .into_iter()
        .flat_map(|at| [(at, at.min(100)), (at, 0)])
    {
        let mut rig = Rig::new();
        let data = pattern(place as u8, 2);
        let header = rig.header(DISKS[0], 0, &cdb10(WRITE, 4, 2));
        let bytes = [header, data.clone()].concat();
        let whole = Buffer::readable(rig.memory.alloc_bytes(&bytes), bytes.len() as u32);
        let response = rig.memory.alloc_bytes(&[UNANSWERED; RESPONSE]);
        let answer = Buffer::writable(response, RESPONSE as u32);
        let mut buffers = whole.cut(&[place]);
        match of_answer {
            0 => buffers.push(answer),
            of_answer => buffers.extend(answer.cut(&[of_answer])),
        }
        let head = add(&mut rig, &buffers);
        rig.settle();
        assert_eq!(rig.used(0), [(head, RESPONSE as u32)]);
        let asked = Asked {
            head,
            response,
            data: 0,
        };
        assert_eq!(rig.answer(&asked), GOOD);
        assert_eq!(rig.queues[0].disks.bytes[0][4 * BLOCK..6 * BLOCK], data);

        let header = rig.header(DISKS[0], 0, &cdb10(READ, 4, 2));
        let header = Buffer::readable(rig.memory.alloc_bytes(&header), 51);
        let len = RESPONSE + 2 * BLOCK;
        let room = rig.memory.alloc_bytes(&vec![UNANSWERED; len]);
        let mut buffers = vec![header];
        buffers.extend(Buffer::writable(room, len as u32).cut(&[place, place + 70]));
        let head = add(&mut rig, &buffers);
        rig.settle();
        assert_eq!(rig.used(0), [(head, len as u32)]);
        let read = rig.memory.read(room + RESPONSE as u64, 2 * BLOCK);
        assert_eq!(read, data, "cut at {place}");
    }
}

#[test]
fn the_driver_sets_sense_and_cdb_sizes_within_limits() {
    let mut rig = Rig::new();
    let config = rig.device.config_space();
    let word = |at: usize| u32::from_le_bytes(config[at..at + 4].try_into().unwrap());
    let words: Vec<u32> = (0..9).map(|index| word(4 * index)).collect();
    assert_eq!(
        words,
        [1, 126, 0xffff, 128, 16, 96, 32, 255 << 16, 16_383],
        "as the field's servers announce it"
    );
    for (offset, value, fits) in [
        (20, 252_u32, true),
        (20, 17, false),
        (20, 1 << 20, false),
        (24, 16, true),
        (24, 260, true),
        (24, 15, false),
        (24, 261, false),
        (0, 1, false),
    ] {
        let written = rig.device.write_config(offset, &value.to_le_bytes());
        assert_eq!(written, fits, "{offset} {value}");
    }
    assert!(!rig.device.write_config(20, &[96]));
    // A CDB of 260 bytes, of which the command is the beginning.
    let mut header = rig.header(DISKS[0], 0, &cdb10(READ, 0, 1));
    header.resize(19 + 260, 0x77);
    assert!(rig.device.write_config(20, &96_u32.to_le_bytes()));
    let asked = rig.ask_by(0, &header, &[], BLOCK);
    rig.settle();
    assert_eq!(rig.answer(&asked), GOOD);
    rig.device.reset_with_units();
    assert_eq!(rig.device.config_space(), config);
}

#[test]
fn a_malformed_command_breaks_the_queue() {
    for (header, room, expected) in [
        (
            50,
            RESPONSE as u32,
            RequestError::ShortHeader { found: 50, cdb: 32 },
        ),
        (
            51,
            RESPONSE as u32 - 1,
            RequestError::ShortResponse {
                found: RESPONSE as u64 - 1,
                expected: RESPONSE,
            },
        ),
    ] {
        let mut rig = Rig::new();
        let before = rig.ask(DISKS[0], &cdb10(READ, 0, 1), &[], BLOCK);
        let bytes = rig.memory.alloc_bytes(&vec![1; header]);
        let answer = rig.memory.alloc(512, 512);
        let buffers = [
            Buffer::readable(bytes, header as u32),
            Buffer::writable(answer, room),
        ];
        add(&mut rig, &buffers);
        assert_eq!(rig.admit(0, 10), Err(AdmitError::Request(expected)));
        rig.queues[0].complete_all();
        assert_eq!(rig.answer(&before), GOOD, "what came before is done");
    }
}

#[test]
fn more_commands_than_entries_break_the_queue() {
    let mut rig = Rig::new();
    let asked = rig.ask(DISKS[0], &cdb10(READ, 0, 1), &[], BLOCK);
    let mut last = Ok(AdmissionEnd::Drained);
    while last == Ok(AdmissionEnd::Drained) {
        last = rig.admit(0, 64);
        let driver = &mut rig.queues[0].driver;
        driver.make_available(asked.head);
        driver.publish();
    }
    assert_eq!(
        last,
        Err(AdmitError::Request(RequestError::TooMany(128))),
        "the same one again and again"
    );
}

#[test]
fn options_have_limits() {
    let options = |request_queues, queue_size| DeviceOptions {
        request_queues,
        queue_size,
        initiator: scsi::TransportId::Sas(1),
    };
    for (queues, size, expected) in [
        (0, 128, OptionsError::Queues(0)),
        (1025, 128, OptionsError::Queues(1025)),
        (1, 100, OptionsError::QueueSize(100)),
    ] {
        let refused = Device::new(options(queues, size)).err();
        assert_eq!(refused, Some(expected));
    }
}
