//! Property test: the split queue and the `virtio-queue` crate agree on a correct driver over several rounds.

use proptest::collection::vec;
use proptest::prelude::*;
use virtqueue::testing::{Buffer, DriverRing, TestMemory};
use virtqueue::{Chain, RingFeatures};

use super::peer::Peer;
use crate::requests::{buffers, pieces};

/// Rings and tables, then data with borders in it.
const REGIONS: [(u64, u64); 4] = [
    (0x1_0000, 0x1_0000),
    (0x10_0000, 0x3000),
    (0x10_3000, 0x1000),
    (0x10_4000, 0x2345),
];
const DATA: u64 = 0x10_0000;
const DATA_LEN: u64 = 0x6345;

/// How a request is described.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Direct,
    Indirect,
    /// Some buffers direct, the rest in a table.
    Mixed(prop::sample::Index),
}

/// One round: what the driver adds, and what the device completes.
#[derive(Clone, Debug)]
struct Round {
    chains: Vec<(Shape, Vec<Buffer>)>,
    /// Which of the requests in flight complete, and with how many bytes.
    completed: Vec<(prop::sample::Index, u32)>,
    /// Where the driver wants to be signalled, from the used index on.
    used_event: u16,
}

/// A request of any shape, with buffers anywhere in the data, which may cross borders of regions.
fn chain() -> impl Strategy<Value = (Shape, Vec<Buffer>)> {
    let shape = prop_oneof![
        Just(Shape::Direct),
        Just(Shape::Indirect),
        any::<prop::sample::Index>().prop_map(Shape::Mixed),
    ];
    (shape, buffers(DATA, DATA_LEN))
}

/// A round with few requests.
fn round() -> impl Strategy<Value = Round> {
    let used_event = prop_oneof![4 => 0..6u16, 1 => 0xfffau16..=0xffff, 1 => any::<u16>()];
    (
        vec(chain(), 0..8),
        vec((any::<prop::sample::Index>(), any::<u32>()), 0..8),
        used_event,
    )
        .prop_map(|(chains, completed, used_event)| Round {
            chains,
            completed,
            used_event,
        })
}

fn base() -> impl Strategy<Value = u16> {
    prop_oneof![Just(0), 0xfff0u16..=0xffff, 0x7ff0u16..0x8010, any::<u16>()]
}

/// Adds a request, if there is room.
fn add(driver: &mut DriverRing, shape: Shape, buffers: &[Buffer]) -> Option<u16> {
    let direct = match shape {
        Shape::Direct => buffers.len(),
        Shape::Indirect => 0,
        Shape::Mixed(cut) => cut.index(buffers.len()),
    };
    let table = usize::from(!matches!(shape, Shape::Direct));
    if direct + table > driver.free_descriptors() {
        return None; // as a driver whose queue is full, it waits
    }
    Some(match shape {
        Shape::Direct => driver.add(buffers),
        _ => driver.add_mixed(&buffers[..direct], &buffers[direct..]),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_same_memory_gives_the_same_chains_and_the_same_used_ring(
        size_exponent in 0..=5u32,
        base in base(),
        event_idx: bool,
        rounds in vec(round(), 1..8),
    ) {
        let memory = TestMemory::with_regions(&REGIONS);
        let features = RingFeatures { event_idx, indirect: true, packed: false, };
        let mut driver = DriverRing::with_base(&memory, 1 << size_exponent, features, base);
        let mut peer = Peer::new(&REGIONS, &driver, base);
        let mut queue = driver.device_queue();
        let guest_memory = memory.guest_memory();
        let mut chain = Chain::new();
        let mut in_flight = Vec::new();
        let mut first_publish = true;

        for Round { chains, completed, used_event } in rounds {
            for (shape, buffers) in chains {
                add(&mut driver, shape, &buffers);
            }
            // The driver's verdict on kicks is about what both sides wrote: the used rings agree.
            driver.publish();
            peer.copy_from(&memory);
            queue.disable_kicks();
            peer.disable_kicks();
            let (used, len) = (driver.layout().used, peer.used_ring().len());
            prop_assert_eq!(memory.read(used, len), peer.used_ring());
            while let Some(head) = queue.pop(&guest_memory, &mut chain)? {
                let ours = (pieces(&memory, chain.readable()), pieces(&memory, chain.writable()));
                let sum = |pieces: &[(u64, usize)]| pieces.iter().map(|p| p.1 as u64).sum::<u64>();
                prop_assert_eq!(chain.readable_len(), sum(&ours.0));
                prop_assert_eq!(chain.writable_len(), sum(&ours.1));
                prop_assert_eq!(peer.pop(), Some((head, ours)));
                in_flight.push(head);
            }
            prop_assert_eq!(peer.pop(), None);
            prop_assert_eq!(queue.enable_kicks_and_recheck(), peer.enable_kicks_and_recheck());

            driver.set_used_event(driver.used_idx().wrapping_add(used_event));
            peer.copy_from(&memory);
            let mut pushed = Vec::new();
            for (which, written_bytes) in completed {
                if !in_flight.is_empty() {
                    let head = in_flight.swap_remove(which.index(in_flight.len()));
                    queue.push(head, written_bytes);
                    peer.push(head, written_bytes);
                    pushed.push((head, written_bytes));
                }
            }
            // Two differences by intent: the peer leaves it to its caller to ask only when there
            // was something, and takes the driver's word for the first batch.
            let asked = peer.needs_notification();
            prop_assert_eq!(queue.publish(), !pushed.is_empty() && (asked || first_publish));
            first_publish &= pushed.is_empty();
            prop_assert_eq!(memory.read(used, len), peer.used_ring());
            prop_assert_eq!(driver.take_used(), pushed);
        }
        memory.check_canaries();
    }
}
