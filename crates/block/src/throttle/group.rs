//! Throttle groups: the buckets of a group, and the accounts of the queues that share them.
//!
//! Units that the buckets let pass (tokens) go to the accounts of all queues that want some, in equal parts for each member
//! (node) of the group, whatever the depth of its queues. An iothread leases what is in the account of a queue and takes the
//! tokens of most requests out of that lease; the group is locked once per lease. Accounts hold a hundredth of a second of
//! their part, so that a queue that is away for a moment, as one with a single request in flight always is, loses nothing;
//! what an account cannot take stays for the others. A full account is returned, and takes part again when its queue asks.
//!
//! A request passes if there is something in the account, as large as it may be: the rest is a debt of the account, which
//! later tokens pay. So one large request does not make other members wait.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use super::bucket::Bucket;
use super::cost::{Cost, Direction};
use super::lease::{Lease, Tokens};
use super::limits::{LimitKind, ThrottleLimits};
use super::numbers::{as_f64, to_whole};
use super::stats::ThrottleStats;

/// An account holds what its part of a limit gives in so many nanoseconds.
const ACCOUNT_NS: f64 = 10e6;

/// Disks that share limits: a `throttle-group` object.
pub struct ThrottleGroup {
    name: String,
    /// Counts the changes of the limits. It only changes with `state` locked.
    generation: Arc<AtomicU64>,
    state: Mutex<GroupState>,
}

/// What a group has under its lock.
struct GroupState {
    limits: ThrottleLimits,
    /// By [`LimitKind`]; `None`: no limit.
    buckets: [Option<Bucket>; LimitKind::ALL.len()],
    /// The buckets have leaked until then.
    leaked_until_ns: u64,
    next_id: u64,
    members: BTreeMap<u64, MemberState>,
    accounts: BTreeMap<u64, AccountState>,
}

/// A member of a group, under its lock.
#[derive(Default)]
struct MemberState {
    /// Scratch: the number of its accounts that take part.
    active_accounts: u32,
    /// Debts (not positive) while it has no queue, for the next one.
    debt: Tokens,
}

/// The account of a queue, under the group's lock.
struct AccountState {
    member: u64,
    tokens: Tokens,
    /// Whether it takes part in the distribution.
    is_active: bool,
    /// Its part of the group's tokens, as of the last distribution.
    part: f64,
    /// The first waiting request of each direction, to be woken when the limits change.
    heads: [Option<Waker>; 2],
}

/// A node in its throttle group.
pub struct ThrottleMember {
    group: Arc<ThrottleGroup>,
    id: u64,
    /// What its requests have waited.
    pub(super) stats: Arc<ThrottleStats>,
}

/// The account of one queue of a member.
pub(super) struct Account {
    member: Arc<ThrottleMember>,
    id: u64,
}

impl ThrottleGroup {
    /// A group without members.
    #[must_use]
    pub fn new(name: &str, limits: ThrottleLimits) -> Arc<Self> {
        Arc::new(ThrottleGroup {
            name: name.to_owned(),
            generation: Arc::new(AtomicU64::new(1)),
            state: Mutex::new(GroupState {
                limits,
                buckets: LimitKind::ALL.map(|kind| Bucket::new(limits.rate(kind))),
                leaked_until_ns: 0,
                next_id: 0,
                members: BTreeMap::new(),
                accounts: BTreeMap::new(),
            }),
        })
    }

    /// The group's name, its `id`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The limits of all its members together.
    #[must_use]
    pub fn limits(&self) -> ThrottleLimits {
        self.lock().limits
    }

    /// How many nodes are members.
    #[must_use]
    pub fn member_count(&self) -> usize {
        self.lock().members.len()
    }

