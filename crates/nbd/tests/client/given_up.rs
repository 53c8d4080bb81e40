//! Requests that are given up, because their source stops or their job is cancelled, while the server is silent.

use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use engine::{Errno, Full, Op};
use nbd::client::{Cancellation, ClientOptions, MAX_IN_FLIGHT, RequestGroup};
use nbd::wire::{STRUCTURED_REPLY_MAGIC, StructuredReply, chunk, reply_flag};

use super::rig::{Buffer, Rig};
use super::server::{Offer, Server, apply};

const LONG: Duration = Duration::from_secs(60);

/// Longer than any test waits.
const FOR_EVER: Duration = Duration::from_secs(3600);

const BLOCK: usize = 4096;

/// A server that takes `count` requests, answers nothing until a message comes, and then everything, in order. The others are served
/// at once.
fn start_silent_server(count: usize) -> (Server, Sender<()>) {
    let (speak, may_speak) = mpsc::channel();
    let disk = Mutex::new(vec![5; 16 << 20]);
    let server = Server::start(Offer::default(), move |number, mut peer| {
        if number == 0 {
            let requests: Vec<_> = (0..count).map_while(|_| peer.receive()).collect();
            let _ = may_speak.recv();
            for request in requests {
                let data = apply(&mut disk.lock().unwrap(), &request);
                peer.answer(&request, &data);
            }
        }
        peer.serve(&disk);
    });
    (server, speak)
}

/// A queue of this server's disk, and the group of a job whose requests are sent from now on.
fn open_for_job(options: &ClientOptions) -> (Rig, Arc<RequestGroup>) {
    let mut rig = Rig::open(options);
    let group = RequestGroup::new(rig.queue.disk());
    rig.group = Some(group.clone());
    (rig, group)
}

#[test]
fn a_stopped_source_waits_for_a_silent_server_for_a_bounded_time() {
    let (server, speak) = start_silent_server(2);
    let options = server.options(Duration::ZERO);
    let mut rig = Rig::open(&options);
    let begun = Instant::now();
    rig.source_index = 7;
    let of_other = rig.start_read(0, &[512]);
    rig.source_index = 0;
    let stuck = rig.start_read(0, &[512]);
    rig.iterate(Duration::ZERO);
    rig.queue.end_unbounded_waits(0);
    assert_eq!(rig.wait(stuck), Err(Errno::IO));
    assert!(begun.elapsed() >= options.stop_timeout);
    rig.queue.forget_ended_source(0);
    assert!(!rig.has_completed(of_other));
    speak.send(()).unwrap();
    assert_eq!(rig.wait(of_other), Ok(()));
    assert_eq!(rig.data(of_other), [5; 512]);
    assert_eq!(rig.read(0, 512), Ok(vec![5; 512]));
    assert_eq!(rig.queue.disk().reconnections(), 0);
}

/// Such requests come from tasks, which do not ask for room.
#[test]
fn request_of_a_stopping_source_that_finds_no_room_fails_after_stop_timeout() {
    let (server, _speak) = start_silent_server(MAX_IN_FLIGHT as usize);
    let options = server.options(Duration::ZERO);
    let mut rig = Rig::open(&options);
    let begun = Instant::now();
    rig.source_index = 7;
    while rig.queue.room() > 0 {
        rig.start_read(0, &[512]);
    }
    rig.source_index = 0;
    rig.queue.end_unbounded_waits(0);
    let taken = loop {
        match rig.try_start(Op::Read, false, 0, 512, Buffer::new(&[512])) {
            Ok(token) => break token,
            Err(Full) => _ = rig.iterate(Duration::from_millis(10)),
        }
    };
    assert!(begun.elapsed() >= options.stop_timeout);
    assert_eq!(rig.wait(taken), Err(Errno::IO));
}

/// Guests and another job have requests in flight to the same server, perhaps to other parts of its disk.
#[test]
fn requests_of_a_cancelled_job_fail_and_others_wait() {
    let (server, speak) = start_silent_server(4);
    let mut rig = Rig::open(&server.options(Duration::ZERO));
    let disk = rig.queue.disk().clone();
    let [cancelled, other] = [(); 2].map(|()| RequestGroup::new(&disk));
    let of_guest = rig.start_read(0, &[512]);
    rig.group = Some(other.clone());
    let of_other = rig.start_read(0, &[512]);
    rig.group = Some(cancelled.clone());
    let of_job = [rig.start_read(0, &[512]), rig.start_write(0, &[1; 512])];
    rig.iterate(Duration::ZERO);
    let cancellation = Cancellation::begin(&cancelled).unwrap();
    for token in of_job {
        assert_eq!(rig.wait(token), Err(Errno::IO));
    }
    drop(cancellation);
    assert!(!rig.has_completed(of_guest));
    assert!(!rig.has_completed(of_other));
    speak.send(()).unwrap();
    assert_eq!(rig.wait(of_guest), Ok(()));
    assert_eq!(rig.wait(of_other), Ok(()));
    assert_eq!(disk.reconnections(), 0);
}

