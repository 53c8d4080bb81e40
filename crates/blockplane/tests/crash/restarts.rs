//! One server after the other, each ended in its own way and at its own moment, under a guest that goes on.

use std::time::{Duration, Instant};

use crate::blocks::BLOCK;
use crate::device::Device;
use crate::guest::VerifyingGuest;
use crate::image::Image;
use crate::random::Random;
use crate::server::Server;
use crate::wire::{Disconnected, Wire};

/// Few enough that requests meet.
const BLOCKS: u64 = 64;
/// Bytes of the disk.
pub const DISK_BYTES: u64 = BLOCKS * BLOCK as u64;

#[derive(Clone, Copy)]
pub struct Variant {
    pub device: Device,
    pub packed: bool,
    pub queues: usize,
    /// The size of a ring as the front-end says it to have a buffer for requests in flight.
    pub named_ring_size: u16,
}

/// How a server's life ends, or what else happens to its front-end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// SIGKILL before so many messages.
    KilledWhileConnecting(usize),
    /// SIGKILL, with requests in flight.
    Killed,
    /// The front-end goes and comes back.
    Disconnected,
    /// SIGTERM, in the middle of the load.
    Terminated,
    /// One queue is stopped and started.
    QueueStopped,
}

impl End {
    fn choose(random: &mut Random, messages: usize) -> Self {
        match random.below(16) {
            0..3 => End::KilledWhileConnecting(random.below(messages)),
            3..5 => End::Disconnected,
            5 => End::Terminated,
            6 => End::QueueStopped,
            _ => End::Killed,
        }
    }
}

/// Kills `kills` servers under a guest; then the last one completes all requests, and the image has what was written.
pub fn assert_kills_lose_nothing(variant: Variant, image: Image, kills: u32) {
    let Variant {
        device,
        packed,
        queues,
        named_ring_size,
    } = variant;
    let mut random = Random(u64::from(kills) ^ 0x5eed);
    let kind = match device {
        Device::Blk => "vhost-user-blk",
        Device::Scsi => "vhost-user-scsi",
    };
    let packed_queues = if packed { "on" } else { "off" };
    let export = format!("{kind},node-name=d,num-queues={queues},packed={packed_queues}");
    let mut server = Server::new(DISK_BYTES, image.nodes(), &export);
    let mut guest = VerifyingGuest::new(device, packed, queues, BLOCKS);
    guest.named_ring_size = named_ring_size;
    let mut killed = 0;
    while killed < kills {
        // The guest does not know whether anybody is there.
        for _ in 0..random.below(3) {
            guest.ask_some(&mut random);
            guest.poll_used();
        }
        let end = End::choose(&mut random, guest.messages());
        let link = Wire::new(server.connection());
        if let End::KilledWhileConnecting(message) = end {
            let mut messages = 0;
            let started = guest.connect_and_start(&link, || {
                if messages == message {
                    server.kill();
                }
                messages += 1;
            });
            assert!(started == Err(Disconnected) || messages <= message);
            server.kill();
            killed += 1;
            continue;
        }
        assert_eq!(guest.connect_and_start(&link, || ()), Ok(()));
        // Often before anything else is done than what was found in flight.
        let enough = random.below(4) * random.below(150);
        guest.run_load(&link, &mut random, enough as u64);
        spin(Duration::from_micros(random.below(500) as u64));
        match end {
            End::Disconnected => {}
            End::Terminated => server.stop(),
            End::QueueStopped => {
                let all = guest.request_queues();
                let index = all.start + random.below(all.len());
                assert_eq!(guest.stop(&link, index), Ok(()));
                guest.poll_used();
                assert_eq!(guest.start(&link, index), Ok(()));
                guest.run_load(&link, &mut random, 50);
            }
            End::Killed | End::KilledWhileConnecting(_) => {
                server.kill();
                killed += 1;
            }
        }
    }
    let link = server.connect_guest(&mut guest);
    guest.read_all(&link);
    assert!(guest.answers > u64::from(kills) * 10, "little was done");
    server.stop();
    guest.assert_image(&image.content(&server.folder));
}

/// Waits for a time that may be shorter than any sleep.
fn spin(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}
