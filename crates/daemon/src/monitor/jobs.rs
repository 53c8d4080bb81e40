//! QMP commands for jobs: queries, and the commands that pause, resume, limit, cancel, finalize and dismiss them, in both families of
//! QEMU: `job-…` and `block-job-…`.

use qmp::{Arguments, Command, CommandHandler, Error, Member, ObjectType, Type};
use serde_json::{Value, json};

use super::error_conversion::error_of_failed_action;
use super::job_arguments::read_speed;
use super::str_arg_or_empty;
use crate::actions::mirror::reason_against_completion;
use crate::control::MainThread;
use crate::state::DaemonObjects;
use crate::state::job::Job;
use crate::state::job_status::{JobStatus, JobVerb};

/// The commands for jobs.
pub(super) fn qmp_commands() -> Vec<Command<MainThread>> {
    vec![
        query("query-jobs", "JobInfo", |control, _| {
            Ok(control.objects.jobs.iter().map(job_info).collect())
        }),
        query("query-block-jobs", "BlockJobInfo", |control, _| {
            let jobs = control.objects.jobs.iter();
            let block_jobs = jobs.filter(|job| job.is_block_job());
            let infos = block_jobs.map(|job| block_job_info(&control.objects, job));
            Ok(infos.collect())
        }),
        of_job("job-pause", |control, arguments| {
            run(control, arguments, Family::Job, JobVerb::Pause)
        }),
        of_job("job-resume", |control, arguments| {
            run(control, arguments, Family::Job, JobVerb::Resume)
        }),
        of_job("job-cancel", |control, arguments| {
            run(control, arguments, Family::Job, JobVerb::Cancel)
        }),
        of_job("job-complete", |control, arguments| {
            run(control, arguments, Family::Job, JobVerb::Complete)
        }),
        of_job("job-finalize", |control, arguments| {
            run(control, arguments, Family::Job, JobVerb::Finalize)
        }),
        of_job("job-dismiss", |control, arguments| {
            run(control, arguments, Family::Job, JobVerb::Dismiss)
        }),
        of_device("block-job-pause", None, |control, arguments| {
            run(control, arguments, Family::Device, JobVerb::Pause)
        }),
        of_device("block-job-resume", None, |control, arguments| {
            run(control, arguments, Family::Device, JobVerb::Resume)
        }),
        of_device(
            "block-job-cancel",
            Some(Member::optional("force", Type::Bool)),
            |control, arguments| {
                let force = arguments.get("force").and_then(Value::as_bool);
                let verb = match force {
                    Some(true) => JobVerb::Cancel,
                    _ => JobVerb::CancelUnlessReady,
                };
                run(control, arguments, Family::Device, verb)
            },
        ),
        of_device("block-job-complete", None, |control, arguments| {
            run(control, arguments, Family::Device, JobVerb::Complete)
        }),
        of_job("block-job-finalize", |control, arguments| {
            run(control, arguments, Family::BlockJob, JobVerb::Finalize)
        }),
        of_job("block-job-dismiss", |control, arguments| {
            run(control, arguments, Family::BlockJob, JobVerb::Dismiss)
        }),
        of_device(
            "block-job-set-speed",
            Some(Member::required("speed", Type::Int)),
            |control, arguments| {
                let number = find_job(control, arguments, Family::Device)?;
                let speed = read_speed(arguments)?;
                let set = control.set_job_speed(number, speed);
                set.map_err(|failure| error_of_failed_action(&failure))?;
                Ok(json!({}))
            },
        ),
    ]
}

type Handler = fn(&mut MainThread, &Arguments) -> Result<Value, Error>;

fn query(name: &'static str, returns: &'static str, run: Handler) -> Command<MainThread> {
    Command {
        name,
        arguments: ObjectType::default(),
        returns: Some(Type::list_of_named(returns)),
        run: CommandHandler::InBand(run),
    }
}

/// A command with the argument `id`.
fn of_job(name: &'static str, run: Handler) -> Command<MainThread> {
    command(name, vec![Member::required("id", Type::Str)], run)
}

/// A command with the argument `device`, and perhaps another one.
fn of_device(name: &'static str, further: Option<Member>, run: Handler) -> Command<MainThread> {
    let mut members = vec![Member::required("device", Type::Str)];
    members.extend(further);
    command(name, members, run)
}

fn command(name: &'static str, members: Vec<Member>, run: Handler) -> Command<MainThread> {
    Command {
        name,
        arguments: ObjectType::with_members(members),
        returns: None,
        run: CommandHandler::InBand(run),
    }
}

/// Commands that name a job in the same way, and have the same error if there is none.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    /// `job-…`.
    Job,
    /// `block-job-…` with `id`.
    BlockJob,
    /// `block-job-…` with `device`.
    Device,
}

/// The number of the job that the arguments name.
fn find_job(control: &MainThread, arguments: &Arguments, family: Family) -> Result<u64, Error> {
    let key = if family == Family::Device {
        "device"
    } else {
        "id"
    };
    let id = str_arg_or_empty(arguments, key);
    let mut jobs = control.objects.jobs.iter();
    let found = jobs.find(|job| job.id == id && (family == Family::Job || job.is_block_job()));
    let found = found.map(|job| job.number);
    found.ok_or_else(|| match family {
        Family::Job => Error::generic("Job not found"),
        _ => Error::device_not_active(format!("Block job '{id}' not found")),
    })
}

/// Carries out a command for a job.
fn run(
    control: &mut MainThread,
    arguments: &Arguments,
    family: Family,
    verb: JobVerb,
) -> Result<Value, Error> {
    let number = find_job(control, arguments, family)?;
    let done = control.run_job_verb(number, verb);
    done.map_err(|failure| error_of_failed_action(&failure))?;
    Ok(json!({}))
}

/// `JobInfo` of a job.
fn job_info(job: &Job) -> Value {
    let (copied, total) = job.progress();
    let mut info = json!({
        "id": job.id,
        "type": job.type_name(),
        "status": job.status.name(),
        "current-progress": copied,
        "total-progress": total,
    });
    add_error(job, &mut info);
    info
}

/// `BlockJobInfo` of a job.
fn block_job_info(objects: &DaemonObjects, job: &Job) -> Value {
    // Read before the offset, which does not change any more if the job is paused and not busy.
    let is_busy = job.is_busy();
    let mut info = job.event_data();
    info["busy"] = is_busy.into();
    info["paused"] = job.is_paused().into();
    info["io-status"] = job.io_status.name().into();
    info["ready"] = matches!(job.status, JobStatus::Ready | JobStatus::Standby).into();
    info["status"] = job.status.name().into();
    info["auto-finalize"] = job.auto_finalize.into();
    info["auto-dismiss"] = job.auto_dismiss.into();
    if let Some(mirror) = &job.mirror {
        let is_synced = mirror.is_write_blocking && job.pending_bytes() == 0;
        info["actively-synced"] = is_synced.into();
        if let Some(reason) = reason_against_completion(objects, job) {
            info["cannot-complete"] = reason.into();
        }
    }
    add_error(job, &mut info);
    info
}

fn add_error(job: &Job, info: &mut Value) {
    if let Some(error) = &job.error {
        info["error"] = error.as_str().into();
    }
}
