//! Requests that clients of others do not send: many at once, in pieces, invalid ones.

use std::collections::BTreeSet;

use nbd::wire::{NbdErrno, command, command_flag};

use crate::process::STUCK_AFTER;
use crate::raw_client::{RawClient, request};
use crate::{MIB, serve};

const BLOCK: u32 = 4096;

#[test]
fn a_flood_of_writes_and_reads_is_answered_completely() {
    let (_folder, program, _monitor, mut client) = serve(16 * MIB, "");
    let count = 2000u64;
    let offset = |number: u64| number * u64::from(BLOCK);
    let data = |number: u64| vec![u8::try_from(number % 251).unwrap(); BLOCK as usize];
    // All headers of reads in as few pieces as the socket takes, more than a connection has slots.
    let write = |number| {
        let range = (offset(number), BLOCK);
        [request(command::WRITE, 0, number, range), data(number)].concat()
    };
    let read = |number| request(command::READ, 0, number, (offset(number), BLOCK));
    for (is_read, requests) in [
        (false, (0..count).map(write).collect::<Vec<_>>()),
        (true, (0..count).map(read).collect()),
    ] {
        let requests = requests.concat();
        let stream = client.stream.try_clone().unwrap();
        let sender = std::thread::spawn(move || RawClient { stream }.send(&requests));
        let mut answered = BTreeSet::new();
        for _ in 0..count {
            let (cookie, error, found) = client.reply(if is_read { BLOCK as usize } else { 0 });
            assert_eq!(error, 0);
            assert!(!is_read || found == data(cookie), "block {cookie}");
            assert!(answered.insert(cookie), "each once");
        }
        sender.join().unwrap();
    }
    // They need no disk.
    for (command, range, expected) in [
        (command::CACHE, (0, 512), 0),
        (command::READ, (0, 0), 0),
        (command::READ, (16 << 20, 512), NbdErrno::Inval.to_wire()),
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
fn a_request_may_arrive_byte_by_byte_and_the_largest_write_is_read_back() {
    let (_folder, program, _monitor, mut client) = serve(80 * MIB, "");
    let write = [request(command::WRITE, 0, 7, (512, 16)), vec![5; 16]].concat();
    for byte in write {
        client.send(&[byte]);
    }
    assert_eq!(client.reply(0), (7, 0, vec![]));
    assert_eq!(client.read(510, 4), [0, 0, 5, 5]);
    let len = 32u32 << 20;
    let data: Vec<u8> = (0..len).map(|at| (at / 4096 % 253) as u8).collect();
    for number in 0..2 {
        let range = (number * u64::from(len) + 1, len);
        client.send(&[request(command::WRITE, 0, number, range), data.clone()].concat());
        assert_eq!(client.reply(0), (number, 0, vec![]));
    }
    for number in 0..2 {
        assert!(client.read(number * u64::from(len) + 1, len) == data);
    }
    program.stop();
}

#[test]
fn invalid_requests_are_refused_and_the_session_goes_on() {
    let (folder, program, _monitor, mut client) = serve(MIB, "");
    let end = 1 << 20;
    let fast = command_flag::FAST_ZERO;
    for (command, flags, range, expected) in [
        (command::READ, 0, (0, (32 << 20) + 1), NbdErrno::Inval),
        (command::WRITE_ZEROES, 0, (end - 1, 2), NbdErrno::NoSpc),
        (command::WRITE_ZEROES, fast, (0, 512), NbdErrno::NotSup),
        (command::BLOCK_STATUS, 0, (0, 512), NbdErrno::Inval),
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
    // What is no request ends its connection alone.
    for bytes in [
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n".to_vec(),
        request(command::WRITE, 0, 0, (0, u32::MAX)),
    ] {
        let mut other = RawClient::enter(&folder, "d");
        other.send(&bytes);
        assert!(other.is_closed_within(STUCK_AFTER));
        assert_eq!(client.result_of(command::FLUSH, 0, (0, 0)), 0);
    }
    let log = program.stop().stderr;
    let uid = rustix::process::getuid().as_raw();
    let names_user = format!("export=\"e\" uid={uid} ");
    assert_eq!(log.matches(&names_user).count(), 2, "{log}");
}

/// They have the slots of those that ended with a flush.
#[test]
fn requests_after_stable_ones_are_carried_out() {
    let (_folder, program, _monitor, mut client) = serve(MIB, "");
    for command in [command::TRIM, command::WRITE_ZEROES] {
        let error = client.result_of(command, command_flag::FUA, (0, BLOCK));
        assert_eq!(error, 0);
        client.write(0, BLOCK, 7);
        assert_eq!(client.read(0, BLOCK), [7; BLOCK as usize]);
    }
    program.stop();
}

#[test]
fn requests_before_a_disconnection_are_answered() {
    let slow = " --blockdev null-co,node-name=n,size=1M,latency-ns=100000000 --export nbd,id=n,node-name=n";
    let (folder, program, _monitor, _) = serve(MIB, slow);
    let mut client = RawClient::enter(&folder, "n");
    let read = request(command::READ, 0, 4, (0, 512));
    client.send(&[read, request(command::DISC, 0, 5, (0, 0))].concat());
    assert_eq!(client.reply(512).0, 4);
    assert!(client.is_closed_within(STUCK_AFTER));
    program.stop();
}
