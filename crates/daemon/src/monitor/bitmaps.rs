//! QMP commands for dirty bitmaps of nodes, each of which is an action of `transaction` as well.

use block::Node;
use block::dirty_bitmap::BitmapStatus;
use qmp::{Arguments, Command, CommandHandler, ObjectType, ReplySender};
use serde_json::{Value, json};

use super::bitmap_types::{add_members, members, merge_members};
use super::transaction::{self, CompletionMode};
use crate::control::MainThread;

/// The commands for bitmaps: each is an action of `transaction` as well.
pub(super) fn qmp_commands() -> Vec<Command<MainThread>> {
    let command = |name, members, run| Command {
        name,
        arguments: ObjectType::with_members(members),
        returns: None,
        run: CommandHandler::Deferred(run),
    };
    vec![
        command(
            "block-dirty-bitmap-add",
            add_members(),
            |main, args, reply| run_single(main, "block-dirty-bitmap-add", args, reply),
        ),
        command(
            "block-dirty-bitmap-remove",
            members(),
            |main, args, reply| run_single(main, "block-dirty-bitmap-remove", args, reply),
        ),
        command(
            "block-dirty-bitmap-clear",
            members(),
            |main, args, reply| run_single(main, "block-dirty-bitmap-clear", args, reply),
        ),
        command(
            "block-dirty-bitmap-enable",
            members(),
            |main, args, reply| run_single(main, "block-dirty-bitmap-enable", args, reply),
        ),
        command(
            "block-dirty-bitmap-disable",
            members(),
            |main, args, reply| run_single(main, "block-dirty-bitmap-disable", args, reply),
        ),
        command(
            "block-dirty-bitmap-merge",
            merge_members(),
            |main, args, reply| run_single(main, "block-dirty-bitmap-merge", args, reply),
        ),
    ]
}

/// `dirty-bitmaps` of a node; nothing if it has none.
pub(super) fn dirty_bitmaps_of(node: &Node) -> Option<Value> {
    let statuses = node.bitmaps().statuses();
    (!statuses.is_empty()).then(|| statuses.iter().map(dirty_info).collect())
}

/// `BlockDirtyInfo` of a bitmap.
fn dirty_info(status: &BitmapStatus) -> Value {
    let mut info = json!({
        "name": status.name,
        "recording": status.recording,
        "persistent": status.persistent,
        "busy": status.busy,
        "granularity": status.granularity,
        "count": status.dirty_bytes,
    });
    if status.inconsistent {
        info["inconsistent"] = true.into();
    }
    info
}

/// Runs a command that is one action.
fn run_single(control: &mut MainThread, kind: &str, data: &Arguments, reply: ReplySender) {
    transaction::run_actions(control, &[(kind, data)], CompletionMode::Individual, reply);
}
