//! Distribution of tokens: from the buckets of a group to the accounts of its active queues.
//!
//! An account is active from its opening until it is found full and nothing waits for it. What the active ones do not use pays
//! the debts of the others.

use std::collections::BTreeMap;

use super::{ACCOUNT_NS, AccountState, GroupState};
use crate::throttle::bucket::Bucket;
use crate::throttle::lease::Tokens;
use crate::throttle::numbers::as_f64;

impl GroupState {
    /// Distributes what the buckets let pass now to the active accounts, one of which is the caller's.
    pub(super) fn distribute_tokens(&mut self, caller: u64, now_ns: u64) {
        self.set_shares();
        let now_ns = now_ns.max(self.leaked_until_ns);
        let elapsed_ns = std::mem::replace(&mut self.leaked_until_ns, now_ns).abs_diff(now_ns);
        for (kind, bucket) in self.buckets.iter_mut().enumerate() {
            let Some(bucket) = bucket else { continue };
            let active = self.accounts.values().filter(|account| account.is_active);
            let debts = active.map(|account| -account.tokens[kind].min(0.0)).sum();
            let unused = bucket.leak(as_f64(elapsed_ns), debts);
            let accounts = self.accounts.values_mut();
            let inactive = accounts.filter(|account| !account.is_active);
            let inactive = inactive.map(|account| &mut account.tokens[kind]);
            let without_queue = self.members.values_mut();
            let without_queue = without_queue.map(|member| &mut member.debt[kind]);
            pay_debts(inactive.chain(without_queue), unused);
            fill_accounts(&mut self.accounts, kind, bucket);
        }
        self.deactivate_full_accounts(caller);
    }

    /// Sets the share of each active account: those of all members are equal, and divided among their active accounts.
    fn set_shares(&mut self) {
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
                account.share = 1.0 / f64::from((active_members * member.active_accounts).max(1));
            }
        }
    }

    /// Deactivates the accounts of other queues that are full and have no request that waits: they return their tokens.
    fn deactivate_full_accounts(&mut self, caller: u64) {
        for (id, account) in &mut self.accounts {
            let can_be_deactivated =
                account.is_active && *id != caller && account.heads.iter().all(Option::is_none);
            let is_full = |(bucket, tokens): (&Option<Bucket>, &f64)| {
                bucket.is_none_or(|bucket| *tokens >= capacity_of_all(&bucket) * account.share)
            };
            if can_be_deactivated && self.buckets.iter().zip(&account.tokens).all(is_full) {
                account.is_active = false;
                return_tokens(&mut self.buckets, &mut account.tokens);
            }
        }
    }
}

/// Tokens of a limit that all active accounts together hold when they are full.
fn capacity_of_all(bucket: &Bucket) -> f64 {
    bucket.rate() * ACCOUNT_NS
}

/// Pays debts (negative tokens) with units that no queue has used: kept for later, they would be a burst for the others.
fn pay_debts<'a>(debtors: impl Iterator<Item = &'a mut f64>, mut unused: f64) {
    for tokens in debtors {
        let paid = (-*tokens).max(0.0).min(unused);
        *tokens += paid;
        unused -= paid;
    }
}

/// Distributes the room in a bucket to the active accounts that are not full.
fn fill_accounts(accounts: &mut BTreeMap<u64, AccountState>, kind: usize, bucket: &mut Bucket) {
    let capacity = capacity_of_all(bucket);
    let wants = |account: &AccountState| {
        account.is_active && account.tokens[kind] < capacity * account.share
    };
    let shares: f64 = accounts
        .values()
        .filter(|account| wants(account))
        .map(|account| account.share)
        .sum();
    let room = bucket.room();
    if shares <= 0.0 || room <= 0.0 {
        return;
    }
    for account in accounts.values_mut().filter(|account| wants(account)) {
        let missing = capacity * account.share - account.tokens[kind];
        let given = (room * account.share / shares).min(missing);
        account.tokens[kind] += given;
        bucket.add(given);
    }
}

/// Returns tokens (not debts) to the buckets that they are from.
pub(super) fn return_tokens(buckets: &mut [Option<Bucket>], tokens: &mut Tokens) {
    for (bucket, tokens) in buckets.iter_mut().zip(tokens) {
        if let Some(bucket) = bucket
            && *tokens > 0.0
        {
            bucket.add(-*tokens);
            *tokens = 0.0;
        }
    }
}
