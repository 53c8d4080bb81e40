//! Throttle groups: the buckets of a group, and the accounts of the queues that share them.
//!
//! Units that the buckets let pass (tokens) go to the accounts of all queues that want some, in equal shares for each member
//! (node) of the group, whatever the depth of its queues. An iothread leases what is in the account of a queue and takes the
//! tokens of most requests out of that lease; the group is locked once per lease. Accounts hold a hundredth of a second of
//! their share, so that a queue that is away for a moment, as one with a single request in flight always is, loses nothing;
//! what an account cannot take stays for the others. A full one returns its tokens, and is inactive until its queue asks again.
//! Its lease stays: the leases of all queues together are a hundredth of a second at most, and so is the burst that they allow
//! after a pause.
//!
//! A request passes if there is something in the account, as large as it may be: the rest is a debt of the account, which
//! later tokens pay. So one large request does not make other members wait.

mod account;
mod distribution;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

pub(super) use self::account::{Account, OpenAccount};
use super::bucket::Bucket;
use super::lease::Tokens;
use super::limits::{LimitKind, ThrottleLimits};
use super::stats::ThrottleStats;

/// An account holds what its share of a limit gives in so many nanoseconds.
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
    /// The number of its active accounts, while shares are set.
    active_accounts: u32,
    /// Debts (not positive) of queues that have ended, for the next one that asks.
    debt: Tokens,
}

/// The account of a queue, under the lock of its group.
struct AccountState {
    member: u64,
    tokens: Tokens,
    /// Whether tokens are distributed to it.
    is_active: bool,
    /// Its share of the group's tokens, of 1, as of the last distribution.
    share: f64,
    /// The first waiting request of each direction, to be woken when the limits change.
    heads: [Option<Waker>; 2],
}

/// A node in its throttle group.
pub struct ThrottleMember {
    group: Arc<ThrottleGroup>,
    id: u64,
    stats: Arc<ThrottleStats>,
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

    /// Counts of the waits of its requests.
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

impl GroupState {
    fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

#[cfg(test)]
mod tests;
