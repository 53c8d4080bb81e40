//! The packed queue against a driver that was written from the specification.

use std::collections::VecDeque;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use virtqueue::testing::{Buffer, Event, PackedDriverRing, TestMemory};
use virtqueue::{Chain, PackedRing, RingError, RingFeatures};

use crate::requests::{buffers, pieces};

const PACKED: RingFeatures = RingFeatures {
    event_idx: false,
    indirect: true,
    packed: true,
};
const EVENT_IDX: RingFeatures = RingFeatures {
    event_idx: true,
    ..PACKED
};
/// Where buffers are; the rings and tables are below.
const DATA: u64 = 0x8_0000;
const DATA_LEN: u64 = 0x8_0000;

fn test_memory() -> TestMemory {
    TestMemory::with_regions(&[(0, DATA + DATA_LEN)])
}

/// What has not happened after this time never will.
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// One round: what the driver adds, and what the device completes.
#[derive(Clone, Debug)]
struct Round {
    /// Requests; true: in an indirect table.
    chains: Vec<(bool, Vec<Buffer>)>,
    /// Which of the requests in flight complete, and with how many bytes.
    completed: Vec<(Index, u32)>,
    event: WhenToSignal,
    /// Whether the device asks for kicks before the driver publishes.
    asleep: bool,
}

/// What the driver asks of the device.
#[derive(Clone, Copy, Debug)]
enum WhenToSignal {
    Always,
    Never,
    Reserved,
    /// When the descriptor so many after the next used entry is passed.
    Ahead(u16),
    /// Wherever.
    At(u16, bool),
}

/// A round with few requests.
fn round() -> impl Strategy<Value = Round> {
    let event = prop_oneof![
        1 => Just(WhenToSignal::Always),
        1 => Just(WhenToSignal::Never),
        1 => Just(WhenToSignal::Reserved),
        4 => (0..12u16).prop_map(WhenToSignal::Ahead),
        1 => (0..0x8000u16, any::<bool>()).prop_map(|(index, wrap)| WhenToSignal::At(index, wrap)),
    ];
    let completed = vec((any::<Index>(), prop_oneof![Just(0), any::<u32>()]), 0..8);
    let chain = (any::<bool>(), buffers(DATA, DATA_LEN));
    (vec(chain, 0..8), completed, event, any::<bool>()).prop_map(
        |(chains, completed, event, asleep)| Round {
            chains,
            completed,
            event,
            asleep,
        },
    )
}