    /// Changes the limits, at once also for requests that wait. Buckets are empty then, and debts forgotten, as in QEMU.
    pub fn set_limits(&self, limits: ThrottleLimits) {
        let mut state = self.lock();
        state.limits = limits;
        state.buckets = LimitKind::ALL.map(|kind| Bucket::new(limits.rate(kind)));
        for member in state.members.values_mut() {
            member.debt = Tokens::default();
        }
        let mut heads = Vec::new();
        for account in state.accounts.values_mut() {
            account.tokens = Tokens::default();
            heads.extend(account.heads.iter().flatten().cloned());
        }
        self.generation.fetch_add(1, Ordering::Relaxed);
        drop(state);
        heads.into_iter().for_each(Waker::wake);
    }

    /// The number of changes of the limits so far, which goes on changing.
    pub(super) fn generation_counter(&self) -> Arc<AtomicU64> {
        self.generation.clone()
    }

    /// The same, now.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, GroupState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ThrottleMember {
    /// Makes a node a member.
    pub(crate) fn join(group: &Arc<ThrottleGroup>) -> Arc<Self> {
        let mut state = group.lock();
        let id = state.take_id();
        state.members.insert(id, MemberState::default());
        drop(state);
        Arc::new(ThrottleMember {
            group: group.clone(),
            id,
            stats: Arc::default(),
        })
    }

    /// Its group.
    #[must_use]
    pub fn group(&self) -> &Arc<ThrottleGroup> {
        &self.group
    }

    /// What its requests have waited.
    #[must_use]
    pub fn stats(&self) -> &Arc<ThrottleStats> {
        &self.stats
    }
}

impl Drop for ThrottleMember {
    fn drop(&mut self) {
        self.group.lock().members.remove(&self.id);
    }
}

impl Account {
    /// The account of a new queue. The debts of earlier queues of the member are its own.
    pub fn new(member: &Arc<ThrottleMember>) -> Self {
        let mut state = member.group.lock();
        let id = state.take_id();
        let tokens = state
            .members
            .get_mut(&member.id)
            .map_or(Tokens::default(), |state| std::mem::take(&mut state.debt));
        let account = AccountState {
            member: member.id,
            tokens,
            is_active: false,
            part: 1.0,
            heads: [None, None],
        };
        state.accounts.insert(id, account);
        drop(state);
        Account {
            member: member.clone(),
            id,
        }
    }

    /// The member whose queue this is of.
    pub fn member(&self) -> &ThrottleMember {
        &self.member
    }

    /// Returns a lease, distributes what the buckets let pass now, and opens the account with its part.
    pub fn open(&self, lease: Lease, now_ns: u64) -> OpenAccount<'_> {
        let group = &self.member.group;
        let mut state = group.lock();
        let is_current = lease.generation == group.generation();
        let limited = state.buckets.map(|bucket| bucket.is_some());
        if let Some(account) = state.accounts.get_mut(&self.id) {
            account.is_active = true;
            for kind in (0..limited.len()).filter(|kind| is_current && limited[*kind]) {
                account.tokens[kind] += lease.tokens[kind];
            }
        }
        state.distribute_tokens(self.id, now_ns);
        OpenAccount {
            generation: group.generation(),
            state,
            id: self.id,
        }
    }

    /// Closes the account: its tokens return to the buckets, and its debts are those of the member's newest queue, as after an
    /// exchange of nodes, or else of its next one.
    fn close(&self) {
        let state = &mut *self.member.group.lock();
        let Some(mut account) = state.accounts.remove(&self.id) else {
            return;
        };
        return_tokens(&mut state.buckets, &mut account.tokens);
        let mut others = state.accounts.values_mut().rev();
        let newest = others.find(|other| other.member == account.member);
        let debts = match newest {
            Some(other) => &mut other.tokens,
            None => match state.members.get_mut(&self.member.id) {
                Some(member) => &mut member.debt,
                None => return,
            },
        };
        for (debt, tokens) in debts.iter_mut().zip(account.tokens) {
            *debt += tokens;
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.close();
    }
}

