//! Tests of transfers: splitting into messages, and replies of all kinds.

use super::*;

/// Decodes and removes the messages to send.
fn messages(out: &mut OutgoingBuffer) -> Vec<(Header, DmaAccess, Vec<u8>)> {
    let mut rest = out.unsent();
    let mut messages = Vec::new();
    while let Some(header) = Header::decode(rest) {
        let payload = &rest[Header::BYTES..header.size as usize];
        let access = DmaAccess::decode(payload).unwrap();
        messages.push((header, access, payload[DmaAccess::BYTES..].to_vec()));
        rest = &rest[header.size as usize..];
    }
    let all = out.unsent().len();
    out.mark_sent(all);
    messages
}

/// A successful reply to a DMA command, with this payload.
fn reply(header: &Header, access: DmaAccess, data: &[u8]) -> (Header, Vec<u8>) {
    let mut payload = Vec::new();
    access.encode(&mut payload);
    payload.extend_from_slice(data);
    let header = Header {
        flags: wire::TYPE_REPLY,
        ..*header
    };
    (header, payload)
}

#[test]
fn a_long_read_is_split_and_its_replies_come_in_any_order() {
    let (mut dma, mut out) = (DmaTransfers::default(), OutgoingBuffer::default());
    let id = dma.queue_or_fail_transfer(DmaDirection::Read, 0x1000, vec![0; 650], 0);
    dma.append_messages_to(&mut out, 100);
    let mut asked = messages(&mut out);
    assert_eq!(asked.len(), MAX_PENDING_MESSAGES, "a few at a time");
    let mut seen = 0;
    while let Some((header, access, data)) = asked.pop() {
        assert!(data.is_empty());
        let byte = u8::try_from((access.address - 0x1000) / 100).unwrap();
        let data = vec![byte; usize::try_from(access.count).unwrap()];
        let (header, payload) = reply(&header, access, &data);
        dma.handle_reply(&header, &payload).unwrap();
        dma.append_messages_to(&mut out, 100);
        asked.extend(messages(&mut out));
        seen += 1;
    }
    assert_eq!(seen, 7);
    let (finished, data) = dma.take_next_finished().unwrap();
    let expected: Vec<u8> = (0..650)
        .map(|byte| u8::try_from(byte / 100).unwrap())
        .collect();
    assert_eq!((finished, data.unwrap()), (id, expected));
    assert!(dma.take_next_finished().is_none());
}

#[test]
fn a_write_is_acknowledged_with_either_width_of_the_count() {
    for bytes in [12, 16] {
        let (mut dma, mut out) = (DmaTransfers::default(), OutgoingBuffer::default());
        let id = dma.queue_or_fail_transfer(DmaDirection::Write, 0, vec![7; 10], 0);
        dma.append_messages_to(&mut out, 100);
        let (header, access, data) = messages(&mut out).remove(0);
        assert_eq!((header.command, data), (command::DMA_WRITE, vec![7; 10]));
        let (header, payload) = reply(&header, access, &[]);
        dma.handle_reply(&header, &payload[..bytes]).unwrap();
        assert_eq!(dma.take_next_finished(), Some((id, Ok(vec![7; 10]))));
    }
}

#[test]
fn an_error_ends_a_transfer_when_all_its_messages_are_answered() {
    let (mut dma, mut out) = (DmaTransfers::default(), OutgoingBuffer::default());
    let id = dma.queue_or_fail_transfer(DmaDirection::Read, 0, vec![0; 1000], 0);
    dma.append_messages_to(&mut out, 100);
    let mut asked = messages(&mut out);
    let (first, access, _) = asked.remove(0);
    let (first, _) = reply(&first, access, &[]);
    let first = Header {
        flags: wire::TYPE_REPLY | wire::ERROR,
        errno: 14,
        ..first
    };
    dma.handle_reply(&first, &[]).unwrap();
    dma.append_messages_to(&mut out, 100);
    assert!(messages(&mut out).is_empty(), "nothing more is asked");
    for (header, access, _) in asked {
        assert!(dma.take_next_finished().is_none());
        let (header, payload) = reply(&header, access, &[0; 100]);
        dma.handle_reply(&header, &payload).unwrap();
    }
    assert_eq!(dma.take_next_finished(), Some((id, Err(Errno::FAULT))));
    let unknown = dma.handle_reply(&first, &[]);
    assert!(matches!(
        unknown,
        Err(ProtocolViolation::UnknownReply { .. })
    ));
}

#[test]
fn replies_that_do_not_fit_fail_the_transfer_only() {
    // The count and the number of bytes of the reply to a transfer of 10 bytes; bytes of data behind it.
    for (direction, count, bytes, data) in [
        (DmaDirection::Read, 10, 16, 9),
        (DmaDirection::Read, 9, 16, 10),
        (DmaDirection::Read, 10, 0, 0),
        (DmaDirection::Write, 9, 16, 0),
        (DmaDirection::Write, 11, 16, 0),
        (DmaDirection::Write, 9, 12, 0),
        (DmaDirection::Write, 10, 8, 0),
        (DmaDirection::Write, 10, 0, 0),
    ] {
        let (mut dma, mut out) = (DmaTransfers::default(), OutgoingBuffer::default());
        let id = dma.queue_or_fail_transfer(direction, 0, vec![0; 10], 0);
        dma.append_messages_to(&mut out, 100);
        let (header, access, _) = messages(&mut out).remove(0);
        let (header, payload) = reply(&header, DmaAccess { count, ..access }, &vec![0; data]);
        dma.handle_reply(&header, &payload[..bytes + data]).unwrap();
        assert_eq!(dma.take_next_finished(), Some((id, Err(Errno::PROTO))));
    }
}

#[test]
fn the_number_of_unanswered_transfers_is_limited() {
    let mut dma = DmaTransfers::default();
    for _ in 0..MAX_TRANSFERS {
        dma.queue_or_fail_transfer(DmaDirection::Write, 0, vec![0; 10], 5);
    }
    assert_eq!(dma.take_next_finished(), None);
    let id = dma.queue_or_fail_transfer(DmaDirection::Write, 0, vec![0; 10], 5);
    assert_eq!(dma.take_next_finished(), Some((id, Err(Errno::BUSY))));
    dma.fail_timed_out(4 + DMA_TIMEOUT_NS);
    assert_eq!(dma.take_next_finished(), None, "the time is not over");
    dma.fail_timed_out(5 + DMA_TIMEOUT_NS);
    while dma.take_next_finished().is_some() {}
    dma.queue_or_fail_transfer(DmaDirection::Write, 0, vec![0; 10], 6);
    assert_eq!(dma.take_next_finished(), None, "there is room again");
}

#[test]
fn an_empty_transfer_finishes_at_once() {
    let mut dma = DmaTransfers::default();
    let id = dma.queue_or_fail_transfer(DmaDirection::Write, 0, Vec::new(), 0);
    assert_eq!(dma.take_next_finished(), Some((id, Ok(Vec::new()))));
}
