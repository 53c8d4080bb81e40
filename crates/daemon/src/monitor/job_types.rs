//! QMP schema types of jobs: arguments of the commands for them, results, and events.

use qmp::{Event, Member, ObjectType, Type, TypeDefinition};

/// Arguments of `blockdev-backup`.
pub(super) fn backup_members() -> Vec<Member> {
    let optional = [
        ("job-id", Type::Str),
        ("speed", Type::Int),
        ("bitmap", Type::Str),
        ("bitmap-mode", Type::Named("BitmapSyncMode")),
        ("compress", Type::Bool),
        ("on-source-error", Type::Named("BlockdevOnError")),
        ("on-target-error", Type::Named("BlockdevOnError")),
        ("auto-finalize", Type::Bool),
        ("auto-dismiss", Type::Bool),
        ("x-perf", Type::Named("BackupPerf")),
    ];
    let mut members = vec![
        Member::required("device", Type::Str),
        Member::required("target", Type::Str),
        Member::required("sync", Type::Named("MirrorSyncMode")),
    ];
    members.extend(optional.map(|(name, r#type)| Member::optional(name, r#type)));
    members
}

/// Arguments of `blockdev-mirror`.
pub(super) fn mirror_members() -> Vec<Member> {
    let optional = [
        ("job-id", Type::Str),
        ("replaces", Type::Str),
        ("speed", Type::Int),
        ("granularity", Type::Int),
        ("buf-size", Type::Int),
        ("on-source-error", Type::Named("BlockdevOnError")),
        ("on-target-error", Type::Named("BlockdevOnError")),
        ("filter-node-name", Type::Str),
        ("copy-mode", Type::Named("MirrorCopyMode")),
        ("auto-finalize", Type::Bool),
        ("auto-dismiss", Type::Bool),
        ("target-is-zero", Type::Bool),
    ];
    let mut members = vec![
        Member::required("device", Type::Str),
        Member::required("target", Type::Str),
        Member::required("sync", Type::Named("MirrorSyncMode")),
    ];
    members.extend(optional.map(|(name, r#type)| Member::optional(name, r#type)));
    members
}

/// Types of arguments and results.
pub(super) fn qmp_type_definitions() -> Vec<(&'static str, TypeDefinition)> {
    let object = |members| TypeDefinition::Object(ObjectType::with_members(members));
    let words = |words: &[&'static str]| TypeDefinition::Enum(words.to_vec());
    let mut job = required(&[
        ("id", Type::Str),
        ("type", Type::Named("JobType")),
        ("status", Type::Named("JobStatus")),
        ("current-progress", Type::Int),
        ("total-progress", Type::Int),
    ]);
    job.push(Member::optional("error", Type::Str));
    let mut block_job = progress_members();
    block_job.extend(required(&[
        ("busy", Type::Bool),
        ("paused", Type::Bool),
        ("io-status", Type::Named("BlockDeviceIoStatus")),
        ("ready", Type::Bool),
        ("status", Type::Named("JobStatus")),
        ("auto-finalize", Type::Bool),
        ("auto-dismiss", Type::Bool),
    ]));
    block_job.push(Member::optional("actively-synced", Type::Bool));
    block_job.push(Member::optional("cannot-complete", Type::Str));
    block_job.push(Member::optional("error", Type::Str));
    let perf = [
        Member::optional("use-copy-range", Type::Bool),
        Member::optional("max-workers", Type::Int),
        Member::optional("max-chunk", Type::Int),
    ];
    vec![
        ("BlockdevBackup", object(backup_members())),
        ("BackupPerf", object(perf.into())),
        (
            "MirrorSyncMode",
            words(&["top", "full", "none", "incremental", "bitmap"]),
        ),
        ("BitmapSyncMode", words(&["on-success", "never", "always"])),
        (
            "BlockdevOnError",
            words(&["report", "ignore", "enospc", "stop", "auto"]),
        ),
        ("MirrorCopyMode", words(&["background", "write-blocking"])),
        ("JobType", words(&["backup", "mirror", "create"])),
        (
            "JobStatus",
            words(&[
                "created",
                "running",
                "paused",
                "ready",
                "standby",
                "waiting",
                "pending",
                "aborting",
                "concluded",
                "null",
            ]),
        ),
        ("JobInfo", object(job)),
        ("BlockJobInfo", object(block_job)),
    ]
}

/// Events of jobs.
pub(super) fn qmp_events() -> Vec<Event> {
    let event = |name, members| Event {
        name,
        data: ObjectType::with_members(members),
    };
    let mut completed = progress_members();
    completed.push(Member::optional("error", Type::Str));
    vec![
        event(
            "JOB_STATUS_CHANGE",
            required(&[("id", Type::Str), ("status", Type::Named("JobStatus"))]),
        ),
        event("BLOCK_JOB_COMPLETED", completed),
        event("BLOCK_JOB_CANCELLED", progress_members()),
        event("BLOCK_JOB_READY", progress_members()),
        event(
            "BLOCK_JOB_PENDING",
            required(&[("type", Type::Named("JobType")), ("id", Type::Str)]),
        ),
        event(
            "BLOCK_JOB_ERROR",
            required(&[
                ("device", Type::Str),
                ("operation", Type::Named("IoOperationType")),
                ("action", Type::Named("BlockErrorAction")),
            ]),
        ),
    ]
}

/// Members of a query and of events on a block job's progress.
fn progress_members() -> Vec<Member> {
    required(&[
        ("type", Type::Named("JobType")),
        ("device", Type::Str),
        ("len", Type::Int),
        ("offset", Type::Int),
        ("speed", Type::Int),
    ])
}

fn required(members: &[(&'static str, Type)]) -> Vec<Member> {
    let members = members.iter().cloned();
    members
        .map(|(name, r#type)| Member::required(name, r#type))
        .collect()
}
