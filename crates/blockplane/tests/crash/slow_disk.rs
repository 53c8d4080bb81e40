//! Queues that are stopped while their disk does not answer.

use serde_json::json;
use test_support::deadline::{eventually, eventually_ok};

use crate::blocks::BLOCK;
use crate::device::{Device, Op};
use crate::guest::VerifyingGuest;
use crate::server::Server;
use crate::wire::{Disconnected, Wire};

const BLOCKS: u64 = 16;
/// Far longer than anything here takes.
const NEVER_S: u64 = 3600;
/// Longer than `request-timeout`.
const SLOW_S: u64 = 3;

fn node(latency_s: u64) -> String {
    let size = BLOCKS * BLOCK as u64;
    let latency_ns = latency_s * 1_000_000_000;
    format!("--blockdev null-co,node-name=d,size={size},read-zeroes=on,latency-ns={latency_ns}")
}

fn server(packed: bool, nodes: Vec<String>) -> Server {
    let on = if packed { "on" } else { "off" };
    let export = format!("vhost-user-blk,node-name=d,packed={on},iothread=io,request-timeout=1");
    Server::new(BLOCKS * BLOCK as u64, nodes, &export)
}

fn guest(packed: bool, suspends: bool) -> VerifyingGuest {
    let mut guest = VerifyingGuest::new(Device::Blk, packed, 1, BLOCKS);
    guest.suspends_with_inflight_region = suspends;
    guest
}

/// Connects again until the server accepts the setup of the queues.
fn connect(server: &mut Server, guest: &mut VerifyingGuest) -> Wire {
    eventually_ok("it is served", || {
        let link = Wire::new(server.connection());
        guest.connect_and_start(&link, || ()).map(|()| link)
    })
}

/// How many requests were late since the server began.
pub fn late_requests(server: &mut Server) -> u64 {
    let exports = server.client().done("query-block-exports", json!({}));
    exports[0]["late-requests"].as_u64().unwrap()
}

/// Waits until a request has been taken, which takes long.
fn wait_for_late(server: &mut Server) {
    eventually("it is late", || late_requests(server) == 1);
}

#[test]
fn queue_with_inflight_region_stops_without_waiting_for_the_disk() {
    for packed in [false, true] {
        let mut server = server(packed, vec![node(NEVER_S), node(0)]);
        let mut guest = guest(packed, true);
        let link = connect(&mut server, &mut guest);
        guest.ask(0, Op::Read, 3);
        wait_for_late(&mut server);
        assert_eq!(guest.stop(&link, 0), Err(Disconnected));
        // Messages are answered meanwhile.
        let link = Wire::new(server.connection());
        assert_eq!(guest.connect_and_start(&link, || ()), Err(Disconnected));
        assert!(!guest.poll_used(), "nothing was answered");
        server.kill();
        let link = connect(&mut server, &mut guest);
        guest.drains_to(0, &link);
        server.stop();
    }
}

#[test]
fn late_request_is_answered_once_after_a_reconnection() {
    for packed in [false, true] {
        let mut server = server(packed, vec![node(SLOW_S)]);
        let mut guest = guest(packed, true);
        let link = connect(&mut server, &mut guest);
        guest.ask(0, Op::Read, 3);
        wait_for_late(&mut server);
        let _ = guest.stop(&link, 0);
        // On a slow machine the request may have ended in time, and the connection has not.
        drop(link);
        let link = connect(&mut server, &mut guest);
        guest.drains_to(0, &link);
        assert_eq!(guest.answers, 1);
        server.stop();
    }
}

/// It may go on elsewhere with what it believes to be done.
#[test]
fn queue_without_inflight_region_waits_for_the_disk_to_stop() {
    for (uses_inflight_region, suspends) in [(true, false), (false, true)] {
        let mut server = server(false, vec![node(SLOW_S)]);
        let mut guest = guest(false, suspends);
        guest.uses_inflight_region = uses_inflight_region;
        let link = connect(&mut server, &mut guest);
        guest.ask(0, Op::Read, 3);
        wait_for_late(&mut server);
        assert_eq!(guest.stop(&link, 0), Ok(()));
        assert!(guest.poll_used(), "it was answered");
        server.stop();
    }
}
