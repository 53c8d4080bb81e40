//! Fault rules of `blkdebug` nodes, from their options.

use block::{FaultAction, FaultRule, FaultRules, Op};
use options::{BlkdebugOptions, InjectAction, InjectError, IoType};
use rustix::io::Errno;

/// The rules as the block layer has them.
pub(crate) fn fault_rules(injected: &BlkdebugOptions) -> FaultRules {
    FaultRules {
        rules: injected.errors.iter().map(fault_rule).collect(),
        seed: injected.seed,
    }
}

/// One rule as the block layer has it.
fn fault_rule(error: &InjectError) -> FaultRule {
    let byte_range = |(first, count): (u64, u64)| {
        let start = first * block::SECTOR_BYTES;
        start..start.saturating_add(count.saturating_mul(block::SECTOR_BYTES))
    };
    FaultRule {
        begins: error.event.map(block_op),
        op: error.iotype.map(block_op),
        bytes: error.sectors.map(byte_range),
        times: error.times,
        one_in: error.one_in,
        action: match error.action {
            InjectAction::Error(number) => FaultAction::Error(errno_of(number)),
            InjectAction::Delay(ns) => FaultAction::Delay(ns),
            InjectAction::Hang => FaultAction::Hang,
            InjectAction::Short(bytes, number) => FaultAction::Short(bytes, errno_of(number)),
            InjectAction::Torn(bytes) => FaultAction::Torn(bytes),
        },
    }
}

/// The requests of a kind, as the block layer has them.
fn block_op(kind: IoType) -> Op {
    match kind {
        IoType::Read => Op::Read,
        IoType::Write => Op::Write,
        IoType::WriteZeroes => Op::WriteZeroes { unmap: false },
        IoType::Discard => Op::Discard,
        IoType::Flush => Op::Flush,
    }
}

/// The errno of this number.
fn errno_of(number: u16) -> Errno {
    Errno::from_raw_os_error(number.into())
}
