//! Clients that are silent, too many, read nothing, query the block status without end, or keep a disk behind a network busy, harm only
//! themselves.

use std::io::Read;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nbd::wire::{command, option, transmission_flag};

use test_support::deadline::eventually;
use test_support::repeating_thread::RepeatingThread;
use test_support::threads::threads_named;

use crate::process::{Folder, STUCK_AFTER};
use crate::raw_client::{RawClient, request};
use crate::status_client::StatusClient;
use crate::{MIB, disk_line, start};

const DISK: &str = "--blockdev null-co,node-name=d,size=64M,read-zeroes=on";

fn line(server: &str) -> String {
    format!(
        "{DISK} --nbd-server addr.type=unix,addr.path=nbd{server} --export nbd,id=e,node-name=d"
    )
}

#[test]
fn a_silent_client_of_a_server_for_one_client_is_disconnected_and_one_connection_offered() {
    let folder = Folder::new();
    let (program, _client) = start(&folder, &line(",handshake-max-seconds=1,max-connections=1"));
    let mut silent = RawClient::connect(&folder);
    assert!(silent.is_closed_within(STUCK_AFTER));
    // Its place is free again. A client with several connections would wait for the second one.
    let mut client = RawClient::connect(&folder);
    client.greet().unwrap();
    let go = [0, 0, 0, 1, b'd', 0, 0];
    let replies = client.option(option::GO, &go).unwrap();
    let export = replies.iter().find(|(_, data)| data.starts_with(&[0, 0]));
    // Two bytes for the kind of information, eight for the size.
    let flags = u16::from_be_bytes(export.unwrap().1[10..12].try_into().unwrap());
    assert_eq!(flags & transmission_flag::CAN_MULTI_CONN, 0);
    assert_eq!(client.result_of(command::FLUSH, 0, (0, 0)), 0);
    program.stop();
}

#[test]
fn further_clients_wait_until_one_disconnects() {
    let folder = Folder::new();
    let (program, _client) = start(&folder, &line(",max-connections=2"));
    let first = RawClient::enter(&folder, "d");
    let _second = RawClient::enter(&folder, "d");
    let mut third = RawClient::connect(&folder);
    let short = Duration::from_millis(200);
    third.stream.set_read_timeout(Some(short)).unwrap();
    assert!(third.stream.read(&mut [0; 18]).is_err(), "not accepted");
    drop(first);
    third.stream.set_read_timeout(Some(STUCK_AFTER)).unwrap();
    third.stream.read_exact(&mut [0; 18]).unwrap();
    program.stop();
}

#[test]
fn clients_that_have_left_a_disk_that_does_not_answer_keep_no_others_out() {
    let folder = Folder::new();
    let hanging = "--blockdev null-co,node-name=hangs,size=1M,latency-ns=600000000000 \
                   --export nbd,id=h,node-name=hangs";
    let line = format!("{} {hanging}", line(",max-connections=4"));
    let (_program, _client) = start(&folder, &line);
    for _ in 0..4 {
        let mut client = RawClient::enter(&folder, "hangs");
        client.send(&request(command::READ, 0, 1, (0, 512)));
        client.hang_up();
    }
    // Each connection's requests are still there.
    for _ in 0..3 {
        RawClient::enter(&folder, "d").read(0, 512);
    }
}

#[test]
fn a_client_that_reads_nothing_is_not_read_further_and_others_go_on() {
    let folder = Folder::new();
    let (mut program, _client) = start(&folder, &line(""));
    let mut greedy = RawClient::enter(&folder, "d");
    greedy.stream.set_nonblocking(true).unwrap();
    // 32 MiB of data for 28 bytes, again and again.
    let read = request(command::READ, 0, 0, (0, 32 << 20));
    let mut sent = 0;
    let mut other = RawClient::enter(&folder, "d");
    for _ in 0..1000 {
        while std::io::Write::write_all(&mut greedy.stream, &read).is_ok() && sent < 100_000 {
            sent += 1;
        }
        other.read(0, 512);
    }
    let memory = resident_bytes(&program.pid());
    assert!(memory < 400 * MIB, "{memory} bytes");
    program.assert_running("after a client that reads nothing");
    program.stop();
}

/// Workers are those of the iothread: other connections and disks need them too. One that has just ended a query may not be idle yet when
/// the next one comes.
#[test]
fn pipelined_queries_of_the_block_status_use_few_workers() {
    let folder = Folder::new();
    let image = std::fs::File::create(folder.join("disk")).unwrap();
    image.set_len(64 * MIB).unwrap();
    // So that a query takes some milliseconds.
    for piece in 0..4096 {
        image.write_all_at(&[1], piece * 16_384).unwrap();
    }
    let (program, _client) = start(&folder, &disk_line(""));
    let mut client = StatusClient::enter(&folder, "d", false, &["base:allocation"]);
    client.pipeline(100, (0, 64 << 20));
    let workers = threads_named(program.pid(), "worker main");
    assert!(workers.len() < 8, "{} workers", workers.len());
    program.stop();
}

/// Resident memory of a process.
fn resident_bytes(pid: &rustix::process::Pid) -> u64 {
    let path = format!("/proc/{}/statm", pid.as_raw_nonzero());
    let statm = std::fs::read_to_string(path).unwrap();
    let pages: u64 = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Requests through a filter are tasks: they get places of the disk's queue at its server beside clients that fill it.
#[test]
fn reads_through_a_filter_and_clients_that_fill_the_nbd_queue_both_get_a_share() {
    const DEPTH: usize = nbd::client::MAX_IN_FLIGHT as usize;
    const READS: usize = 10;
    let (server, folder) = (Folder::new(), Folder::new());
    let slow = "--blockdev null-co,node-name=d,size=64M,latency-ns=20000000 --nbd-server \
                addr.type=unix,addr.path=nbd --export nbd,id=e,node-name=d,writable=on";
    let (server_program, _server_client) = start(&server, slow);
    let socket = server.join("nbd");
    let line = format!(
        "--object iothread,id=io --blockdev nbd,node-name=d,server.type=unix,server.path={},export=d \
         --blockdev blkdebug,node-name=f,image=d --nbd-server addr.type=unix,addr.path=nbd \
         --export nbd,id=d,node-name=d,iothread=io --export nbd,id=f,node-name=f,iothread=io",
        socket.display()
    );
    let (program, _client) = start(&folder, &line);
    let answered = Arc::<AtomicUsize>::default();
    let greedy = [(); 2].map(|()| {
        let (mut client, answered) = (RawClient::enter(&folder, "d"), answered.clone());
        let read = request(command::READ, 0, 1, (0, 512));
        client.send(&read.repeat(DEPTH));
        RepeatingThread::start(move |_| {
            client.reply(512);
            answered.fetch_add(1, Ordering::Relaxed);
            client.send(&read);
        })
    });
    let answered = || answered.load(Ordering::Relaxed);
    let mut patient = RawClient::enter(&folder, "f");
    eventually("the queue is full", || answered() > 2 * DEPTH);
    let before = answered();
    for _ in 0..READS {
        patient.read(0, 512);
    }
    let answered_meanwhile = answered() - before;
    drop(greedy);
    // Each patient read should wait for about one turnover of the queue (`DEPTH` answers). Starved, it would wait for many; favoured, the
    // others would have next to none.
    assert!(
        answered_meanwhile < 8 * DEPTH * READS,
        "reads through the filter starve: {answered_meanwhile} others meanwhile"
    );
    assert!(
        answered_meanwhile > DEPTH * READS / 8,
        "the greedy clients starve: {answered_meanwhile} of their reads meanwhile"
    );
    program.stop();
    server_program.stop();
}
