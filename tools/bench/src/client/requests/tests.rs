//! Tests of the requests of a queue.

use super::*;
use crate::client::{Form, Layout, Placement};

/// Address, length, flags and next of each descriptor from `head` on.
fn chain(memory: &SharedMemory, table: usize, head: u16) -> Vec<(usize, u64, u64)> {
    let mut chain = Vec::new();
    let mut index = usize::from(head);
    loop {
        let words = memory.u64s(table + DESC_BYTES * index, 2);
        let rest = words[1].load(Ordering::Relaxed);
        let addr = usize::try_from(words[0].load(Ordering::Relaxed)).unwrap();
        let flags = rest >> 32 & 0xffff;
        chain.push((addr, rest & 0xffff_ffff, flags));
        if flags & NEXT == 0 {
            return chain;
        }
        index = usize::try_from(rest >> 48).unwrap();
    }
}

fn prepared(shape: Shape) -> (SharedMemory, QueuePlace, Buffers) {
    let mut layout = Layout::new();
    let place = layout.queue(shape.queue_size());
    let buffers = shape.place(&mut layout);
    (
        SharedMemory::new(layout.len_bytes()).unwrap(),
        place,
        buffers,
    )
}

#[test]
fn request_is_a_chain_of_header_data_and_status() {
    let shape = Shape::new(5, 4096, u32::MAX, true).unwrap();
    assert_eq!(shape.queue_size(), 16);
    let (memory, place, buffers) = prepared(shape);
    let mut requests = Requests::prepare(&memory, place, buffers, shape);
    let head = requests.aim(4, Kind::Read, 56);
    assert_eq!(head, 12);
    let read = chain(&memory, place.desc, head);
    assert_eq!((read[0].1, read[0].2), (16, NEXT));
    assert_eq!((read[1].1, read[1].2), (4096, NEXT | WRITE));
    assert_eq!((read[2].1, read[2].2), (1, WRITE));
    assert_eq!(read.len(), 3);
    let header = memory.u64s(read[0].0, 2);
    assert_eq!(header[0].load(Ordering::Relaxed), T_IN);
    assert_eq!(header[1].load(Ordering::Relaxed), 56);

    requests.aim(4, Kind::Write, 57);
    assert_eq!(header[0].load(Ordering::Relaxed), T_OUT);
    assert_eq!(header[1].load(Ordering::Relaxed), 57);
    assert_eq!(chain(&memory, place.desc, head)[1].2, NEXT);

    requests.aim(4, Kind::Flush, 0);
    assert_eq!(header[0].load(Ordering::Relaxed), T_FLUSH);
    let flush = chain(&memory, place.desc, head);
    assert_eq!(flush, [read[0], read[2]]);

    requests.aim(4, Kind::Read, 58);
    assert_eq!(chain(&memory, place.desc, head), read);
}

#[test]
fn completions_are_checked() {
    let placements = [Placement::Packed, Placement::Apart];
    for (depth, placement) in [1, 5, 200]
        .into_iter()
        .flat_map(|depth| placements.map(|placement| (depth, placement)))
    {
        let shape = Shape::new(depth, 512, u32::MAX, false).unwrap();
        let shape = shape.placed(placement);
        let (memory, place, buffers) = prepared(shape);
        let mut requests = Requests::prepare(&memory, place, buffers, shape);
        for slot in 0..usize::from(depth) {
            let head = requests.aim(slot, Kind::Read, 8);
            let status = chain(&memory, place.desc, head)[2].0;
            let answer = |requests: &Requests<'_>, status_byte: u8| {
                memory.u8s(status, 1)[0].store(status_byte, Ordering::Relaxed);
                requests
                    .completed(u32::from(head))
                    .map_err(|error| error.to_string())
            };
            assert_eq!(answer(&requests, STATUS_OK), Ok(slot));
            let failed = answer(&requests, STATUS_IOERR).unwrap_err();
            assert!(failed.contains("read of 512 bytes at 4096"), "{failed}");
            assert!(failed.contains("IOERR"), "{failed}");
            assert!(answer(&requests, PENDING).unwrap_err().contains("without"));
            assert!(requests.completed(u32::from(head) + 1).is_err());
        }
        for head in [3 * u32::from(depth), 0xffff, u32::MAX] {
            assert!(requests.completed(head).is_err(), "{head}");
        }
    }
}

#[test]
fn small_queue_uses_indirect_tables() {
    let shape = Shape::new(512, 4096, u32::MAX, true).unwrap();
    assert_eq!(shape.queue_size(), 512);
    let (memory, place, buffers) = prepared(shape);
    let mut requests = Requests::prepare(&memory, place, buffers, shape);
    let head = requests.aim(300, Kind::Write, 1);
    assert_eq!(head, 300);
    let entry = chain(&memory, place.desc, head);
    assert_eq!((entry.len(), entry[0].1, entry[0].2), (1, 48, INDIRECT));
    let table = chain(&memory, entry[0].0, 0);
    assert_eq!(table.len(), 3);
    assert_eq!((table[1].1, table[1].2), (4096, NEXT));
    assert!(Shape::new(512, 4096, u32::MAX, false).is_err());
    assert!(Shape::new(341, 4096, u32::MAX, false).is_ok());
}

#[test]
fn data_is_split_at_the_segment_size() {
    let shape = Shape::new(2, 10 * 512, 4096, false).unwrap();
    let (memory, place, buffers) = prepared(shape);
    let mut requests = Requests::prepare(&memory, place, buffers, shape);
    let head = requests.aim(1, Kind::Read, 0);
    let chain = chain(&memory, place.desc, head);
    let lengths: Vec<u64> = chain.iter().map(|&(_, len, _)| len).collect();
    assert_eq!(lengths, [16, 2560, 2560, 1]);
    assert_eq!(chain[2].0, chain[1].0 + 2560);
    assert_eq!(requests.data(1).len(), 640);
}

#[test]
fn discard_names_its_sectors_in_sixteen_bytes() {
    let shape = Shape::new(4, 1 << 20, u32::MAX, true).unwrap();
    let shape = shape.formed(Form::Discards);
    let (memory, place, buffers) = prepared(shape);
    let mut requests = Requests::prepare(&memory, place, buffers, shape);
    let head = requests.aim(3, Kind::Write, 4096);
    let chain = chain(&memory, place.desc, head);
    let header = memory.u64s(chain[0].0, 1);
    assert_eq!(header[0].load(Ordering::Relaxed), T_DISCARD);
    assert_eq!((chain[1].1, chain[1].2), (16, NEXT));
    let range = memory.u64s(chain[1].0, 2);
    let range = [0, 1].map(|word| range[word].load(Ordering::Relaxed));
    assert_eq!(range, [4096, 2048]);
}

#[test]
fn unaligned_data_begins_at_an_odd_address() {
    let shape = Shape::new(2, 4096, u32::MAX, true).unwrap();
    let shape = shape.formed(Form::Unaligned);
    let (memory, place, buffers) = prepared(shape);
    let mut requests = Requests::prepare(&memory, place, buffers, shape);
    let [first, second] = [0, 1].map(|slot| {
        let head = requests.aim(slot, Kind::Read, 8);
        chain(&memory, place.desc, head)[1]
    });
    assert_eq!((first.0 % 4096, first.1), (1, 4096));
    assert_eq!(second.0 % 4096, 1);
    assert!(first.0 + 4096 <= second.0);
}
