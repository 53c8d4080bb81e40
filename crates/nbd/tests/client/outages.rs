//! Broken connections: what waits, what fails, what is sent again and in which order.

use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use engine::{Errno, Op};
use nbd::client::Disk;
use nbd::wire::{command, transmission_flag};

use super::rig::Rig;
use super::server::{ALL_FLAGS, Offer, Server, apply};

const LONG: Duration = Duration::from_secs(60);

#[test]
fn unanswered_requests_are_sent_again_in_their_order() {
    let (sender, received) = mpsc::channel();
    let disk = Mutex::new(vec![0; 16 << 20]);
    let server = Server::start(Offer::default(), move |number, mut peer| match number {
        0 => {
            let requests = (0..5).map(|_| peer.receive().unwrap());
            let requests: Vec<_> = requests.collect();
            peer.answer(&requests[1], &[]);
        }
        _ => {
            let mut commands = Vec::new();
            while let Some(request) = peer.receive() {
                commands.push((request.command, request.offset));
                let data = apply(&mut disk.lock().unwrap(), &request);
                peer.answer(&request, &data);
                if commands.len() == 4 {
                    sender.send(commands.clone()).unwrap();
                }
            }
        }
    });
    let mut rig = Rig::open(&server.options(LONG));
    let mut tokens: Vec<_> = [0, 4096, 8192]
        .into_iter()
        .map(|offset| rig.start_write(offset, &[7; 4096]))
        .collect();
    tokens.push(rig.start_without_data(Op::Flush, false, 0, 0));
    tokens.push(rig.start_read(0, &[4096]));
    for token in &tokens {
        assert_eq!(rig.wait(*token), Ok(()));
    }
    assert_eq!(rig.data(tokens[4]), [7; 4096]);
    let expected = [
        (command::WRITE, 0),
        (command::WRITE, 8192),
        (command::FLUSH, 0),
        (command::READ, 0),
    ];
    assert_eq!(received.recv().unwrap(), expected);
}

#[test]
fn requests_fail_at_once_without_a_delay_until_there_is_a_connection_again() {
    let (server, allow) = Server::start_lost_until_allowed(vec![3; 16 << 20]);
    let mut rig = Rig::open(&server.options(Duration::ZERO));
    for _ in 0..3 {
        assert_eq!(rig.read(0, 512), Err(Errno::IO));
    }
    allow.send(()).unwrap();
    let give_up = Instant::now() + LONG;
    while rig.read(0, 512) != Ok(vec![3; 512]) {
        assert!(Instant::now() < give_up, "the disk does not recover");
        rig.iterate(Duration::from_millis(10));
    }
}

#[test]
fn requests_fail_when_the_delay_is_over() {
    let mut count = 0;
    let server = Server::start_raw(
        Offer::default(),
        |_, mut peer| drop(peer.receive()),
        move |_| {
            count += 1;
            count == 1
        },
    );
    let delay = Duration::from_millis(300);
    let mut rig = Rig::open(&server.options(delay));
    let begun = Instant::now();
    assert_eq!(rig.read(0, 512), Err(Errno::IO));
    assert!(begun.elapsed() >= delay);
    // From now on they fail at once.
    let late = rig.start_read(0, &[512]);
    assert!(rig.has_completed(late));
}

/// The server was restarted while no device used the disk.
#[test]
fn queue_does_not_begin_with_a_connection_that_its_server_has_ended() {
    let (sender, has_ended) = mpsc::channel();
    let disk = Mutex::new(vec![5; 16 << 20]);
    let server = Server::start(Offer::default(), move |number, mut peer| match number {
        0 => {
            drop(peer);
            sender.send(()).unwrap();
        }
        _ => peer.serve(&disk),
    });
    let disk = Disk::open(&server.options(Duration::ZERO)).unwrap();
    has_ended.recv().unwrap();
    assert_eq!(Rig::of_disk(disk).read(0, 512), Ok(vec![5; 512]));
}

/// A server that is restarted again and again is no reason to fail a request that has broken one connection.
#[test]
fn each_request_breaks_connections_of_its_own() {
    let server = Server::start(Offer::default(), |number, mut peer| {
        if number > 0 {
            let sent_again = peer.receive().unwrap();
            peer.answer(&sent_again, &[]);
        }
        drop(peer.receive());
    });
    let mut rig = Rig::open(&server.options(LONG));
    for _ in 0..9 {
        assert_eq!(rig.write(0, &[1; 512]), Ok(()));
    }
}

