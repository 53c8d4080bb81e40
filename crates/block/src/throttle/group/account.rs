//! Accounts: what a queue may let pass, and what it owes.
//!
//! An account is opened under the lock of its group and closed by taking its tokens as a lease, which lets requests pass
//! without that lock.

use std::sync::{Arc, MutexGuard};
use std::task::Waker;

use super::distribution::return_tokens;
use super::{ACCOUNT_NS, AccountState, GroupState, ThrottleMember};
use crate::throttle::cost::{Cost, Direction};
use crate::throttle::lease::{Lease, Tokens};
use crate::throttle::limits::LimitKind;
use crate::throttle::numbers::{as_f64, to_whole};

/// The account of one queue of a member.
pub(in crate::throttle) struct Account {
    member: Arc<ThrottleMember>,
    id: u64,
}

impl Account {
    /// The account of a new queue.
    pub fn new(member: &Arc<ThrottleMember>) -> Self {
        let mut state = member.group.lock();
        let id = state.take_id();
        let account = AccountState {
            member: member.id,
            tokens: Tokens::default(),
            is_active: false,
            share: 1.0,
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

    /// Returns a lease, takes over what the member's ended queues owe, distributes what the buckets let pass now, and opens the
    /// account with its share.
    pub fn open(&self, lease: Lease, now_ns: u64) -> OpenAccount<'_> {
        let group = &self.member.group;
        let mut guard = group.lock();
        let state = &mut *guard;
        let is_current = lease.generation == group.generation();
        if let Some(account) = state.accounts.get_mut(&self.id) {
            account.is_active = true;
            let limited = |kind: &usize| is_current && state.buckets[*kind].is_some();
            for kind in (0..lease.tokens.len()).filter(limited) {
                account.tokens[kind] += lease.tokens[kind];
            }
            if let Some(member) = state.members.get_mut(&account.member) {
                move_debts(&mut member.debt, &mut account.tokens);
            }
        }
        state.distribute_tokens(self.id, now_ns);
        OpenAccount {
            generation: group.generation(),
            state: guard,
            id: self.id,
        }
    }
}

impl Drop for Account {
    /// Returns the tokens to the buckets. The debts are those of the member's next queue that asks.
    fn drop(&mut self) {
        let state = &mut *self.member.group.lock();
        let Some(mut account) = state.accounts.remove(&self.id) else {
            return;
        };
        return_tokens(&mut state.buckets, &mut account.tokens);
        if let Some(member) = state.members.get_mut(&self.member.id) {
            move_debts(&mut account.tokens, &mut member.debt);
        }
    }
}

/// Moves debts, of an account that has nothing else or of a member.
fn move_debts(from: &mut Tokens, to: &mut Tokens) {
    for (to, debt) in to.iter_mut().zip(std::mem::take(from)) {
        *to += debt;
    }
}

/// An account, while its group is locked.
pub(in crate::throttle) struct OpenAccount<'a> {
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
    /// some it gets its share only, and a look costs the group its lock. But these may stop: nothing is lost meanwhile as long
    /// as the account is not full.
    pub fn ns_until_next_look(&self, ns: u64) -> u64 {
        let account = self.state.accounts.get(&self.id);
        let with_others = account.map_or(0.0, |account| as_f64(ns) / account.share);
        ns.max(to_whole(with_others.min(ACCOUNT_NS)))
    }

    /// Notes the first request that waits in a direction.
    pub fn set_head(&mut self, direction: Direction, waker: Option<Waker>) {
        if let Some(account) = self.state.accounts.get_mut(&self.id) {
            account.heads[direction as usize] = waker;
        }
    }

    /// Closes the account, and takes what it has, up to an equal part of all queues: one that becomes idle keeps its lease.
    pub fn into_lease(mut self) -> Lease {
        let state = &mut *self.state;
        let queues = as_f64(state.accounts.len() as u64);
        let mut lease = Lease {
            generation: self.generation,
            tokens: [f64::INFINITY; LimitKind::ALL.len()],
            operations_per_byte: state.limits.operations_per_byte(),
        };
        if let Some(account) = state.accounts.get_mut(&self.id) {
            for (kind, bucket) in state.buckets.iter().enumerate() {
                let Some(bucket) = bucket else { continue };
                let most = bucket.rate() * ACCOUNT_NS / queues;
                lease.tokens[kind] = account.tokens[kind].clamp(0.0, most);
                account.tokens[kind] -= lease.tokens[kind];
            }
        }
        lease
    }
}
