//! A model of throttle groups as guests see them: what they may let pass, by the times at which requests are shown and answered.
//!
//! The rules are those of `docs/throttling.md`. Between any two moments a group lets pass what its bucket holds, what leaks out
//! of it, and an excess: one request of each queue that is larger than what is left, and what accounts hold, 10 ms of the rate
//! each. Requests that wait when their queue stops, settles or gets another node go at once; later ones pay for them.
//! And nothing is lost: once nothing else happens, requests wait no longer than it takes to pay for them and what is owed.

use std::collections::BTreeMap;

use block::{LimitKind, RateLimit, ThrottleLimits};

use crate::clock;
use crate::model::SECTOR;
use crate::plan::Kind;

const NS: f64 = 1e9;

/// Seconds of a rate that its bucket holds without a burst.
const FREE_BURST: f64 = 0.1;

/// Seconds of its rate that an account holds.
const ACCOUNT: f64 = 0.01;

/// A request that limits apply to.
#[derive(Clone, Copy, Debug)]
struct Passage {
    read: bool,
    bytes: f64,
    shown_ns: u64,
    answered_ns: Option<u64>,
    /// It need not have waited.
    let_go: bool,
    /// It may have passed before, or not at all.
    uncounted: bool,
}

/// A group with the same limits all the time.
#[derive(Debug)]
struct Group {
    limits: ThrottleLimits,
    since_ns: u64,
    /// Queues and socket devices.
    sources: usize,
    /// Nodes have been exchanged: a source has had more than one account at the same time.
    exchanged: bool,
    /// What is owed is that of nodes since then.
    nodes_since_ns: u64,
    passages: BTreeMap<u32, Passage>,
}

/// All groups that a guest's requests pass.
#[derive(Debug, Default)]
pub struct ThrottleModel {
    groups: Vec<Group>,
    /// Requests that are not answered, also without groups.
    under_way: BTreeMap<u32, Passage>,
    /// Something begins to wait for requests, and lets those go that are there.
    lets_go: bool,
    /// The groups are about to be used, or not all queues know yet.
    unsure: bool,
    /// When the latest answer came.
    pub last_ns: u64,
    /// Requests that waited, and were let go.
    pub waited: u64,
    /// Requests that were under way when something let them go.
    pub let_go: u64,
}

impl ThrottleModel {
    /// Groups with these limits are used by so many sources from now on. Those that were used are checked.
    ///
    /// # Errors
    /// What was wrong with them.
    pub fn begin(
        &mut self,
        limits: impl Iterator<Item = ThrottleLimits>,
        sources: usize,
        now_ns: u64,
    ) -> Result<(), String> {
        let checked = self.check();
        let passages = self.under_way();
        self.groups = limits
            .map(|limits| Group::new(limits, sources, now_ns, passages.clone()))
            .collect();
        self.unsure = self.lets_go;
        checked
    }

    /// The first group has other limits.
    ///
    /// # Errors
    /// What was wrong with it before.
    pub fn change(&mut self, limits: ThrottleLimits, now_ns: u64) -> Result<(), String> {
        let passages = self.under_way();
        let Some(group) = self.groups.first_mut() else {
            return Ok(());
        };
        let checked = group.check();
        *group = Group {
            exchanged: group.exchanged,
            ..Group::new(limits, group.sources, now_ns, passages)
        };
        checked
    }

    /// Requests that are not answered. What they have passed is not known to new groups.
    fn under_way(&self) -> BTreeMap<u32, Passage> {
        self.under_way
            .iter()
            .map(|(id, passage)| {
                let uncounted = true;
                let passage = Passage {
                    uncounted,
                    ..*passage
                };
                (*id, passage)
            })
            .collect()
    }

    /// A request is shown.
    pub fn shown(&mut self, id: u32, kind: Kind, sectors: u64) {
        let read = match kind {
            Kind::Read => true,
            Kind::Write | Kind::Discard | Kind::WriteZeroes => false,
            Kind::Flush | Kind::GetId | Kind::Unknown => return,
        };
        let passage = Passage {
            read,
            bytes: (sectors * SECTOR as u64) as f64,
            shown_ns: clock::now_ns(),
            answered_ns: None,
            let_go: self.lets_go,
            uncounted: self.unsure,
        };
        self.under_way.insert(id, passage);
        for group in &mut self.groups {
            group.passages.insert(id, passage);
        }
    }