/// The server takes long for the second copy of a write, and might carry out the first copy meanwhile.
#[test]
fn a_write_waits_for_an_overlapping_one_that_was_sent_again() {
    let (answer, answers) = mpsc::channel::<()>();
    let (sender, received) = mpsc::channel();
    let disk = Arc::new(Mutex::new(vec![0; 16 << 20]));
    let of_server = disk.clone();
    let server = Server::start(Offer::default(), move |number, mut peer| match number {
        0 => drop(peer.receive()),
        _ => {
            let resent = peer.receive().unwrap();
            sender.send(resent.offset).unwrap();
            while let Some(other) = peer.receive() {
                sender.send(other.offset).unwrap();
                apply(&mut of_server.lock().unwrap(), &other);
                peer.answer(&other, &[]);
                if other.offset == 1 << 20 {
                    answers.recv().unwrap();
                    apply(&mut of_server.lock().unwrap(), &resent);
                    peer.answer(&resent, &[]);
                }
            }
        }
    });
    let mut rig = Rig::open(&server.options(LONG));
    let resent = rig.start_write(4096, &[1; 4096]);
    rig.wait_for_reconnection();
    let newer = rig.start_write(6144, &[2; 4096]);
    let elsewhere = rig.start_write(1 << 20, &[3; 4096]);
    assert_eq!(rig.wait(elsewhere), Ok(()), "others do not wait");
    assert!(!rig.has_completed(newer));
    answer.send(()).unwrap();
    assert_eq!(rig.wait(resent), Ok(()));
    assert_eq!(rig.wait(newer), Ok(()));
    let order: Vec<u64> = (0..3).map(|_| received.recv().unwrap()).collect();
    assert_eq!(order, [4096, 1 << 20, 6144]);
    let disk = disk.lock().unwrap();
    assert_eq!((disk[4096], disk[6144], disk[10_239]), (1, 2, 2));
}

#[test]
fn a_server_without_several_connections_has_one_queue_at_a_time() {
    let disk = Mutex::new(vec![5; 16 << 20]);
    let server = Server::start(Offer::default(), move |_, mut peer| peer.serve(&disk));
    let disk = Disk::open(&server.options(LONG)).unwrap();
    let mut first = Rig::of_disk(disk.clone());
    let mut second = Rig::of_disk(disk.clone());
    assert_eq!(first.read(0, 512), Ok(vec![5; 512]));
    assert_eq!(second.read(0, 512), Err(Errno::IO));
    drop((first, second));
    let mut third = Rig::of_disk(disk.clone());
    assert_eq!(third.read(0, 512), Ok(vec![5; 512]));
    assert_eq!(disk.reconnections(), 0, "the connection was kept");
}

/// The server accepts no other connection before the flush has ended, and then the queue waits for one.
#[test]
fn a_flush_outside_of_queues_leaves_the_only_connection_to_a_queue() {
    let (sender, has_flush) = mpsc::channel();
    let (answer, may_answer) = mpsc::channel::<()>();
    let server = Server::start(Offer::default(), move |_, mut peer| {
        while let Some(request) = peer.receive() {
            if request.command == command::FLUSH {
                sender.send(()).unwrap();
                may_answer.recv().unwrap();
            }
            peer.answer(&request, &[]);
        }
    });
    let disk = Disk::open(&server.options(Duration::ZERO)).unwrap();
    Rig::of_disk(disk.clone()).write(0, &[1; 512]).unwrap();
    std::thread::scope(|scope| {
        let flushing = scope.spawn(|| disk.flush_blocking());
        has_flush.recv().unwrap();
        let mut rig = Rig::of_disk(disk.clone());
        let write = rig.start_write(0, &[2; 512]);
        assert!(!rig.has_completed(write));
        answer.send(()).unwrap();
        flushing.join().unwrap().unwrap();
        assert_eq!(rig.wait(write), Ok(()));
    });
}

#[test]
fn each_queue_has_a_connection_where_the_server_allows_that() {
    let disk = Arc::new(Mutex::new(vec![5; 16 << 20]));
    let offer = Offer {
        flags: ALL_FLAGS | transmission_flag::CAN_MULTI_CONN,
        ..Offer::default()
    };
    let server = Server::start(offer, move |_, mut peer| {
        let disk = disk.clone();
        std::thread::spawn(move || peer.serve(&disk));
    });
    let disk = Disk::open(&server.options(Duration::ZERO)).unwrap();
    let mut rigs = [Rig::of_disk(disk.clone()), Rig::of_disk(disk.clone())];
    for rig in &mut rigs {
        assert_eq!(rig.read(0, 512), Ok(vec![5; 512]));
    }
    assert_eq!(disk.connected_queues(), 2);
}

