//! Tests of filters: the requests that get faults, and the content of the disk afterwards.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use block::{AttachedDisk, FaultAction, FaultRule, FaultRules, Faults, Node, Op};
use engine::Errno;

use crate::harness::{Call, Rig, pattern};
use crate::storage::{file, new_image, null, ways};

const LEN: usize = 1 << 20;
const HOUR_NS: u64 = 3_600_000_000_000;

fn rule(op: Op, action: FaultAction) -> FaultRule {
    FaultRule {
        begins: None,
        op: Some(op),
        bytes: None,
        times: None,
        one_in: 1,
        action,
    }
}

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
fn a_filter_without_rules_is_the_node_below() {
    let (_folder, path) = new_image(LEN as u64);
    for below in disks(&path) {
        fs::write(&path, pattern(1, LEN)).unwrap();
        let part = Node::new_window("part", &below, 65_536, None, false, true).unwrap();
        let faults = Faults::new(FaultRules::default());
        let node = filter(&part, &faults);
        assert_eq!(node.geometry(), part.geometry());
        assert_eq!(
            (node.aio(), node.uses_direct_io()),
            (below.aio(), below.uses_direct_io())
        );
        assert!(node.shares_disk_with(&below) && node.passes_discards() && !node.read_only());
        assert_eq!(
            node.check_size_and_compute_disk_end_offset(4096).unwrap(),
            65_536 + 4096
        );
        let outer = Node::new_window("outer", &node, 4096, None, false, true).unwrap();
        let base = 65_536 + 4096;
        let mut model = pattern(1, LEN);
        let mut rig = Rig::new();
        let data = pattern(2, 8192);
        rig.ok(&outer, Call::write(8192, &data).fua());
        model[base + 8192..base + 16_384].copy_from_slice(&data);
        rig.ok(&outer, Call::write(512, &data).skewed(3));
        model[base + 512..base + 512 + 8192].copy_from_slice(&data);
        rig.ok(&outer, Call::discard(32_768, 4096));
        rig.ok(&outer, Call::write_zeroes(40_960, 4096, true));
        model[base + 32_768..base + 36_864].fill(0);
        model[base + 40_960..base + 45_056].fill(0);
        rig.ok(&outer, Call::flush());
        assert!(rig.read(&outer, 0, 65_536) == model[base..base + 65_536]);
        assert!(fs::read(&path).unwrap() == model);
    }
}

#[test]
fn errors_hit_matching_requests_which_do_not_reach_the_disk() {
    let (_folder, path) = new_image(LEN as u64);
    for below in disks(&path).chain(std::iter::once_with(|| null(0, true))) {
        let no_space = FaultRule {
            bytes: Some(4096..8192),
            ..rule(Op::Write, FaultAction::Error(Errno::NOSPC))
        };
        let one_flush = FaultRule {
            times: Some(1),
            ..rule(Op::Flush, FaultAction::Error(Errno::IO))
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
        let results: Vec<_> = outcomes.iter().map(|outcome| outcome.result).collect();
        let (space, io) = (Err(Errno::NOSPC), Err(Errno::IO));
        assert_eq!(results, [Ok(()), space, Ok(()), Ok(()), io, Ok(())]);
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
        let silent = Faults::new(rules(&[rule(Op::Flush, FaultAction::Error(Errno::IO))]));
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
                rule(Op::Write, action),
                rule(Op::Read, action),
                rule(Op::WriteZeroes { unmap: false }, action),
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
fn a_delay_takes_its_time_and_does_not_delay_others() {
    let delay = rule(Op::Write, FaultAction::Delay(20_000_000));
    let faults = Faults::new(rules(&[delay]));
    let (below, mut rig) = (null(0, true), Rig::new());
    let node = filter(&below, &faults);
    let begin = std::time::Instant::now();
    rig.ok(&node, Call::write(0, &[0; 512]));
    assert!(begin.elapsed() >= Duration::from_millis(20));
    // The disk below it has its own requests done meanwhile.
    faults.release_hanging_and_set_rules(Some(rules(&[rule(
        Op::Write,
        FaultAction::Delay(HOUR_NS),
    )])));
    let memory = hold(&mut rig, &node, 7);
    rig.ok(&below, Call::flush());
    assert!(rig.io.next_deadline_ns().is_some());
    end(rig, memory);
}

#[test]
fn a_hanging_request_is_carried_out_when_it_is_released() {
    let (_folder, path) = new_image(LEN as u64);
    for below in disks(&path).chain(std::iter::once_with(|| null(0, true))) {
        let hang = || rules(&[rule(Op::Write, FaultAction::Hang)]);
        let faults = Faults::new(hang());
        let (node, mut rig) = (filter(&below, &faults), Rig::new());
        // It does not keep others.
        rig.ok(&node, Call::read(0, 4096));
        // The loop sleeps, and is woken.
        let releaser = {
            let faults = faults.clone();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(20));
                faults.release_hanging_and_set_rules(Some(FaultRules::default()));
            })
        };
        let data = pattern(4, 4096);
        let calls = (0..4).map(|at| Call::write(at * 8192, &data)).collect();
        for outcome in rig.all(&node, calls) {
            assert_eq!(outcome.result, Ok(()));
        }
        releaser.join().unwrap();
        if below.aio().is_some() {
            assert!(rig.read(&node, 8192, 4096) == data);
        }
        // Or when its queue has to end.
        faults.release_hanging_and_set_rules(Some(hang()));
        let memory = hold(&mut rig, &node, 7);
        end(rig, memory);
    }
}