    /// A request is answered. One that has failed may not have come to the disk.
    pub fn answered(&mut self, id: u32, failed: bool) {
        let now_ns = clock::now_ns();
        if self.under_way.remove(&id).is_some() {
            self.last_ns = now_ns;
        }
        for group in &mut self.groups {
            if let Some(passage) = group.passages.get_mut(&id) {
                passage.answered_ns = Some(now_ns);
                passage.uncounted |= failed;
                self.waited += u64::from(now_ns > passage.shown_ns + 1_000_000);
            }
        }
    }

    /// A request will never be answered.
    pub fn forget(&mut self, id: u32) {
        self.under_way.remove(&id);
    }

    /// Whether something begins to wait for requests, and lets those go that are there.
    pub fn set_lets_go(&mut self, lets_go: bool) {
        self.lets_go = lets_go;
        self.unsure &= lets_go;
        if !lets_go {
            return;
        }
        for group in &mut self.groups {
            let passages = group.passages.values_mut();
            for passage in passages.filter(|passage| passage.answered_ns.is_none()) {
                self.let_go += u64::from(!passage.let_go);
                passage.let_go = true;
            }
        }
    }

    /// Sources go on with other nodes, which do not owe what the nodes before did if they are `new`.
    pub fn exchanged(&mut self, new: bool, now_ns: u64) {
        for group in &mut self.groups {
            group.exchanged = true;
            if new {
                group.nodes_since_ns = now_ns;
            }
        }
    }

    /// Checks what has passed so far.
    ///
    /// # Errors
    /// What was wrong.
    pub fn check(&self) -> Result<(), String> {
        self.groups.iter().try_for_each(Group::check)
    }

    /// How long it may take at most until all that is under way has passed, if nothing else happens; nanoseconds.
    #[must_use]
    pub fn longest_wait_ns(&self, now_ns: u64) -> f64 {
        self.groups
            .iter()
            .map(|group| group.longest_wait_ns(now_ns))
            .sum()
    }
}

/// A bucket that leaks.
struct Bucket {
    size: f64,
    rate: f64,
}

impl Group {
    fn new(
        limits: ThrottleLimits,
        sources: usize,
        since_ns: u64,
        passages: BTreeMap<u32, Passage>,
    ) -> Self {
        Group {
            limits,
            since_ns,
            sources,
            exchanged: false,
            nodes_since_ns: since_ns,
            passages,
        }
    }

    /// What a request takes of a limit; `None` if that does not apply to it.
    fn cost(&self, kind: LimitKind, passage: &Passage) -> Option<f64> {
        use LimitKind::{BpsRead, BpsTotal, BpsWrite, IopsRead, IopsTotal, IopsWrite};
        let applies = match kind {
            IopsTotal | BpsTotal => true,
            IopsRead | BpsRead => passage.read,
            IopsWrite | BpsWrite => !passage.read,
        };
        let size = self.limits.iops_size as f64;
        let operations = match self.limits.iops_size {
            0 => 1.0,
            _ => (passage.bytes / size).max(1.0),
        };
        applies.then_some(match kind {
            IopsTotal | IopsRead | IopsWrite => operations,
            BpsTotal | BpsRead | BpsWrite => passage.bytes,
        })
    }

    /// The limits that there are.
    fn limits(&self) -> impl Iterator<Item = (LimitKind, RateLimit)> {
        let limits = LimitKind::ALL.map(|kind| (kind, self.limits.rate(kind)));
        limits.into_iter().filter(|(_, limit)| limit.rate > 0)
    }

    fn check(&self) -> Result<(), String> {
        for (kind, limit) in self.limits() {
            let (rate, burst_rate) = (limit.rate as f64, limit.burst_rate as f64);
            let size = match limit.burst_rate {
                0 => rate * FREE_BURST,
                _ => burst_rate * limit.burst_seconds as f64,
            };
            let bucket = Bucket { size, rate };
            self.check_bucket(kind, &bucket)?;
            if self.sources == 1 {
                self.check_debts(kind, &bucket)?;
            }
            if limit.burst_seconds > 1 {
                let bucket = Bucket {
                    size: burst_rate * FREE_BURST,
                    rate: burst_rate,
                };
                self.check_bucket(kind, &bucket)?;
            }
        }
        Ok(())
    }

    /// Those that passed here, each with its cost and the time of its answer, in the order of that.
    fn passed(&self, kind: LimitKind) -> Vec<(Passage, f64, u64)> {
        let counted = self.passages.values().filter(|passage| !passage.uncounted);
        let passed = counted.filter_map(|passage| {
            Some((*passage, self.cost(kind, passage)?, passage.answered_ns?))
        });
        let mut passed: Vec<_> = passed.collect();
        passed.sort_by_key(|(.., answered_ns)| *answered_ns);
        passed
    }