fn following((index, wrap): (u16, bool), size: u16) -> (u16, bool) {
    if index + 1 == size {
        (0, !wrap)
    } else {
        (index + 1, wrap)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn what_the_driver_adds_comes_out_and_what_is_pushed_comes_back(
        size in prop_oneof![9 => 1..=9u16, 1 => Just(16), 1 => Just(100), 1 => Just(1024)],
        start in any::<Index>(),
        wrap: bool,
        event_idx: bool,
        rounds in vec(round(), 1..12),
    ) {
        let memory = test_memory();
        let features = RingFeatures { event_idx, ..PACKED };
        let base = (u16::try_from(start.index(size.into())).unwrap(), wrap);
        let mut driver = PackedDriverRing::with_base(&memory, size, features, base);
        let mut queue = driver.device_queue();
        let guest_memory = memory.guest_memory();
        let mut chain = Chain::new();
        let mut added = VecDeque::new();
        let mut in_flight = Vec::new();
        let mut first_publish = true;

        for Round { chains, completed, event, asleep } in rounds {
            if asleep {
                prop_assert!(!queue.enable_kicks_and_recheck(), "all was taken");
            } else {
                queue.disable_kicks();
            }
            let mut fresh = false;
            for (indirect, buffers) in chains {
                let need = if indirect { 1 } else { buffers.len() };
                if need > usize::from(driver.free_descriptors()) {
                    continue; // as a driver whose ring is full, it waits
                }
                let id = if indirect { driver.add_indirect(&buffers) } else { driver.add(&buffers) };
                added.push_back((id, need, buffers));
                fresh = true;
            }
            prop_assert!(!queue.has_available(), "not shown yet");
            prop_assert_eq!(driver.publish(), fresh && asleep, "a kick is asked for");
            prop_assert_eq!(queue.has_available(), fresh);
            while let Some(popped) = queue.pop(&guest_memory, &mut chain)? {
                let (id, descriptors, buffers) = added.pop_front().expect("the driver added it");
                prop_assert_eq!((popped.id, usize::from(popped.descriptors)), (id, descriptors));
                let expected = |writable| -> Vec<_> {
                    let of_side = buffers.iter().filter(|buffer| buffer.writable == writable);
                    of_side
                        .filter(|buffer| buffer.len > 0)
                        .map(|buffer| (buffer.addr, buffer.len as usize))
                        .collect()
                };
                prop_assert_eq!(pieces(&memory, chain.readable()), expected(false));
                prop_assert_eq!(pieces(&memory, chain.writable()), expected(true));
                in_flight.push(popped);
            }
            prop_assert!(added.is_empty(), "all that was shown is taken");

            let at = driver.next_used();
            let event = match event {
                WhenToSignal::Always => Event::Always,
                WhenToSignal::Never => Event::Never,
                WhenToSignal::Reserved => Event::Reserved(3),
                WhenToSignal::At(index, wrap) => Event::At(index, wrap),
                WhenToSignal::Ahead(count) => {
                    let (index, wrap) = (0..count).fold(at, |at, _| following(at, size));
                    Event::At(index, wrap)
                }
            };
            driver.set_driver_event(event);
            let (mut pushed, mut passed, mut end) = (Vec::new(), Vec::new(), at);
            for (which, written_bytes) in completed {
                if !in_flight.is_empty() {
                    let chain = in_flight.swap_remove(which.index(in_flight.len()));
                    queue.push(chain, written_bytes);
                    pushed.push((chain.id, written_bytes));
                    for _ in 0..chain.descriptors {
                        passed.push(end);
                        end = following(end, size);
                    }
                }
            }
            prop_assert!(!driver.has_used(), "not published yet");
            let asked = match event {
                Event::Never => false,
                Event::At(index, wrap) if event_idx => {
                    first_publish || passed.contains(&(index, wrap))
                }
                _ => true,
            };
            let signals = queue.publish();
            match event {
                // There is no such descriptor: whether it was passed has no answer.
                Event::At(index, _) if event_idx && index >= size => {
                    prop_assert!(!signals || !pushed.is_empty());
                }
                _ => prop_assert_eq!(signals, !pushed.is_empty() && asked),
            }
            first_publish &= pushed.is_empty();
            prop_assert_eq!(driver.take_used(), pushed);
        }
        memory.check_canaries();
    }
}

#[test]
fn only_chains_that_were_popped_last_can_be_returned() {
    let buffers = [Buffer::writable(0, 4), Buffer::writable(8, 4)];
    let memory = test_memory();
    let guest_memory = memory.guest_memory();
    let mut driver = PackedDriverRing::new(&memory, 7, PACKED);
    let mut queue = driver.device_queue();
    let mut chain = Chain::new();
    // At every place of both laps.
    for _ in 0..14 {
        let added: Vec<u16> = [1, 2, 1, 2]
            .map(|count| driver.add(&buffers[..count]))
            .into();
        driver.publish();
        let mut pop = |queue: &mut PackedRing| queue.pop(&guest_memory, &mut chain).unwrap();
        let [first, second, third, fourth] = [(); 4].map(|()| pop(&mut queue).unwrap());
        let begins = queue.published_used();
        queue.push(first, 0);
        let waiting = [fourth, second, third];
        assert_eq!(
            queue.try_unpop_chains(&waiting),
            None,
            "the first is not published"
        );
        queue.publish();
        let (at, stands) = (queue.next_avail(), queue.published_used());
        assert_ne!(begins, stands);
        for others in [&waiting[..2], &[second], &[second; 3], &[]] {
            assert_eq!(queue.try_unpop_chains(others), None, "{others:?}");
            assert_eq!(queue.next_avail(), at);
        }
        let in_order = queue.try_unpop_chains(&waiting);
        assert_eq!(in_order.as_deref(), Some(&[second, third, fourth][..]));
        assert_eq!(
            (queue.next_avail(), queue.published_used()),
            (stands, stands)
        );
        assert!(queue.has_available());
        // Others are taken after the first of them.
        let again = [(); 3].map(|()| pop(&mut queue).unwrap());
        assert_eq!(again, [second, third, fourth]);
        queue.push(third, 0);
        queue.publish();
        assert_eq!(queue.try_unpop_chains(&[second, fourth]), None);
        queue.push(fourth, 0);
        queue.push(second, 0);
        queue.publish();
        let used: Vec<u16> = driver.take_used().into_iter().map(|used| used.0).collect();
        assert_eq!(used, [added[0], added[2], added[3], added[1]]);
    }
}

/// Front-ends made for split queues start at 0, which is a place of a packed ring too.
#[test]
fn a_base_of_zero_is_the_beginning_of_a_new_ring_and_the_second_lap_of_a_used_one() {
    let start = |driver: &PackedDriverRing| {
        let memory = driver.memory().guest_memory();
        PackedRing::new(&memory, driver.layout(), PACKED, 0).unwrap()
    };
    let pop = |driver: &PackedDriverRing| {
        let memory = driver.memory().guest_memory();
        start(driver).pop(&memory, &mut Chain::new()).unwrap()
    };
    for size in [1u16, 4, 7] {
        let memory = test_memory();
        let mut driver = PackedDriverRing::new(&memory, size, PACKED);
        assert_eq!(start(&driver).next_avail(), 0x8000);
        let id = driver.add(&[Buffer::readable(0, 1)]);
        driver.publish();
        assert_eq!(pop(&driver).unwrap().id, id);

        // One lap later, also when the lap's first used entry is not at its beginning and one chain
        // takes all but one descriptor.
        let guest_memory = memory.guest_memory();
        // The last: two laps more, and one chain from the second into the third, whose first descriptor
        // is then no used entry.
        let three_laps = match size {
            1 => vec![1, 1, 1],
            _ => vec![size, size - 1, 2, size - 1],
        };
        for chains in [vec![size], vec![1, size - 1], vec![size - 1, 1], three_laps] {
            let mut driver = PackedDriverRing::new(&memory, size, PACKED);
            let mut queue = start(&driver);
            for descriptors in chains.into_iter().filter(|count| *count > 0) {
                driver.add(&vec![Buffer::readable(0, 1); descriptors.into()]);
                driver.publish();
                let popped = queue
                    .pop(&guest_memory, &mut Chain::new())
                    .unwrap()
                    .unwrap();
                queue.push(popped, 0);
                queue.publish();
                driver.take_used();
            }
            assert_eq!(driver.base(), 0, "the second lap");
            assert_eq!(start(&driver).next_avail(), 0);
            let id = driver.add(&vec![Buffer::readable(0, 1); size.into()]);
            driver.publish();
            assert_eq!(start(&driver).next_avail(), 0, "the driver went on");
            assert_eq!(pop(&driver).unwrap().id, id);
        }
    }
}

/// Both sides wait, on two threads, and neither waits for ever.
#[test]
fn no_kick_and_no_signal_is_lost() {
    const REQUESTS: u32 = 20_000;
    for features in [PACKED, EVENT_IDX] {
        let memory = test_memory();
        let mut driver = PackedDriverRing::new(&memory, 5, features);
        let mut queue = driver.device_queue();
        let guest_memory = memory.guest_memory();
        let (kick, kicked) = std::sync::mpsc::channel();
        let (call, called) = std::sync::mpsc::channel();
        let device = std::thread::spawn(move || {
            let mut chain = Chain::new();
            let mut done = 0;
            while done < REQUESTS {
                while let Some(popped) = queue.pop(&guest_memory, &mut chain)? {
                    queue.push(popped, done);
                    done += 1;
                    if done % 3 == 0 && queue.publish() {
                        let _ = call.send(());
                    }
                }
                if queue.publish() {
                    let _ = call.send(());
                }
                if done < REQUESTS && !queue.enable_kicks_and_recheck() {
                    kicked.recv_timeout(STUCK_AFTER).expect("a kick");
                }
                queue.disable_kicks();
            }
            Ok::<_, RingError>(())
        });
        let (mut asked, mut answered) = (0, 0);
        while answered < REQUESTS {
            while asked < REQUESTS && driver.free_descriptors() >= 2 {
                driver.add(&[Buffer::readable(0, 1), Buffer::writable(8, 1)]);
                asked += 1;
            }
            if driver.publish() {
                let _ = kick.send(());
            }
            driver.set_driver_event(match driver.next_used() {
                (index, wrap) if features.event_idx => Event::At(index, wrap),
                _ => Event::Always,
            });
            if !driver.has_used() {
                called.recv_timeout(STUCK_AFTER).expect("a signal");
            }
            driver.set_driver_event(Event::Never);
            for (_, written_bytes) in driver.take_used() {
                assert_eq!(written_bytes, answered, "in order, none twice");
                answered += 1;
            }
        }
        device.join().unwrap().unwrap();
    }
}
