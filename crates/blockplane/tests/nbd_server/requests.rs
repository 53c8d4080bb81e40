//! Requests that clients of others do not send: many at once, in pieces, invalid ones.

use std::collections::BTreeMap;
use std::time::Duration;

use nbd::wire::{NbdErrno, command, command_flag};

use crate::process::{Folder, STUCK_AFTER};
use crate::raw_client::{RawClient, request};
use crate::{MIB, disk_line, start};

const BLOCK: u32 = 4096;

#[test]
fn a_flood_of_writes_and_reads_is_answered_completely() {
    let folder = Folder::new();
    folder.image("disk", 16 * MIB);
    let (program, _client) = start(&folder, &disk_line(""));
    let mut client = RawClient::enter(&folder, "d");
    let count = 2000u64;
    let offset = |number: u64| number * u64::from(BLOCK);
    let data = |number: u64| vec![u8::try_from(number % 251).unwrap(); BLOCK as usize];
    let mut writer = RawClient {
        stream: client.stream.try_clone().unwrap(),
    };
    let sender = std::thread::spawn(move || {
        for number in 0..count {
            let range = (offset(number), BLOCK);
            writer.send(&[request(command::WRITE, 0, number, range), data(number)].concat());
        }
    });
    for _ in 0..count {
        assert_eq!(client.reply(0).1, 0);
    }
    sender.join().unwrap();
    // All headers in as few pieces as the socket takes, more than a connection has slots.
    let mut writer = RawClient {
        stream: client.stream.try_clone().unwrap(),
    };
    let sender = std::thread::spawn(move || {
        let requests =
            (0..count).map(|number| request(command::READ, 0, number, (offset(number), BLOCK)));
        writer.send(&requests.collect::<Vec<_>>().concat());
    });
    let mut replies = BTreeMap::new();
    for _ in 0..count {
        let (cookie, error, read) = client.reply(BLOCK as usize);
        assert_eq!(error, 0);
        assert!(read == data(cookie), "block {cookie}");
        replies.insert(cookie, ());
    }
    sender.join().unwrap();
    assert_eq!(replies.len() as u64, count, "each once");
    program.stop();
}

#[test]
fn a_flood_of_requests_that_need_no_disk_is_answered_completely() {
    let folder = Folder::new();
    folder.image("disk", MIB);
    let (program, _client) = start(&folder, &disk_line(""));
    let mut client = RawClient::enter(&folder, "d");
    // More than a connection has slots, in one piece.
    for (command, range, expected) in [
        (command::CACHE, (0, 512), 0),
        (command::READ, (0, 0), 0),
        (command::READ, (1 << 20, 512), NbdErrno::Inval.to_wire()),
    ] {
        let requests = (0..1000).map(|number| request(command, 0, number, range));
        client.send(&requests.collect::<Vec<_>>().concat());
        for number in 0..1000 {
            assert_eq!(client.reply(0), (number, expected, vec![]));
        }
    }
    program.stop();
}

#[test]
fn a_request_may_arrive_byte_by_byte() {
    let folder = Folder::new();
    folder.image("disk", MIB);
    let (program, _client) = start(&folder, &disk_line(""));
    let mut client = RawClient::enter(&folder, "d");
    let write = [request(command::WRITE, 0, 7, (512, 16)), vec![5; 16]].concat();
    for byte in write {
        client.send(&[byte]);
    }
    assert_eq!(client.reply(0), (7, 0, vec![]));
    client.send(&request(command::READ, 0, 8, (510, 4)));
    assert_eq!(client.reply(4), (8, 0, vec![0, 0, 5, 5]));
    program.stop();
}

#[test]
fn the_largest_write_is_read_back() {
    let folder = Folder::new();
    folder.image("disk", 80 * MIB);
    let (program, _client) = start(&folder, &disk_line(""));
    let mut client = RawClient::enter(&folder, "d");
    let len = 32u32 << 20;
    let data: Vec<u8> = (0..len).map(|at| (at / 4096 % 253) as u8).collect();
    for number in 0..2 {
        let range = (number * u64::from(len) + 1, len);
        client.send(&[request(command::WRITE, 0, number, range), data.clone()].concat());
        assert_eq!(client.reply(0), (number, 0, vec![]));
    }
    for number in 0..2 {
        let range = (number * u64::from(len) + 1, len);
        client.send(&request(command::READ, 0, number, range));
    }
    for _ in 0..2 {
        let (_, error, read) = client.reply(len as usize);
        assert!(error == 0 && read == data);
    }
    program.stop();
}

#[test]
fn invalid_requests_are_refused_and_the_session_goes_on() {
    let folder = Folder::new();
    folder.image("disk", MIB);
    let (program, _client) = start(&folder, &disk_line(""));
    let mut client = RawClient::enter(&folder, "d");
    let end = 1 << 20;
    for (command, flags, range, expected) in [
        (command::READ, 0, (end, 1), NbdErrno::Inval),
        (command::READ, 0, (0, (32 << 20) + 1), NbdErrno::Inval),
        (command::TRIM, 0, (u64::MAX, 2), NbdErrno::Inval),
        (command::WRITE_ZEROES, 0, (end - 1, 2), NbdErrno::NoSpc),
        (
            command::WRITE_ZEROES,
            command_flag::FAST_ZERO,
            (0, 512),
            NbdErrno::NotSup,
        ),
        (command::BLOCK_STATUS, 0, (0, 512), NbdErrno::Inval),
        (command::FLUSH, 0, (1, 0), NbdErrno::Inval),
        (command::RESIZE, 0, (0, 512), NbdErrno::Inval),
        (99, 0, (0, 0), NbdErrno::Inval),
    ] {
        let error = client.result_of(command, flags, range);
        assert_eq!(error, expected.to_wire(), "{command} {flags} {range:?}");
    }
    // Its data is skipped.
    client.send(&[request(command::WRITE, 0, 3, (end - 1, 2)), vec![1, 2]].concat());
    assert_eq!(client.reply(0), (3, NbdErrno::NoSpc.to_wire(), vec![]));
    for command in [command::FLUSH, command::CACHE, command::TRIM] {
        assert_eq!(client.result_of(command, command_flag::FUA, (0, 0)), 0);
    }
    program.stop();
}

#[test]
fn what_is_no_request_ends_its_connection_alone() {
    let folder = Folder::new();
    folder.image("disk", MIB);
    let (program, _client) = start(&folder, &disk_line(""));
    let mut other = RawClient::enter(&folder, "d");
    for bytes in [
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n".to_vec(),
        request(command::WRITE, 0, 0, (0, u32::MAX)),
    ] {
        let mut client = RawClient::enter(&folder, "d");
        client.send(&bytes);
        assert!(client.is_closed_within(STUCK_AFTER));
        assert_eq!(other.result_of(command::FLUSH, 0, (0, 0)), 0);
    }
    program.stop();
}

#[test]
fn requests_before_a_disconnection_are_answered() {
    let folder = Folder::new();
    folder.image("disk", MIB);
    let slow = "--blockdev null-co,node-name=n,size=1M,latency-ns=100000000 \
                --export nbd,id=n,node-name=n";
    let (program, _client) = start(&folder, &format!("{} {slow}", disk_line("")));
    let mut client = RawClient::enter(&folder, "n");
    let mut bytes = request(command::READ, 0, 4, (0, 512));
    bytes.extend(request(command::DISC, 0, 5, (0, 0)));
    client.send(&bytes);
    assert_eq!(client.reply(512).0, 4);
    assert!(client.is_closed_within(Duration::from_secs(60)));
    program.stop();
}