#[test]
fn a_flush_outside_of_queues_reaches_the_server_after_a_write() {
    let (sender, received) = mpsc::channel();
    let server = Server::start(Offer::default(), move |_, mut peer| {
        while let Some(request) = peer.receive() {
            peer.answer(&request, &[]);
            let _ = sender.send(request.command);
        }
    });
    let disk = Disk::open(&server.options(LONG)).unwrap();
    disk.flush_blocking().unwrap();
    let mut rig = Rig::of_disk(disk.clone());
    rig.write(0, &[1; 512]).unwrap();
    drop(rig);
    disk.flush_blocking().unwrap();
    disk.flush_blocking().unwrap();
    drop(disk);
    let commands: Vec<_> = received.iter().take(3).collect();
    let expected = [command::WRITE, command::FLUSH, command::DISC];
    assert_eq!(commands, expected);
}

/// The process that had it before a live upgrade may have written.
#[test]
fn a_disk_that_was_taken_over_is_flushed() {
    let (sender, received) = mpsc::channel();
    let server = Server::start(Offer::default(), move |_, mut peer| {
        while let Some(request) = peer.receive() {
            let _ = sender.send(request.command);
            peer.answer(&request, &[]);
        }
    });
    let opened = Disk::open(&server.options(LONG)).unwrap();
    let disk = Disk::restore(server.options(LONG), *opened.negotiated()).unwrap();
    drop(opened);
    disk.flush_blocking().unwrap();
    assert!(
        received
            .try_iter()
            .any(|received| received == command::FLUSH)
    );
}

#[test]
fn a_flush_outside_of_queues_does_not_begin_anew_at_a_silent_server() {
    let (sender, connected) = mpsc::channel();
    let server = Server::start(Offer::default(), move |number, mut peer| {
        sender.send(number).unwrap();
        let write = peer.receive().unwrap();
        peer.answer(&write, &[]);
        while peer.receive().is_some() {}
    });
    let disk = Disk::open(&server.options(LONG)).unwrap();
    let mut rig = Rig::of_disk(disk.clone());
    rig.write(0, &[1; 512]).unwrap();
    drop(rig);
    disk.flush_within(Duration::from_millis(300)).unwrap_err();
    drop(disk);
    let mut next = Rig::open(&server.options(LONG));
    next.write(0, &[1; 512]).unwrap();
    let connections: Vec<usize> = connected.try_iter().collect();
    assert_eq!(connections, [0, 1], "the flush has made none");
}

/// No FUA and no zeroes, and pieces of 1 MiB.
fn flushes_only() -> Offer {
    Offer {
        flags: transmission_flag::HAS_FLAGS | transmission_flag::SEND_FLUSH,
        blocks: Some([512, 4096, 1 << 20]),
        ..Offer::default()
    }
}

/// A server may lose what it has answered but not flushed. Zeroes are written as data here.
#[test]
fn interrupted_write_is_sent_again_from_its_start() {
    for op in [Op::Write, Op::WriteZeroes { unmap: false }] {
        let (sender, received) = mpsc::channel();
        let server = Server::start(flushes_only(), move |number, mut peer| {
            while let Some(request) = peer.receive() {
                sender.send((number, request.offset)).unwrap();
                if number == 0 && request.offset > 0 {
                    return;
                }
                peer.answer(&request, &[]);
            }
        });
        let mut rig = Rig::open(&server.options(LONG));
        let data = match op {
            Op::Write => vec![1; 2 << 20],
            _ => Vec::new(),
        };
        rig.carry_out(op, false, 0, 2 << 20, &data);
        let sent: Vec<_> = received.try_iter().collect();
        assert_eq!(sent, [(0, 0), (0, 1 << 20), (1, 0), (1, 1 << 20)], "{op:?}");
    }
}

/// A server may lose what it has answered but not flushed.
#[test]
fn a_stable_write_that_was_not_flushed_is_sent_again_to_a_server_without_fua() {
    let (sender, received) = mpsc::channel();
    let server = Server::start(flushes_only(), move |number, mut peer| {
        while let Some(request) = peer.receive() {
            sender
                .send((number, request.command, request.offset))
                .unwrap();
            if number == 0 && request.command == command::FLUSH {
                return;
            }
            peer.answer(&request, &[]);
        }
    });
    let mut rig = Rig::open(&server.options(LONG));
    rig.carry_out(Op::Write, true, 0, 2 << 20, &vec![1; 2 << 20]);
    for number in 0..2 {
        let sent: Vec<_> = received.try_iter().take(3).collect();
        let expected = [
            (number, command::WRITE, 0),
            (number, command::WRITE, 1 << 20),
            (number, command::FLUSH, 0),
        ];
        assert_eq!(sent, expected);
    }
}