#[test]
fn requests_of_a_cancelled_job_fail_at_once_without_a_connection() {
    let (server, allow) = Server::start_lost_until_allowed(vec![5; 16 << 20]);
    let mut rig = Rig::open(&ClientOptions {
        stop_timeout: FOR_EVER,
        ..server.options(FOR_EVER)
    });
    let disk = rig.queue.disk().clone();
    let group = RequestGroup::new(&disk);
    let of_guest = rig.start_read(0, &[512]);
    rig.group = Some(group.clone());
    let before = rig.start_read(0, &[512]);
    while disk.connected_queues() > 0 {
        rig.iterate(Duration::from_millis(10));
    }
    assert!(!rig.has_completed(before));
    let cancellation = Cancellation::begin(&group).unwrap();
    let after = rig.start_read(0, &[512]);
    for token in [before, after] {
        assert_eq!(rig.wait(token), Err(Errno::IO));
    }
    drop(cancellation);
    allow.send(()).unwrap();
    assert_eq!(rig.wait(of_guest), Ok(()));
}

/// Guests have all places of the queue, and keep them, or the socket is full.
#[test]
fn requests_of_a_cancelled_job_that_were_not_sent_fail_at_once() {
    let (server, speak) = start_silent_server(MAX_IN_FLIGHT as usize);
    let mut rig = Rig::open(&ClientOptions {
        stop_timeout: FOR_EVER,
        ..server.options(Duration::ZERO)
    });
    let group = RequestGroup::new(rig.queue.disk());
    let of_guest = rig.start_read(0, &[512]);
    rig.iterate(Duration::ZERO);
    rig.group = Some(group.clone());
    let unsent = rig.start_read(0, &[512]);
    let _cancellation = Cancellation::begin(&group).unwrap();
    assert!(rig.has_completed(unsent));
    rig.group = None;
    while rig.queue.room() > 0 {
        rig.start_read(0, &[512]);
    }
    rig.group = Some(group.clone());
    let without_place = rig.start_read(0, &[512]);
    assert_eq!(rig.wait(without_place), Err(Errno::IO));
    assert!(!rig.has_completed(of_guest));
    speak.send(()).unwrap();
    assert_eq!(rig.wait(of_guest), Ok(()));
}

/// The server has sent half of the data of a read when that is given up. The memory is used for something else meanwhile.
#[test]
fn late_data_of_a_read_does_not_reach_its_memory() {
    let (speak, may_speak) = mpsc::channel::<()>();
    let (sender, has_sent_half) = mpsc::channel();
    let server = Server::start(Offer::default(), move |_, mut peer| {
        let [half, whole, hole] = [(); 3].map(|()| peer.receive().unwrap());
        let len = u32::try_from(BLOCK).unwrap();
        let header = StructuredReply {
            magic: STRUCTURED_REPLY_MAGIC,
            flags: reply_flag::DONE,
            chunk: chunk::OFFSET_DATA,
            cookie: half.cookie,
            length: len + 8,
        };
        let offset = half.offset.to_be_bytes();
        peer.send(&[&header.encode()[..], &offset, &[1; BLOCK / 2]].concat());
        sender.send(()).unwrap();
        may_speak.recv().unwrap();
        peer.send(&[1; BLOCK / 2]);
        peer.answer(&whole, &[1; BLOCK]);
        let payload = [&hole.offset.to_be_bytes()[..], &len.to_be_bytes()].concat();
        peer.chunk(hole.cookie, reply_flag::DONE, chunk::OFFSET_HOLE, &payload);
        while let Some(request) = peer.receive() {
            peer.answer(&request, &[9; 512]);
        }
    });
    let (mut rig, group) = open_for_job(&server.options(Duration::ZERO));
    let reads = [0, 1 << 20, 2 << 20].map(|offset| rig.start_read(offset, &[1000, BLOCK - 1000]));
    rig.iterate(Duration::ZERO);
    has_sent_half.recv().unwrap();
    assert!(!rig.has_completed(reads[0]));
    let _cancellation = Cancellation::begin(&group).unwrap();
    for read in reads {
        assert_eq!(rig.wait(read), Err(Errno::IO));
        rig.reuse_memory(read, 7);
    }
    rig.group = None;
    speak.send(()).unwrap();
    assert_eq!(rig.read(0, 512), Ok(vec![9; 512]));
    for read in reads {
        assert_eq!(rig.data(read), [7; BLOCK]);
    }
    assert_eq!(rig.queue.disk().reconnections(), 0);
}