/// A request that hangs, with its memory.
struct HangingRequest {
    route: AttachedDisk,
    _bytes: Vec<u8>,
    _iov: Box<libc::iovec>,
}

/// Submits a write of the queue at `place`, which hangs.
fn hold(rig: &mut Rig, node: &Arc<Node>, place: u32) -> HangingRequest {
    let route = rig.attach(node);
    let mut bytes = vec![0; 8192];
    let start = bytes.as_mut_ptr().align_offset(4096);
    let mut iov = Box::new(libc::iovec {
        iov_base: bytes[start..].as_mut_ptr().cast(),
        iov_len: 512,
    });
    let request = block::Request {
        op: block::Op::Write,
        fua: false,
        offset: 0,
        len: 512,
        iov: &raw mut *iov,
        iov_count: 1,
        token: u64::from(place) << 32 | 1,
    };
    // SAFETY: what is returned outlives the request, which `end` waits for.
    unsafe { rig.io.submit(&route, request) }.unwrap();
    let mut out = Vec::new();
    rig.io.poll_tasks_and_submit();
    rig.io.reap_and_poll_tasks(&mut out);
    assert!(out.is_empty() && !rig.io.has_completions_or_woken_tasks());
    HangingRequest {
        route,
        _bytes: bytes,
        _iov: iov,
    }
}

/// The queue at place 7 ends, and the one request that it has in flight with it.
fn end(mut rig: Rig, held: HangingRequest) {
    rig.io.end_unbounded_waits(8);
    let mut out = Vec::new();
    rig.io.reap_and_poll_tasks(&mut out);
    assert!(out.is_empty(), "that was another queue");
    rig.io.end_unbounded_waits(7);
    while out.is_empty() {
        rig.io.reap_and_poll_tasks(&mut out);
        rig.io.poll_tasks_and_submit();
        std::thread::yield_now();
    }
    assert_eq!((out[0].token, out[0].result), (7 << 32 | 1, Ok(())));
    drop(held._bytes);
    rig.io.forget_ended_source(7);
    rig.io.detach(held.route);
}

/// With random errors, failed writes are not on the disk, all others are, and every request completes.
#[test]
fn random_errors_leave_the_content_that_a_model_predicts() {
    const BLOCKS: usize = 64;
    let (_folder, path) = new_image(LEN as u64);
    for (round, below) in disks(&path).enumerate() {
        fs::write(&path, vec![0; LEN]).unwrap();
        let by_chance = |one_in, action| FaultRule {
            op: None,
            one_in,
            ..rule(Op::Write, action)
        };
        let faults = Faults::new(FaultRules {
            rules: vec![
                by_chance(5, FaultAction::Delay(100_000)),
                by_chance(4, FaultAction::Error(Errno::IO)),
            ],
            seed: round as u64,
        });
        let (node, mut rig) = (filter(&below, &faults), Rig::new());
        let mut model = vec![0; LEN];
        let (mut failed, mut done) = (0, 0);
        for turn in 0..20 {
            let data = |block: usize| pattern((turn * BLOCKS + block) as u64, 4096);
            let at = |block: usize| block * LEN / BLOCKS;
            let calls = (0..BLOCKS).map(|block| Call::write(at(block) as u64, &data(block)));
            for (block, outcome) in rig.all(&node, calls.collect()).iter().enumerate() {
                match outcome.result {
                    Ok(()) => {
                        model[at(block)..at(block) + 4096].copy_from_slice(&data(block));
                        done += 1;
                    }
                    Err(errno) => {
                        assert_eq!(errno, Errno::IO);
                        failed += 1;
                    }
                }
            }
        }
        assert!(failed > 100 && done > 100, "{failed} {done}");
        assert!(fs::read(&path).unwrap() == model);
    }
}
