//! Header, data and status may be cut into descriptors in any way (VIRTIO 1.2, section 2.7.4.3), and
//! data reaches the disk where it lies.

use block::Op;
use virtio_blk::DeviceOptions;
use virtqueue::testing::{Buffer, TestMemory};

use crate::harness::{
    Asked, DISCARD, GET_ID, IN, IOERR, OK, OUT, Rig, UNANSWERED, UNTOUCHED, header, range,
};

fn rig() -> Rig {
    Rig::new(DeviceOptions::default())
}

/// Both ways to pass a list of descriptors.
fn add(rig: &mut Rig, buffers: &[Buffer], indirect: bool) -> u16 {
    if indirect {
        rig.driver.add_indirect(buffers)
    } else {
        rig.driver.add(buffers)
    }
}

#[test]
fn header_and_data_may_be_cut_anywhere_and_share_a_descriptor() {
    // Header alone, and with the data behind it in the same descriptor.
    let mut all: Vec<Vec<u32>> = (1..16).flat_map(|at| [vec![at], vec![at, 16]]).collect();
    all.push((1..=16).collect());
    all.extend([vec![], vec![17, 500, 501]]);
    // Buffers without bytes are no data.
    all.push(vec![0, 8, 8, 16, 16, 100, 100]);
    for (places, indirect) in all.iter().flat_map(|cut| [(cut, false), (cut, true)]) {
        let mut rig = rig();
        let data: Vec<u8> = (0..1024u32).map(|at| (at % 251) as u8).collect();
        let bytes = [&header(OUT, 6)[..], &data].concat();
        let whole = Buffer::readable(rig.memory.alloc_bytes(&bytes), 16 + 1024);
        let status = rig.status_byte();
        let mut buffers = whole.cut(places);
        buffers.push(Buffer::writable(status, 1));
        let head = add(&mut rig, &buffers, indirect);
        rig.admit_all();
        let [request] = &rig.sink.submitted[..] else {
            panic!("one request, not {:?}", rig.sink.submitted);
        };
        assert_eq!((request.op, request.offset), (Op::Write, 6 * 512));
        assert_eq!(rig.memory.gather(&request.segments), data, "{places:?}");
        rig.complete_all();
        assert_eq!(rig.used(), [(head, 1)]);
        assert_eq!(rig.memory.read(status, 1), [OK]);
    }
}

#[test]
fn status_may_stand_alone_or_behind_the_data() {
    for indirect in [false, true] {
        // Where the writable bytes are cut: the data is the first 1024, the status the last.
        for places in [
            &[1024][..],
            &[],
            &[512],
            &[1, 1023],
            &[1024, 1024],
            &[0, 700],
        ] {
            let mut rig = rig();
            let answer = rig.memory.alloc(1025, 512);
            rig.memory.fill(answer, 1024, UNTOUCHED);
            rig.memory.write(answer + 1024, &[UNANSWERED]);
            let mut buffers = vec![Buffer::readable(rig.memory.alloc_bytes(&header(IN, 2)), 16)];
            buffers.extend(Buffer::writable(answer, 1025).cut(places));
            let head = add(&mut rig, &buffers, indirect);
            rig.admit_all();
            let data: Vec<u8> = (0..1024u32).map(|at| (at % 253) as u8).collect();
            let request = &rig.sink.submitted[0];
            assert_eq!(
                (request.op, request.offset, request.len),
                (Op::Read, 1024, 1024)
            );
            assert!(request.segments.iter().all(|segment| segment.iov_len > 0));
            assert_eq!(rig.memory.scatter(&request.segments, &data), 1024);
            assert_eq!(
                rig.memory.read(answer + 1024, 1),
                [UNANSWERED],
                "not before"
            );
            rig.complete_all();
            assert_eq!(rig.used(), [(head, 1025)]);
            assert_eq!(rig.memory.read(answer, 1024), data);
            assert_eq!(rig.memory.read(answer + 1024, 1), [OK]);
        }
    }
}

