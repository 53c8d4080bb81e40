//! The QMP commands `transaction`, `blockdev-backup` and `blockdev-mirror`: changes of bitmaps and backups at one moment, all of them
//! or none.

use std::sync::Arc;

use block::CopyMoment;
use block::dirty_bitmap::{BitmapChange, BitmapError, BitmapMemory};
use qmp::{Arguments, Command, CommandHandler, Error, Member, ObjectType, ReplySender, Type};
use serde_json::{Value, json};

use super::bitmap_actions::{error_of_bitmap, read_action};
use super::error_conversion::error_of_failed_action;
use super::job_arguments::{on_error, read_speed, report_failed_copy};
use super::{job_types, mirror, str_arg_or_empty};
use crate::actions::backup::{BackupOptions, BackupSync, JobPlan};
use crate::actions::transaction::TransactionPlan;
use crate::command_threads::CommandOnShutdown;
use crate::control::MainThread;
use crate::state::job::BitmapMode;

/// The end of the jobs of a transaction: each by itself, or together.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CompletionMode {
    /// Each by itself.
    Individual,
    /// All of them succeed, or none does.
    Grouped,
}

/// The commands.
pub(super) fn qmp_commands() -> Vec<Command<MainThread>> {
    vec![
        Command {
            name: "transaction",
            arguments: ObjectType::with_members(vec![
                Member::required("actions", Type::list_of_named("TransactionAction")),
                Member::optional("properties", Type::Named("TransactionProperties")),
            ]),
            returns: None,
            run: CommandHandler::Deferred(run_transaction),
        },
        Command {
            name: "blockdev-backup",
            arguments: ObjectType::with_members(job_types::backup_members()),
            returns: None,
            run: CommandHandler::Deferred(|control, data, reply| {
                let actions = [("blockdev-backup", data)];
                run_actions(control, &actions, CompletionMode::Individual, reply);
            }),
        },
        // It begins as an action does, but is none in QEMU.
        Command {
            name: "blockdev-mirror",
            arguments: ObjectType::with_members(job_types::mirror_members()),
            returns: None,
            run: CommandHandler::Deferred(|control, data, reply| {
                let actions = [("blockdev-mirror", data)];
                run_actions(control, &actions, CompletionMode::Individual, reply);
            }),
        },
    ]
}

/// Runs the actions of a transaction: all of them or none.
fn run_transaction(control: &mut MainThread, arguments: &Arguments, reply: ReplySender) {
    let actions = arguments["actions"].as_array().into_iter().flatten();
    let empty = Arguments::new();
    let actions: Vec<(&str, &Arguments)> = actions
        .map(|action| {
            let data = action["data"].as_object().unwrap_or(&empty);
            (action["type"].as_str().unwrap_or_default(), data)
        })
        .collect();
    let mode = arguments.get("properties");
    let mode = mode.and_then(|properties| properties.get("completion-mode"));
    let mode = match mode.and_then(Value::as_str) {
        Some("grouped") => CompletionMode::Grouped,
        _ => CompletionMode::Individual,
    };
    // It is for jobs.
    let other = actions.iter().find(|(kind, _)| *kind != "blockdev-backup");
    if let (CompletionMode::Grouped, Some((kind, _))) = (mode, other) {
        return reply.send(Err(Error::generic(format!(
            "Action '{kind}' does not support transaction property completion-mode = grouped"
        ))));
    }
    run_actions(control, &actions, mode, reply);
}

