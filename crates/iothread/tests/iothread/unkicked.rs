//! A front-end that gives no kick descriptor: its queue is polled by a timer.

use iothread::{IothreadHandle, IothreadSettings};

use crate::guest::{Guest, null_disk};

#[test]
fn a_queue_without_kicks_is_served() {
    let iothread = IothreadHandle::spawn(IothreadSettings::with_id("test")).unwrap();
    let mut guest = Guest::new(64, true);
    let mut setup = guest.setup(&null_disk(0), 0);
    setup.queue.descriptors.kick = None;
    let vring = iothread.start_vring(setup).unwrap();
    for round in 1..=50 {
        guest.read(0, 0);
        // Nothing watches this kick.
        guest.submit();
        assert_eq!(guest.wait_all().len(), 1, "round {round}");
    }
    assert_eq!(vring.stop(), Some(50));
}