/// Returns tokens (not debts) to the buckets that they are from.
fn return_tokens(buckets: &mut [Option<Bucket>], tokens: &mut Tokens) {
    for (bucket, tokens) in buckets.iter_mut().zip(tokens) {
        if let Some(bucket) = bucket
            && *tokens > 0.0
        {
            bucket.add(-*tokens);
            *tokens = 0.0;
        }
    }
}

impl GroupState {
    fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Distributes what the buckets let pass now to the accounts that take part, one of which is the caller's. Others that
    /// are full, and wait for nothing, no longer take part. What is not used pays the debts of those that do not.
    fn distribute_tokens(&mut self, caller: u64, now_ns: u64) {
        self.divide_group_among_accounts();
        let now_ns = now_ns.max(self.leaked_until_ns);
        let elapsed_ns = std::mem::replace(&mut self.leaked_until_ns, now_ns).abs_diff(now_ns);
        let mut most = [f64::INFINITY; LimitKind::ALL.len()];
        for (kind, bucket) in self.buckets.iter_mut().enumerate() {
            let Some(bucket) = bucket else { continue };
            let active = self.accounts.values().filter(|account| account.is_active);
            let debts = active.map(|account| -account.tokens[kind].min(0.0)).sum();
            let mut unused = bucket.leak(as_f64(elapsed_ns), debts);
            // Kept for those that are away, it would be a burst for the others.
            let accounts = self.accounts.values_mut();
            let idle = accounts.filter(|account| !account.is_active);
            let away = self.members.values_mut().map(|member| &mut member.debt);
            for tokens in idle.map(|account| &mut account.tokens).chain(away) {
                let paid = (-tokens[kind]).max(0.0).min(unused);
                tokens[kind] += paid;
                unused -= paid;
            }
            most[kind] = bucket.rate() * ACCOUNT_NS;
            fill_accounts(&mut self.accounts, kind, bucket, most[kind]);
        }
        for (id, account) in &mut self.accounts {
            let is_full = account.is_active
                && *id != caller
                && account.heads.iter().all(Option::is_none)
                && (0..most.len()).all(|kind| {
                    self.buckets[kind].is_none()
                        || account.tokens[kind] >= most[kind] * account.part
                });
            if is_full {
                account.is_active = false;
                return_tokens(&mut self.buckets, &mut account.tokens);
            }
        }
    }

    /// Sets the part of each active account: those of all members are equal, and divided among their active accounts.
    fn divide_group_among_accounts(&mut self) {
        for member in self.members.values_mut() {
            member.active_accounts = 0;
        }
        let mut active_members = 0;
        for account in self.accounts.values().filter(|account| account.is_active) {
            if let Some(member) = self.members.get_mut(&account.member) {
                active_members += u32::from(member.active_accounts == 0);
                member.active_accounts += 1;
            }
        }
        for account in self.accounts.values_mut() {
            if let Some(member) = self.members.get(&account.member) {
                account.part = 1.0 / f64::from((active_members * member.active_accounts).max(1));
            }
        }
    }
}

/// Distributes the room in a bucket to the active accounts that have less than their part of `most` tokens.
fn fill_accounts(
    accounts: &mut BTreeMap<u64, AccountState>,
    kind: usize,
    bucket: &mut Bucket,
    most: f64,
) {
    let wants =
        |account: &AccountState| account.is_active && account.tokens[kind] < most * account.part;
    let parts: f64 = accounts
        .values()
        .filter(|account| wants(account))
        .map(|account| account.part)
        .sum();
    let room = bucket.room();
    if parts <= 0.0 || room <= 0.0 {
        return;
    }
    for account in accounts.values_mut().filter(|account| wants(account)) {
        let missing = most * account.part - account.tokens[kind];
        let given = (room * account.part / parts).min(missing);
        account.tokens[kind] += given;
        bucket.add(given);
    }
}

/// An account, while its group is locked.
pub(super) struct OpenAccount<'a> {
    state: MutexGuard<'a, GroupState>,
    generation: u64,
    id: u64,
}