/// Runs actions, on a thread if that waits for requests.
pub(super) fn run_actions(
    control: &mut MainThread,
    actions: &[(&str, &Arguments)],
    mode: CompletionMode,
    reply: ReplySender,
) {
    let plan = match plan_actions(control, actions) {
        Ok(plan) => plan,
        Err(error) => return reply.send(Err(error)),
    };
    if !plan.may_wait() {
        let done = plan.carry_out();
        let done = done.map_err(|failure| error_of_failed_action(&failure));
        return reply.send(done.map(|_| json!({})));
    }
    let ends_together = mode == CompletionMode::Grouped;
    let reservation = match plan.reserve(&mut control.objects, ends_together) {
        Ok(reservation) => reservation,
        Err(failure) => return reply.send(Err(error_of_failed_action(&failure))),
    };
    control.spawn_command_thread_and_reply_later(
        "transaction".to_owned(),
        CommandOnShutdown::Wait,
        reply,
        move || {
            let uses = plan.carry_out();
            let uses = uses.map_err(|failure| error_of_failed_action(&failure))?;
            Ok((plan, uses))
        },
        move |control, done| {
            let objects = &mut control.objects;
            let (plan, uses) =
                done.inspect_err(|_| reservation.release_and_remove_jobs(objects))?;
            reservation.release(objects);
            for (backup, bitmap) in plan.backups.into_iter().zip(uses) {
                control.start_job(backup, bitmap);
            }
            Ok(())
        },
    );
}

/// Checks the arguments of actions, and plans them.
fn plan_actions(
    control: &mut MainThread,
    actions: &[(&str, &Arguments)],
) -> Result<TransactionPlan, Error> {
    let moment = Arc::new(CopyMoment::default());
    let (mut changes, mut new_bitmaps, mut backups) = (Vec::new(), Vec::new(), Vec::new());
    let mut memory = BitmapMemory::default();
    for (kind, data) in actions {
        match *kind {
            "abort" => return Err(error_of_bitmap(BitmapError::Aborted)),
            "blockdev-backup" => {
                let options = read_backup(data)?;
                let on_failed = report_failed_copy(control);
                let objects = &mut control.objects;
                let memory = &mut memory;
                let plan = JobPlan::new(objects, options, &moment, &new_bitmaps, memory, on_failed);
                let plan = plan.map_err(|failure| error_of_failed_action(&failure))?;
                let action = plan.bitmap_action();
                changes.extend(action.map(|action| (plan.source.clone(), action)));
                backups.push(plan);
            }
            "blockdev-mirror" => backups.push(mirror::plan(control, data)?),
            kind => {
                let (node, action) = read_action(&control.objects, kind, data)?;
                if matches!(action.change, BitmapChange::Add { .. }) {
                    new_bitmaps.push((node.clone(), action.bitmap.clone()));
                }
                changes.push((node, action));
            }
        }
    }
    let plan = TransactionPlan::new(&control.objects, changes, backups, moment);
    plan.map_err(|failure| error_of_failed_action(&failure))
}

/// Reads the arguments of `blockdev-backup`.
fn read_backup(data: &Arguments) -> Result<BackupOptions, Error> {
    let text = |key| data.get(key).and_then(Value::as_str);
    let flag = |key, default| data.get(key).and_then(Value::as_bool).unwrap_or(default);
    if flag("compress", false) {
        return Err(Error::generic(
            "Compression is not supported for this drive ",
        ));
    }
    let perf = data.get("x-perf");
    let use_copy_range = perf.and_then(|perf| perf.get("use-copy-range")?.as_bool());
    let perf = |key| perf.and_then(|perf| perf.get(key)?.as_i64());
    Ok(BackupOptions {
        job_id: str_arg_or_empty(data, "job-id").to_owned(),
        device: str_arg_or_empty(data, "device").to_owned(),
        target: str_arg_or_empty(data, "target").to_owned(),
        sync: match text("sync") {
            Some("bitmap") => BackupSync::Bitmap,
            Some("incremental") => BackupSync::Incremental,
            Some("none") => BackupSync::None,
            Some("top") => BackupSync::Top,
            _ => BackupSync::Full,
        },
        bitmap: text("bitmap").map(str::to_owned),
        bitmap_mode: text("bitmap-mode").map(|mode| match mode {
            "never" => BitmapMode::Never,
            "always" => BitmapMode::Always,
            _ => BitmapMode::OnSuccess,
        }),
        speed: read_speed(data)?,
        on_source_error: on_error(text("on-source-error")),
        on_target_error: on_error(text("on-target-error")),
        auto_finalize: flag("auto-finalize", true),
        auto_dismiss: flag("auto-dismiss", true),
        max_workers: perf("max-workers").unwrap_or(64),
        max_chunk: perf("max-chunk").unwrap_or(0),
        use_copy_range: use_copy_range.unwrap_or(true),
    })
}