    /// What all accounts together may hold.
    fn held(&self, bucket: &Bucket) -> f64 {
        let accounts = self.sources * if self.exchanged { 2 } else { 1 };
        bucket.rate * ACCOUNT * accounts as f64
    }

    /// No more passes between two moments than may; those that are let go are not counted.
    fn check_bucket(&self, kind: LimitKind, bucket: &Bucket) -> Result<(), String> {
        let passed = self.passed(kind);
        let largest = passed.iter().map(|(_, cost, _)| *cost).fold(0.0, f64::max);
        let accounts = self.sources * if self.exchanged { 2 } else { 1 };
        let excess = largest * accounts as f64 + self.held(bucket);
        for start in &passed {
            let from_ns = start.0.shown_ns;
            let owed = self.owed_by_others(kind, from_ns);
            let mut sum = 0.0;
            for (passage, cost, answered_ns) in &passed {
                if passage.let_go || passage.shown_ns < from_ns {
                    continue;
                }
                sum += cost;
                let most = bucket.most(answered_ns - from_ns) + excess + owed;
                if sum > most {
                    return Err(self.too_many(kind, sum, most, from_ns, *answered_ns));
                }
            }
        }
        Ok(())
    }

    /// What others may owe at a moment: it is kept for them, and meanwhile queues use it that want it.
    fn owed_by_others(&self, kind: LimitKind, at_ns: u64) -> f64 {
        if self.sources == 1 && !self.exchanged {
            return 0.0;
        }
        let passages = self.passages.values();
        let owed = passages
            .filter(|passage| passage.let_go && (passage.uncounted || passage.shown_ns <= at_ns));
        owed.filter_map(|passage| self.cost(kind, passage)).sum()
    }

    /// A request waits until those before it are paid for, also those that were let go. Only where there is one source: of
    /// several, each pays for its own.
    fn check_debts(&self, kind: LimitKind, bucket: &Bucket) -> Result<(), String> {
        let passed = self.passed(kind);
        let from = passed.iter().map(|(passage, ..)| passage.shown_ns);
        for from_ns in from.filter(|from_ns| *from_ns >= self.nodes_since_ns) {
            for (later, _, later_answered_ns) in &passed {
                if later.let_go || later.shown_ns < from_ns {
                    continue;
                }
                let before = passed.iter().filter(|(passage, _, answered_ns)| {
                    passage.shown_ns >= from_ns && *answered_ns < later.shown_ns
                });
                let sum: f64 = before.map(|(_, cost, _)| cost).sum();
                let most = bucket.most(later_answered_ns - from_ns) + self.held(bucket);
                if sum > most {
                    let what = self.too_many(kind, sum, most, from_ns, *later_answered_ns);
                    return Err(format!(
                        "a request passes, and what is owed is not paid: {what}"
                    ));
                }
            }
        }
        Ok(())
    }

    fn too_many(&self, kind: LimitKind, sum: f64, most: f64, from_ns: u64, to_ns: u64) -> String {
        let took = (to_ns - from_ns) as f64 / NS;
        format!(
            "{} is {:?}, and {sum} have passed within {took} s, of {most} that may",
            kind.name(),
            self.limits.rate(kind)
        )
    }

    fn longest_wait_ns(&self, now_ns: u64) -> f64 {
        let seconds = self.limits().map(|(kind, limit)| {
            let rate = limit.rate as f64;
            let (mut owed, mut last_ns, mut under_way) = (0.0, self.since_ns, 0.0);
            let mut passages: Vec<_> = self.passages.values().collect();
            // Those that are never answered may have passed last.
            passages.sort_by_key(|passage| passage.answered_ns.unwrap_or(u64::MAX));
            for passage in passages {
                let Some(cost) = self.cost(kind, passage) else {
                    continue;
                };
                match passage.answered_ns {
                    Some(at_ns) => {
                        let at_ns = at_ns.max(last_ns);
                        owed = f64::max(0.0, owed - rate * (at_ns - last_ns) as f64 / NS) + cost;
                        last_ns = at_ns;
                    }
                    None => under_way += cost,
                }
            }
            let owed = f64::max(0.0, owed - rate * (now_ns - last_ns) as f64 / NS);
            (owed + under_way) / rate + ACCOUNT * self.sources as f64
        });
        seconds.sum::<f64>() * NS
    }
}

impl Bucket {
    /// What may pass within so many nanoseconds.
    fn most(&self, ns: u64) -> f64 {
        self.size + self.rate * ns as f64 / NS + 1e-6
    }
}