impl OpenAccount<'_> {
    /// The factor for [`Cost::of`].
    pub fn operations_per_byte(&self) -> f64 {
        self.state.limits.operations_per_byte()
    }

    /// Whether there is a limit on reads and writes together.
    pub fn limits_totals(&self) -> bool {
        [LimitKind::IopsTotal, LimitKind::BpsTotal]
            .into_iter()
            .any(|kind| self.state.buckets[kind as usize].is_some())
    }

    /// Lets a request of this cost pass if there is some of each token that it needs. The rest becomes a debt.
    pub fn try_pass(&mut self, cost: &Cost) -> bool {
        let passes = self.limit_that_is_hit(cost).is_none();
        if passes {
            self.charge(cost);
        }
        passes
    }

    /// Takes the tokens of a request that has passed, or becomes their debtor.
    pub fn charge(&mut self, cost: &Cost) {
        let state = &mut *self.state;
        let Some(account) = state.accounts.get_mut(&self.id) else {
            return;
        };
        for (kind, units) in cost.units() {
            if state.buckets[kind as usize].is_some() {
                account.tokens[kind as usize] -= units;
            }
        }
    }

    /// The limit that a request has to wait for longest, and the nanoseconds if no other queue wants tokens. `None`: it may
    /// pass.
    pub fn limit_that_is_hit(&self, cost: &Cost) -> Option<(LimitKind, u64)> {
        self.limit_that_is_hit_after(&Tokens::default(), cost)
    }

    /// As [`Self::limit_that_is_hit`], of a request that passes after others, which take so many tokens.
    pub fn limit_that_is_hit_after(&self, ahead: &Tokens, cost: &Cost) -> Option<(LimitKind, u64)> {
        let account = self.state.accounts.get(&self.id)?;
        let wait = |kind: LimitKind| {
            let bucket = self.state.buckets[kind as usize].as_ref()?;
            let tokens = account.tokens[kind as usize] - ahead[kind as usize];
            (tokens <= 0.0).then(|| (kind, bucket.ns_until_room(-tokens)))
        };
        let (kind, ns) = cost
            .units()
            .into_iter()
            .filter_map(|(kind, _)| wait(kind))
            .max_by(|(_, left), (_, right)| left.total_cmp(right))?;
        Some((kind, to_whole(ns).saturating_add(1)))
    }

    /// When to look again at a request that waits for so long, if no other queue wants tokens: nanoseconds. While others want
    /// some it gets its part only, and a look costs the group its lock. But these may stop: nothing is lost meanwhile as long
    /// as the account is not full.
    pub fn ns_until_next_look(&self, ns: u64) -> u64 {
        let account = self.state.accounts.get(&self.id);
        let with_others = account.map_or(0.0, |account| as_f64(ns) / account.part);
        ns.max(to_whole(with_others.min(ACCOUNT_NS)))
    }

    /// Notes the first request that waits in a direction.
    pub fn set_head(&mut self, direction: Direction, waker: Option<Waker>) {
        if let Some(account) = self.state.accounts.get_mut(&self.id) {
            account.heads[direction as usize] = waker;
        }
    }

    /// Closes the account, and takes what it has.
    pub fn into_lease(mut self) -> Lease {
        let state = &mut *self.state;
        let mut lease = Lease {
            generation: self.generation,
            tokens: [f64::INFINITY; LimitKind::ALL.len()],
            operations_per_byte: state.limits.operations_per_byte(),
        };
        if let Some(account) = state.accounts.get_mut(&self.id) {
            for kind in (0..lease.tokens.len()).filter(|kind| state.buckets[*kind].is_some()) {
                lease.tokens[kind] = account.tokens[kind].max(0.0);
                account.tokens[kind] -= lease.tokens[kind];
            }
        }
        lease
    }
}

#[cfg(test)]
mod tests;
