//! Connections that break after a write was answered: the server may have crashed and lost it, and flushes succeed afterwards.

use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use engine::Op;
use nbd::client::{Disk, RequestGroup};

use super::rig::Rig;
use super::server::{Offer, Server};

/// A server that ends its first connection after `count` requests, and reports that.
fn start_server(count: usize) -> (Server, Receiver<()>) {
    let disk = Mutex::new(vec![0; 1 << 20]);
    let (sender, has_ended) = mpsc::channel();
    let server = Server::start(Offer::default(), move |number, mut peer| {
        if number > 0 {
            return peer.serve(&disk);
        }
        for _ in 0..count {
            let request = peer.receive().unwrap();
            peer.answer(&request, &[]);
        }
        drop(peer);
        let _ = sender.send(());
    });
    (server, has_ended)
}

#[test]
fn a_job_learns_that_its_connection_was_replaced_before_its_last_flush() {
    let (server, _) = start_server(1);
    let mut rig = Rig::open(&server.options(Duration::from_secs(60)));
    let disk = rig.queue.disk().clone();
    let group = RequestGroup::new(&disk);
    rig.write(0, &[1; 512]).unwrap();
    assert!(!group.may_have_lost_writes());
    rig.carry_out(Op::Flush, false, 0, 0, &[]);
    assert!(group.may_have_lost_writes());
    let next = RequestGroup::new(&disk);
    rig.write(0, &[2; 512]).unwrap();
    assert!(!next.may_have_lost_writes(), "it began later");
}

#[test]
fn a_job_learns_that_the_connection_broke_when_its_requests_had_ended() {
    for is_dropped_first in [false, true] {
        let (server, has_ended) = start_server(1);
        let mut rig = Rig::open(&server.options(Duration::from_secs(60)));
        let disk = rig.queue.disk().clone();
        let group = RequestGroup::new(&disk);
        rig.write(0, &[1; 512]).unwrap();
        if !is_dropped_first {
            // The server's end is there when the queue is dropped.
            has_ended.recv().unwrap();
        }
        drop(rig);
        disk.flush_blocking().unwrap();
        assert!(group.may_have_lost_writes());
    }
}

/// The node was added long before, and its server was started again since.
#[test]
fn a_connection_that_broke_before_the_job_is_replaced() {
    let (server, has_ended) = start_server(0);
    let disk = Disk::open(&server.options(Duration::ZERO)).unwrap();
    has_ended.recv().unwrap();
    let group = RequestGroup::new(&disk);
    let mut rig = Rig::of_disk(disk);
    rig.write(0, &[1; 512]).unwrap();
    assert!(!group.may_have_lost_writes());
}

#[test]
fn a_job_has_lost_nothing_while_its_connection_lasts() {
    let (server, _) = start_server(usize::MAX);
    let mut rig = Rig::of_disk(Disk::open(&server.options(Duration::ZERO)).unwrap());
    let disk = rig.queue.disk().clone();
    let group = RequestGroup::new(&disk);
    rig.write(0, &[1; 512]).unwrap();
    drop(rig);
    disk.flush_blocking().unwrap();
    Rig::of_disk(disk.clone()).write(0, &[1; 512]).unwrap();
    disk.flush_blocking().unwrap();
    assert!(!group.may_have_lost_writes());
}
