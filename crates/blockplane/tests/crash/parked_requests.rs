//! Requests that wait, after an error, for a disk that hangs or for a limit, when their server ends or their front-end goes: they are
//! in the in-flight region, and resubmitted in their order.
//!
//! Their disk has one worker, and they are all of one block: what is in there at the end was written last.

use serde_json::{Value, json};
use test_support::deadline::eventually_ok;

use crate::blocks::{BLOCK, bytes};
use crate::client::Client;
use crate::device::{Device, Op};
use crate::guest::VerifyingGuest;
use crate::server::{IMAGE, Server};
use crate::wire::Wire;

const BLOCKS: u64 = 16;
/// The block that is written, and one that is read.
const WRITTEN: usize = 5;
const READ: usize = 7;
/// Requests that wait.
const WRITES: usize = 5;

const NOSPACE: &str = ",inject-error.0.iotype=write,inject-error.0.errno=28";
const HANGS: &str = ",inject-error.0.iotype=write,inject-error.0.action=hang";

fn node(rule: &str) -> String {
    format!(
        "--blockdev file,node-name=d,filename={IMAGE},aio=threads --blockdev blkdebug,node-name=b,image=d{rule}"
    )
}

/// A node that lets one write pass; the next ones wait for hours.
fn throttled_node() -> String {
    format!(
        "--object throttle-group,id=g,limits.bps-write=1 --blockdev file,node-name=d,filename={IMAGE},aio=threads \
         --blockdev throttle,node-name=b,throttle-group=g,file=d"
    )
}

/// The options of an export whose failed writes wait.
fn export(device: Device, packed: bool) -> String {
    let on = if packed { "on" } else { "off" };
    let kind = match device {
        Device::Blk => "vhost-user-blk,werror=stop",
        Device::Scsi => "vhost-user-scsi,num-queues=1",
    };
    format!("{kind},node-name=b,packed={on},iothread=io")
}

struct Disk {
    server: Server,
    guest: VerifyingGuest,
    link: Wire,
    /// The one that takes requests.
    queue: usize,
    /// What was asked to be written last.
    last: u64,
}

impl Disk {
    fn new(packed: bool, rule: &str) -> Self {
        Self::on_device(Device::Blk, packed, rule)
    }

    /// A server with an export of this kind, and a guest that has used each of its descriptors.
    fn on_device(device: Device, packed: bool, rule: &str) -> Self {
        Self::with_node(device, packed, node(rule))
    }

    /// The same, with this node.
    fn with_node(device: Device, packed: bool, node: String) -> Self {
        let export = export(device, packed);
        let mut server = Server::new(BLOCKS * BLOCK as u64, vec![node], &export);
        let mut guest = VerifyingGuest::new(device, packed, 1, BLOCKS);
        let link = server.connect_guest(&mut guest);
        // Descriptors are used again in the opposite order: that of their numbers says nothing.
        let queue = guest.request_queues().start;
        for _ in 0..=WRITES {
            guest.ask(queue, Op::Read, READ);
        }
        guest.drains_to(0, &link);
        Disk {
            server,
            guest,
            link,
            queue,
            last: 0,
        }
    }

    /// Makes writes that wait, each with a read behind it that is answered.
    fn park_writes(&mut self) {
        for write in 1..=WRITES {
            self.last = self.guest.ask(self.queue, Op::Write, WRITTEN);
            self.guest.ask(self.queue, Op::Read, READ);
            self.guest.drains_to(write, &self.link);
        }
    }

    fn reconnect(&mut self) {
        // The last connection ends first: a server has one front-end at a time.
        self.link = Wire::new(self.server.connection());
        assert_eq!(self.guest.connect_and_start(&self.link, || ()), Ok(()));
    }

    /// Waits until all writes wait after an error.
    fn wait_until_parked(&mut self, client: &mut Client) {
        eventually_ok("all writes wait", || {
            let export = client.done("query-block-exports", json!({}))[0].take();
            let all_wait = export["waiting-requests"] == WRITES;
            all_wait.then_some(()).ok_or(export)
        });
    }

    /// Stops and starts the queue while they wait.
    fn stop_and_restart_queue(&mut self, client: &mut Client) {
        self.wait_until_parked(client);
        assert_eq!(self.guest.stop(&self.link, 0), Ok(()));
        assert!(!self.guest.poll_used(), "nothing was answered");
        assert_eq!(self.guest.start(&self.link, 0), Ok(()));
        self.wait_until_parked(client);
    }

    fn fix_disk(&mut self, client: &mut Client) {
        let nothing: Value = json!({"node-name": "b", "inject-error": []});
        client.done("x-blkdebug-set", nothing);
        client.done("block-export-resume", json!({"id": "e"}));
    }

    /// Waits until all is answered, which was done in its order.
    fn drain_and_check_image(mut self) {
        self.guest.drains_to(0, &self.link);
        self.server.stop();
        let image = std::fs::read(self.server.folder.join(IMAGE)).unwrap();
        let found = &image[WRITTEN * BLOCK..][..BLOCK];
        assert!(
            found == bytes(WRITTEN, self.last),
            "the last write is not the last"
        );
    }
}