#[test]
fn the_range_of_a_discard_and_the_serial_may_be_cut_as_well() {
    for place in 1..32 {
        let mut rig = Rig::new(DeviceOptions {
            serial: "twenty bytes serial.".to_owned(),
            ..DeviceOptions::default()
        });
        let bytes = [&header(DISCARD, 0)[..], &range(5, 3, 0)].concat();
        let whole = Buffer::readable(rig.memory.alloc_bytes(&bytes), 32);
        let mut buffers = whole.cut(&[place]);
        buffers.push(Buffer::writable(rig.status_byte(), 1));
        rig.driver.add(&buffers);

        let answer = rig.memory.alloc(21, 16);
        let get_id = rig.memory.alloc_bytes(&header(GET_ID, 0));
        let mut buffers = vec![Buffer::readable(get_id, 16)];
        buffers.extend(Buffer::writable(answer, 21).cut(&[place.min(20)]));
        rig.driver.add(&buffers);
        rig.admit_all();
        let request = &rig.sink.submitted[0];
        let discarded = (request.op, request.offset, request.len);
        assert_eq!(discarded, (Op::Discard, 5 * 512, 3 * 512));
        assert_eq!(rig.memory.read(answer, 21), b"twenty bytes serial.\0");
    }
}

/// A request with so many segments of one sector, as one indirect table.
fn many_segments(rig: &mut Rig, count: u32, first: Option<Buffer>) -> Asked {
    let status = rig.status_byte();
    let mut buffers = vec![Buffer::readable(rig.memory.alloc_bytes(&header(IN, 0)), 16)];
    let data = rig.memory.alloc(u64::from(count) * 512, 512);
    buffers.extend(first);
    buffers.extend((0..count).map(|at| Buffer::writable(data + u64::from(at) * 512, 512)));
    buffers.push(Buffer::writable(status, 1));
    let head = rig.driver.add_indirect(&buffers);
    Asked { head, data, status }
}

#[test]
fn a_request_with_too_many_segments_fails_and_the_queue_continues() {
    for request_merging in [true, false] {
        let mut rig = Rig::new(DeviceOptions {
            request_merging,
            ..DeviceOptions::default()
        });
        let announced = rig.device.max_segments();
        assert_eq!(announced, 126);
        let (fits, beyond) = (
            many_segments(&mut rig, announced, None),
            many_segments(&mut rig, announced * 2, None),
        );
        let most = many_segments(&mut rig, 1021, None);
        let after = rig.write(1000, 1, 1);
        rig.admit_all();
        assert!(rig.queue.take_has_unpublished());
        assert_eq!(rig.sink.submitted.len(), 2);
        assert_eq!(rig.sink.submitted[0].segments.len(), 126);
        rig.complete_all();
        let heads: Vec<_> = rig.used().iter().map(|(head, _)| *head).collect();
        assert_eq!(heads, [beyond.head, most.head, fits.head, after.head]);
        let statuses = [fits, beyond, most, after].map(|asked| rig.status(&asked));
        assert_eq!(statuses, [OK, IOERR, IOERR, OK]);
        assert_eq!(rig.queue.in_flight(), 0, "no slot is lost");
    }
}

#[test]
fn a_buffer_across_two_memory_regions_counts_as_one() {
    let border = 0x30_0000;
    let memory = TestMemory::with_regions(&[(0x10_0000, 0x20_0000), (border, 0x10_0000)]);
    let mut rig = Rig::with(DeviceOptions::default(), memory, 128);
    let across = Buffer::writable(border - 512, 1024);
    let others = rig.device.max_segments() - 1;
    let asked = many_segments(&mut rig, others, Some(across));
    rig.admit_all();
    let request = &rig.sink.submitted[0];
    assert_eq!(
        request.segments.len(),
        127,
        "one more than the driver counted"
    );
    rig.complete_all();
    rig.used();
    assert_eq!(rig.status(&asked), OK);
}
