//! Ends of connections with unanswered requests: other connections wait for them, and for nothing else.

use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nbd::client::{Cancellation, ClientOptions, Disk, RequestGroup};
use nbd::wire::transmission_flag;

use super::rig::Rig;
use super::server::{ALL_FLAGS, Offer, Server, apply};

const LONG: Duration = Duration::from_secs(60);

/// How long the server takes for the slow write where nothing else has a limit.
const MOMENT: Duration = Duration::from_millis(300);

/// A server with a slow disk: the write of its first connection is carried out some time after the client has ended that, and then the
/// server closes its end. Other connections are served at once.
struct SlowServer {
    server: Server,
    disk: Arc<Mutex<Vec<u8>>>,
    has_carried_out: Receiver<()>,
}

impl SlowServer {
    /// `reply` is sent for the first connection's write.
    fn start(takes: Duration, reply: &'static [u8]) -> Self {
        let disk = Arc::new(Mutex::new(vec![0; 16 << 20]));
        let of_server = disk.clone();
        let (sender, has_carried_out) = mpsc::channel();
        let offer = Offer {
            flags: ALL_FLAGS | transmission_flag::CAN_MULTI_CONN,
            ..Offer::default()
        };
        let server = Server::start(offer, move |number, mut peer| {
            let (disk, sender) = (of_server.clone(), sender.clone());
            std::thread::spawn(move || {
                if number > 0 {
                    return peer.serve(&disk);
                }
                let write = peer.receive().unwrap();
                peer.send(reply);
                assert_eq!(peer.receive(), None);
                std::thread::sleep(takes);
                apply(&mut disk.lock().unwrap(), &write);
                sender.send(()).unwrap();
            });
        });
        SlowServer {
            server,
            disk,
            has_carried_out,
        }
    }

    /// The last write has come after the slow one.
    fn assert_has(&self, byte: u8) {
        self.has_carried_out.recv().unwrap();
        assert_eq!(self.disk.lock().unwrap()[0], byte);
    }
}

/// Writes to a disk whose server is silent, and gives the write up. The connection is ending afterwards.
fn give_up_write(mut rig: Rig) {
    let group = RequestGroup::new(rig.queue.disk());
    rig.group = Some(group.clone());
    let given_up = rig.start_write(0, &[1; 512]);
    rig.iterate(Duration::ZERO);
    let _cancellation = Cancellation::begin(&group).unwrap();
    rig.wait(given_up).unwrap_err();
}

/// A client that does not wait would connect after half a second, send the write again and write anew before the old copy is carried out.
#[test]
fn the_new_connection_waits_for_the_end_of_the_old_one() {
    let slow = SlowServer::start(5 * MOMENT, &[0xff; 16]);
    let mut rig = Rig::open(&slow.server.options(LONG));
    rig.write(0, &[1; 512]).unwrap();
    rig.write(0, &[2; 512]).unwrap();
    slow.assert_has(2);
}

/// The next job may open the export anew, or use the same disk. Its requests do not fail, although the old connection takes longer to end
/// than a server usually has for an answer.
#[test]
fn the_next_disk_or_queue_is_not_connected_before_a_given_up_write_has_ended() {
    for is_opened_anew in [true, false] {
        let attempt_timeout = Duration::from_secs(2);
        let slow = SlowServer::start(attempt_timeout + MOMENT, &[]);
        let options = ClientOptions {
            attempt_timeout,
            ..slow.server.options(Duration::ZERO)
        };
        let disk = Disk::open(&options).unwrap();
        give_up_write(Rig::of_disk(disk.clone()));
        let mut next = match is_opened_anew {
            true => {
                drop(disk);
                Rig::open(&options)
            }
            false => Rig::of_disk(disk),
        };
        next.write(0, &[2; 512]).unwrap();
        slow.assert_has(2);
    }
}

/// It is of another queue, which has ended in the meantime and had all its answers.
#[test]
fn an_idle_connection_is_not_used_before_a_given_up_write_has_ended() {
    let slow = SlowServer::start(MOMENT, &[]);
    let disk = Disk::open(&slow.server.options(Duration::ZERO)).unwrap();
    let [first, mut second] = [(); 2].map(|()| Rig::of_disk(disk.clone()));
    second.read(0, 512).unwrap();
    give_up_write(first);
    drop(second);
    let mut next = Rig::of_disk(disk);
    next.write(0, &[2; 512]).unwrap();
    slow.assert_has(2);
}

/// In a live upgrade guests are paused meanwhile. One server ends its connection only after the other one's was closed.
#[test]
fn connections_of_several_disks_are_closed_before_any_end_is_waited_for() {
    let (sender, other_is_closed) = mpsc::channel();
    let silent = Server::start(Offer::default(), move |_, mut peer| {
        while peer.receive().is_some() {}
        other_is_closed.recv().unwrap();
    });
    let other = Server::start(Offer::default(), move |_, mut peer| {
        peer.serve(&Mutex::default());
        sender.send(()).unwrap();
    });
    let [silent, other] = [silent, other].map(|server| Disk::open(&server.options(LONG)).unwrap());
    give_up_write(Rig::of_disk(silent.clone()));
    assert!(Disk::close_connections(&[&silent, &other]));
}