#[test]
fn parked_requests_survive_a_crash() {
    for packed in [false, true] {
        for end in [Server::kill, Server::stop] {
            let mut disk = Disk::new(packed, NOSPACE);
            disk.park_writes();
            let mut client = disk.server.client();
            disk.wait_until_parked(&mut client);
            drop(client);
            end(&mut disk.server);
            // Also a server for which nothing is better.
            disk.reconnect();
            let mut client = disk.server.client();
            disk.wait_until_parked(&mut client);
            assert!(!disk.guest.poll_used(), "nothing was answered");
            drop(client);
            end(&mut disk.server);
            disk.server.nodes = vec![node("")];
            disk.reconnect();
            disk.drain_and_check_image();
        }
    }
}

#[test]
fn throttled_requests_survive_a_crash() {
    for packed in [false, true] {
        for end in [Server::kill, Server::stop] {
            let mut disk = Disk::with_node(Device::Blk, packed, throttled_node());
            disk.guest.ask(disk.queue, Op::Write, READ);
            disk.guest.drains_to(0, &disk.link);
            disk.park_writes();
            let mut client = disk.server.client();
            eventually_ok("all writes wait", || {
                let stats = client.done("query-blockstats", json!({}))[0].take();
                let all_wait = stats["throttle"][0]["waiting"] == WRITES;
                all_wait.then_some(()).ok_or(stats)
            });
            drop(client);
            end(&mut disk.server);
            // One that throttles them again, and one that does not.
            disk.reconnect();
            end(&mut disk.server);
            disk.server.nodes = vec![node("")];
            disk.reconnect();
            disk.drain_and_check_image();
        }
    }
}

#[test]
fn parked_requests_survive_a_reconnection() {
    for packed in [false, true] {
        let mut disk = Disk::new(packed, NOSPACE);
        disk.park_writes();
        let mut client = disk.server.client();
        for _ in 0..3 {
            disk.wait_until_parked(&mut client);
            disk.reconnect();
            assert!(!disk.guest.poll_used(), "nothing was answered");
        }
        disk.wait_until_parked(&mut client);
        disk.fix_disk(&mut client);
        disk.drain_and_check_image();
    }
}

/// A front-end without an in-flight region knows only the queue's index, which must not count requests without an answer.
#[test]
fn parked_requests_return_to_the_ring_when_their_queue_stops() {
    for packed in [false, true] {
        let mut disk = Disk::new(packed, NOSPACE);
        for _ in 0..WRITES {
            disk.last = disk.guest.ask(0, Op::Write, WRITTEN);
        }
        let mut client = disk.server.client();
        disk.stop_and_restart_queue(&mut client);
        disk.fix_disk(&mut client);
        disk.drain_and_check_image();
    }
}

/// Requests after them were answered: the queue's index says that they were as well.
#[test]
fn log_names_export_and_queue_of_parked_requests_that_fail() {
    let mut disk = Disk::new(false, NOSPACE);
    disk.park_writes();
    let mut client = disk.server.client();
    disk.wait_until_parked(&mut client);
    assert_eq!(disk.guest.stop(&disk.link, 0), Ok(()));
    let log = disk.server.log();
    let names = format!("export=e queue=0 requests={WRITES} ");
    assert!(log.contains(&names), "{log}");
}

/// With the in-flight region a front-end need not know which requests were admitted last.
#[test]
fn parked_requests_stay_in_the_inflight_region() {
    for packed in [false, true] {
        let mut disk = Disk::new(packed, NOSPACE);
        disk.guest.suspends_with_inflight_region = true;
        disk.reconnect();
        disk.park_writes();
        let mut client = disk.server.client();
        disk.stop_and_restart_queue(&mut client);
        assert_eq!(disk.guest.stop(&disk.link, 0), Ok(()));
        drop(client);
        // The other end of a migration.
        disk.server.stop();
        disk.server.nodes = vec![node("")];
        disk.reconnect();
        disk.drain_and_check_image();
    }
}

#[test]
fn unanswered_requests_are_resubmitted_in_order() {
    for packed in [false, true] {
        let mut disk = Disk::new(packed, HANGS);
        disk.park_writes();
        for _ in 0..3 {
            disk.server.kill();
            disk.reconnect();
        }
        disk.server.kill();
        disk.server.nodes = vec![node("")];
        disk.reconnect();
        disk.drain_and_check_image();
    }
}

/// A front-end may know only the queue's index. Front-ends disable their queues before they stop them.
#[test]
fn recovered_requests_complete_before_a_disabled_queue_stops() {
    for device in [Device::Blk, Device::Scsi] {
        for packed in [false, true] {
            let mut disk = Disk::on_device(device, packed, HANGS);
            disk.park_writes();
            disk.server.kill();
            disk.server.nodes = vec![node("")];
            disk.guest.stays_disabled = true;
            disk.reconnect();
            for queue in 0..=disk.queue {
                assert_eq!(disk.guest.stop(&disk.link, queue), Ok(()));
            }
            disk.guest.poll_used();
            // The first command of a SCSI disk hears that it was powered on, and is asked for again.
            let again = usize::from(device == Device::Scsi);
            assert_eq!(disk.guest.in_flight(), again, "the others are answered");
            if device == Device::Blk {
                disk.drain_and_check_image();
            }
        }
    }
}
