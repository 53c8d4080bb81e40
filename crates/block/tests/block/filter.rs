//! Tests of filters: the requests that get faults, and the content of the disk afterwards.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use block::testing::fault;
use block::{FaultAction, FaultRule, FaultRules, Faults, Node, Op};
use engine::Errno;

use crate::harness::{Call, Rig, pattern};
use crate::storage::{file, new_image, null, ways};

const LEN: usize = 1 << 20;

fn rules(rules: &[FaultRule]) -> FaultRules {
    FaultRules {
        rules: rules.to_vec(),
        seed: 1,
    }
}

fn filter(below: &Arc<Node>, faults: &Arc<Faults>) -> Arc<Node> {
    Node::new_filter("filter", below, faults.clone(), false, true)
}

/// Each kind of disk, one after the other: there is one image.
fn disks(path: &std::path::Path) -> impl Iterator<Item = Arc<Node>> {
    ways(path).into_iter().map(|how| file(&how))
}

#[test]
fn errors_hit_matching_requests_which_do_not_reach_the_disk() {
    let (_folder, path) = new_image(LEN as u64);
    for below in disks(&path).chain(std::iter::once_with(|| null(0, true))) {
        let no_space = FaultRule {
            bytes: Some(4096..8192),
            ..fault(Some(Op::Write), FaultAction::Error(Errno::NOSPC))
        };
        let one_flush = FaultRule {
            times: Some(1),
            ..fault(Some(Op::Flush), FaultAction::Error(Errno::IO))
        };
        let faults = Faults::new(rules(&[no_space, one_flush]));
        let node = filter(&below, &faults);
        let mut rig = Rig::new();
        let before = rig.read(&below, 4096, 4096);
        let data = pattern(3, 4096);
        let outcomes = rig.all(
            &node,
            vec![
                Call::write(0, &data),
                Call::write(4096, &data),
                Call::read(4096, 4096),
                Call::write(8192, &data),
                Call::flush(),
                Call::flush(),
            ],
        );
        let results = outcomes.iter().map(|outcome| outcome.result);
        let (space, io) = (Err(Errno::NOSPC), Err(Errno::IO));
        assert!(results.eq([Ok(()), space, Ok(()), Ok(()), io, Ok(())]));
        assert!(rig.read(&below, 4096, 4096) == before);
        // The node itself has no faults.
        rig.ok(&below, Call::write(4096, &data));
    }
}

#[test]
fn short_and_torn_requests_transfer_only_their_beginning() {
    let (_folder, path) = new_image(LEN as u64);
    for below in disks(&path) {
        // A filter below has to do with other requests.
        let silent = Faults::new(rules(&[fault(
            Some(Op::Flush),
            FaultAction::Error(Errno::IO),
        )]));
        let below = filter(&below, &silent);
        for (action, result) in [
            (FaultAction::Short(1536, Errno::IO), Err(Errno::IO)),
            (FaultAction::Torn(1536), Ok(())),
            (FaultAction::Torn(0), Ok(())),
            (FaultAction::Torn(u64::MAX), Ok(())),
        ] {
            fs::write(&path, pattern(1, LEN)).unwrap();
            let mut model = pattern(1, LEN);
            let count = match action {
                FaultAction::Torn(bytes) | FaultAction::Short(bytes, _) => bytes.min(8192),
                _ => unreachable!(),
            };
            let count = usize::try_from(count).unwrap();
            let faults = Faults::new(rules(&[
                fault(Some(Op::Write), action),
                fault(Some(Op::Read), action),
                fault(Some(Op::WriteZeroes { unmap: false }), action),
            ]));
            let node = filter(&below, &faults);
            let data = pattern(2, 8192);
            let calls = vec![
                Call::write(4096, &data).cut(1000),
                Call::read(65_536, 8192).cut(1000),
                Call::write_zeroes(131_072, 8192, false),
            ];
            let outcomes = Rig::new().all(&node, calls);
            assert!(outcomes.iter().all(|outcome| outcome.result == result));
            model[4096..4096 + count].copy_from_slice(&data[..count]);
            model[131_072..131_072 + count].fill(0);
            assert!(fs::read(&path).unwrap() == model, "{action:?}");
            let read = &outcomes[1].data;
            assert!(read[..count] == model[65_536..65_536 + count]);
            assert!(read[count..].iter().all(|byte| *byte == 0xee));
        }
    }
}

#[test]
fn a_hanging_request_is_carried_out_when_it_is_released() {
    let (_folder, path) = new_image(LEN as u64);
    for below in disks(&path).chain(std::iter::once_with(|| null(0, true))) {
        let faults = Faults::new(rules(&[fault(Some(Op::Write), FaultAction::Hang)]));
        let (node, mut rig) = (filter(&below, &faults), Rig::new());
        // It does not keep others.
        rig.ok(&node, Call::read(0, 4096));
        // The loop sleeps, and is woken.
        let data = pattern(4, 4096);
        let calls = (0..4).map(|at| Call::write(at * 8192, &data)).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                faults.release_hanging_and_set_rules(Some(FaultRules::default()));
            });
            rig.all_ok(&node, calls);
        });
        if below.aio().is_some() {
            assert!(rig.read(&node, 8192, 4096) == data);
        }
    }
}
