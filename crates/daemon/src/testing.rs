//! A throttled null disk with requests that wait, for unit tests.

use std::sync::Arc;

use block::{
    AttachedDisk, BackendSettings, IoContext, LimitKind, Node, NodeOptions, NullOptions, Op,
    RateLimit, Request, ThrottleGroup, ThrottleLimits,
};

/// A node `throttled` of group `tenant`, with a limit of one byte per second: the first request takes an hour to pay for.
pub(crate) struct ThrottledDisk {
    pub node: Arc<Node>,
    pub group: Arc<ThrottleGroup>,
    io: IoContext,
    _disk: AttachedDisk,
}

impl ThrottledDisk {
    /// A disk of which the first request has passed, and so many others wait.
    pub fn with_waiting(requests: u64) -> Self {
        let (node, group) = throttle("throttled", "tenant", &null_disk());
        let mut io = IoContext::new(BackendSettings::default(), Arc::new(|| ())).unwrap();
        let disk = io.attach(&node, &mut |_| Ok(()));
        for token in 0..=requests {
            let request = Request::without_data(Op::WriteZeroes { unmap: false }, 0, 4096, token);
            assert!(io.room(&disk) > 0);
            // SAFETY: the request has no memory.
            unsafe { io.submit(&disk, request) }.unwrap();
        }
        let mut throttled = ThrottledDisk {
            node,
            group,
            io,
            _disk: disk,
        };
        throttled.complete(1);
        throttled
    }

    /// Raises the limit, with bursts, and completes so many requests.
    pub fn raise_limit_and_complete(&mut self, requests: usize) {
        let mut limits = self.group.limits();
        *limits.rate_mut(LimitKind::BpsTotal) = RateLimit {
            rate: 1 << 40,
            burst_rate: 1 << 41,
            burst_seconds: 1,
        };
        self.group.set_limits(limits);
        self.complete(requests);
    }

    fn complete(&mut self, requests: usize) {
        let mut done = Vec::new();
        while done.len() < requests {
            self.io.poll_tasks_and_submit();
            self.io.reap_and_poll_tasks(&mut done);
        }
        assert_eq!(done.len(), requests);
    }
}

/// A null disk.
pub(crate) fn null_disk() -> Arc<Node> {
    let options = NullOptions {
        size: 1 << 20,
        read_zeroes: true,
        latency_ns: 0,
    };
    Node::open("null", false, &NodeOptions::Null(options)).unwrap()
}

/// A node in front of another one that lets one byte per second pass, and its group.
pub(crate) fn throttle(
    name: &str,
    group: &str,
    below: &Arc<Node>,
) -> (Arc<Node>, Arc<ThrottleGroup>) {
    let mut limits = ThrottleLimits::default();
    *limits.rate_mut(LimitKind::BpsTotal) = RateLimit::of(1);
    let group = ThrottleGroup::new(group, limits);
    let node = Node::new_throttle(name, below, &group, false, true);
    (node, group)
}
