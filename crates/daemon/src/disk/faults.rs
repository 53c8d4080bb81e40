//! Converts the options of `blkdebug` nodes to the fault rules that the block layer injects.

use block::{FaultAction, FaultRule, FaultRules, Op};
use options::{BlkdebugOptions, InjectAction, InjectErrorRule, IoType};
use rustix::io::Errno;

/// The rules as the block layer has them.
pub(crate) fn to_block_fault_rules(injected: &BlkdebugOptions) -> FaultRules {
    FaultRules {
        rules: injected.errors.iter().map(to_block_fault_rule).collect(),
        seed: injected.seed,
    }
}

/// One rule as the block layer has it.
fn to_block_fault_rule(error: &InjectErrorRule) -> FaultRule {
    let byte_range = |(first, count): (u64, u64)| {
        let start = first * block::SECTOR_BYTES;
        start..start.saturating_add(count.saturating_mul(block::SECTOR_BYTES))
    };
    FaultRule {
        begins: error.event.map(op_of_io_type),
        op: error.iotype.map(op_of_io_type),
        bytes: error.sectors.map(byte_range),
        times: error.times,
        one_in: error.one_in,
        action: match error.action {
            InjectAction::Error(number) => FaultAction::Error(errno_from_number(number)),
            InjectAction::Delay(ns) => FaultAction::Delay(ns),
            InjectAction::Hang => FaultAction::Hang,
            InjectAction::Short(bytes, number) => {
                FaultAction::Short(bytes, errno_from_number(number))
            }
            InjectAction::Torn(bytes) => FaultAction::Torn(bytes),
        },
    }
}

/// The block layer's operation for an `iotype`.
fn op_of_io_type(kind: IoType) -> Op {
    match kind {
        IoType::Read => Op::Read,
        IoType::Write => Op::Write,
        IoType::WriteZeroes => Op::WriteZeroes { unmap: false },
        IoType::Discard => Op::Discard,
        IoType::Flush => Op::Flush,
    }
}

/// The errno of this number.
fn errno_from_number(number: u16) -> Errno {
    Errno::from_raw_os_error(number.into())
}