/// The server has not read all of a write when that is given up. What it gets later is the write's data.
#[test]
fn a_write_that_was_sent_in_part_is_sent_to_its_end() {
    const LEN: usize = 4 << 20;
    let (speak, may_speak) = mpsc::channel::<()>();
    let (sender, received) = mpsc::channel();
    let server = Server::start(Offer::default(), move |_, mut peer| {
        may_speak.recv().unwrap();
        while let Some(request) = peer.receive() {
            peer.answer(&request, &[9; 512]);
            let _ = sender.send(request.payload);
        }
    });
    let (mut rig, group) = open_for_job(&server.options(Duration::ZERO));
    let data: Vec<u8> = (0..LEN).map(|at| u8::try_from(at % 251).unwrap()).collect();
    let buffer = Buffer::with_data(&[1000, LEN - 1000], &data);
    let first = rig.start(Op::Write, false, 0, LEN as u64, buffer);
    let unsent = rig.start_write(8 << 20, &[1; 512]);
    rig.iterate(Duration::ZERO);
    let _cancellation = Cancellation::begin(&group).unwrap();
    for token in [first, unsent] {
        assert_eq!(rig.wait(token), Err(Errno::IO));
        rig.reuse_memory(token, 7);
    }
    rig.group = None;
    speak.send(()).unwrap();
    assert_eq!(rig.read(0, 512), Ok(vec![9; 512]));
    assert!(received.recv().unwrap() == data);
    assert!(received.recv().unwrap().is_empty(), "the read follows");
    assert_eq!(rig.queue.disk().reconnections(), 0);
}

#[test]
fn a_write_waits_for_an_overlapping_one_that_was_given_up() {
    let (speak, may_speak) = mpsc::channel::<()>();
    let disk = Arc::new(Mutex::new(vec![0; 16 << 20]));
    let of_server = disk.clone();
    let server = Server::start(Offer::default(), move |_, mut peer| {
        let given_up = peer.receive().unwrap();
        let elsewhere = peer.receive().unwrap();
        peer.answer(&elsewhere, &[]);
        may_speak.recv().unwrap();
        // What was sent meanwhile would be carried out first.
        peer.stream.set_nonblocking(true).unwrap();
        let early = peer.receive();
        peer.stream.set_nonblocking(false).unwrap();
        assert_eq!(early, None);
        apply(&mut of_server.lock().unwrap(), &given_up);
        peer.answer(&given_up, &[]);
        peer.serve(&of_server);
    });
    let (mut rig, group) = open_for_job(&server.options(LONG));
    let given_up = rig.start_write(BLOCK as u64, &[1; BLOCK]);
    rig.iterate(Duration::ZERO);
    let _cancellation = Cancellation::begin(&group).unwrap();
    assert_eq!(rig.wait(given_up), Err(Errno::IO));
    rig.group = None;
    let newer = rig.start_write(BLOCK as u64 * 3 / 2, &[2; BLOCK]);
    let elsewhere = rig.start_write(1 << 20, &[3; BLOCK]);
    assert_eq!(rig.wait(elsewhere), Ok(()), "others do not wait");
    assert!(!rig.has_completed(newer));
    speak.send(()).unwrap();
    assert_eq!(rig.wait(newer), Ok(()));
    let disk = disk.lock().unwrap();
    assert_eq!(
        (disk[BLOCK], disk[BLOCK * 3 / 2], disk[BLOCK * 5 / 2 - 1]),
        (1, 2, 2)
    );
}

/// Otherwise they would take the places of all others.
#[test]
fn a_connection_with_many_given_up_requests_is_replaced() {
    let (server, speak) = start_silent_server(usize::MAX);
    let mut rig = Rig::open(&server.options(LONG));
    let group = RequestGroup::new(rig.queue.disk());
    let of_guest = rig.start_read(0, &[512]);
    rig.group = Some(group.clone());
    let of_job: Vec<u64> = (0..200).map(|_| rig.start_read(0, &[512])).collect();
    rig.iterate(Duration::ZERO);
    let _cancellation = Cancellation::begin(&group).unwrap();
    speak.send(()).unwrap();
    for token in of_job {
        assert_eq!(rig.wait(token), Err(Errno::IO));
    }
    assert_eq!(rig.wait(of_guest), Ok(()));
    assert!(group.may_have_lost_writes(), "a silent server may crash");
}
