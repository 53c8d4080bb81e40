//! Exchange of the nodes behind the units of a controller while commands are in flight.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use block::{FaultAction, FaultRule, Faults, Node, Op};
use engine::Errno;
use iothread::{DeviceCommand, ScsiDisk, VringHandle};

use super::*;
use crate::queue_driver::{fault, filter};

const COMPARE_AND_WRITE: u8 = 0x89;
const SYNCHRONIZE_CACHE: u8 = 0x35;

/// Requests of this kind hang until they are released.
fn hang(op: Op) -> FaultRule {
    fault(Some(op), FaultAction::Hang)
}

/// How many routes have a filter, beside the node and us.
fn routes(faults: &Arc<Faults>) -> usize {
    Arc::strong_count(faults) - 2
}

/// The same units, of which the first has this node; where the queues answer when they do not use the old one any more.
fn exchange(vrings: &[VringHandle], disks: &mut [ScsiDisk], node: &Arc<Node>) -> Vec<Receiver<()>> {
    disks[0].node = node.clone();
    let set = |vring: &VringHandle| {
        vring.begin_device_command(|reply| DeviceCommand::SetDisks(disks.to_vec(), reply))
    };
    let exchanged = vrings.iter().map(set).collect();
    vrings.iter().for_each(reached);
    exchanged
}

/// All messages so far were carried out.
fn reached(vring: &VringHandle) {
    let descriptors = vring.send_and_wait(QueueCommand::DuplicateFds);
    descriptors.unwrap().unwrap();
}

#[test]
fn a_command_goes_by_the_new_node_while_another_one_hangs_at_the_old_one() {
    for aio in CARRIERS {
        let threads = threads();
        let (node, _folder) = disk_by(aio);
        let (hanging, faults) = filter(&node, &[hang(Op::Write)]);
        let mut disks = [disk(FIRST, &hanging), disk(SECOND, &null_disk(0))];
        let mut guest = Controller::new(&disks);
        let vrings = guest.start(&threads, &disks);
        guest.greet(FIRST);
        guest.greet(SECOND);
        let data = [7; BLOCK as usize];
        let hangs = guest.ask(2, FIRST, &cdb(WRITE, 0, 1), &data, 0);
        // It was taken before this one.
        guest.good(2, FIRST, &cdb(READ, 0, 1), &[], BLOCK);

        let (other, later) = filter(&node, &[hang(Op::Flush)]);
        let exchanged = exchange(&vrings, &mut disks, &other);
        guest.good(2, FIRST, &cdb(WRITE, 1, 1), &data, 0);
        guest.good(2, SECOND, &cdb(READ, 0, 1), &[], BLOCK);
        let read = guest.good(3, FIRST, &cdb(READ, 0, 1), &[], BLOCK);
        assert_eq!(read, [0; BLOCK as usize], "nothing was written there yet");
        let flush = guest.ask(2, FIRST, &cdb(SYNCHRONIZE_CACHE, 0, 0), &[], 0);
        // It was taken before this one.
        guest.good(2, SECOND, &cdb(READ, 0, 1), &[], BLOCK);
        reached(&vrings[2]);
        assert_eq!(exchanged[2].try_recv(), Err(TryRecvError::Empty));

        faults.release_hanging_and_set_rules(None);
        assert_eq!(guest.wait(2, 1), [hangs.head]);
        assert_eq!(guest.answer(&hangs), (0, 0));
        // What hangs at the new node is not waited for.
        assert_eq!(exchanged[2].recv(), Ok(()));
        assert_eq!(routes(&faults), 0);
        later.release_hanging_and_set_rules(None);
        assert_eq!(guest.wait(2, 1), [flush.head]);
        let read = guest.good(3, FIRST, &cdb(READ, 0, 2), &[], 2 * BLOCK);
        assert_eq!(read, [7; 2 * BLOCK as usize]);
        for vring in vrings {
            assert!(vring.stop().is_some());
        }
        assert_eq!(guest.rings[2].stats.in_flight().get(), 0);
    }
}

#[test]
fn steps_of_a_command_may_go_different_ways_and_each_route_stays_for_its_step() {
    for aio in CARRIERS {
        let threads = threads();
        let [(first, _folder), (second, _other)] = [disk_by(aio), disk_by(aio)];
        let (reads_hang, reads) = filter(&first, &[hang(Op::Read)]);
        let fails_then = FaultRule {
            begins: Some(Op::Write),
            action: FaultAction::Error(Errno::IO),
            ..hang(Op::Read)
        };
        let (writes_hang, writes) = filter(&second, &[hang(Op::Write), fails_then]);
        let mut disks = [disk(FIRST, &reads_hang)];
        let mut guest = Controller::new(&disks);
        let vrings = guest.start(&threads, &disks);
        guest.greet(FIRST);
        let mut compare = [0; 16];
        (compare[0], compare[13]) = (COMPARE_AND_WRITE, 1);
        let both = [[0; BLOCK as usize], [9; BLOCK as usize]].concat();
        let asked = guest.ask(2, FIRST, &compare, &both, 0);
        // The command was taken before this one.
        guest.good(2, FIRST, &cdb(WRITE, 5, 1), &[1; BLOCK as usize], 0);

        let _later = exchange(&vrings, &mut disks, &writes_hang);
        reads.release_hanging_and_set_rules(None);
        let written = (0..10_000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            let read = guest.ask(2, FIRST, &cdb(READ, 5, 1), &[], BLOCK);
            guest.wait(2, 1);
            guest.answer(&read) != (0, 0)
        });
        assert!(written, "the command never came to its write");
        // Of what was taken meanwhile all is done: only the write goes this way.
        let _later = exchange(&vrings, &mut disks, &first);
        let read = guest.good(2, FIRST, &cdb(READ, 5, 1), &[], BLOCK);
        assert_eq!(read, [1; BLOCK as usize]);
        assert_ne!([&reads, &writes].map(routes), [0; 2]);
        writes.release_hanging_and_set_rules(None);
        assert_eq!(guest.wait(2, 1), [asked.head]);
        assert_eq!(guest.answer(&asked), (0, 0));
        vrings[2].send_and_wait(QueueCommand::Settle);
        assert_eq!([&reads, &writes].map(routes), [0; 2]);
        let _later = exchange(&vrings, &mut disks, &second);
        let read = guest.good(3, FIRST, &cdb(READ, 0, 1), &[], BLOCK);
        assert_eq!(read, [9; BLOCK as usize]);
    }
}
