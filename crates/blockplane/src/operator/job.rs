//! A job of the daemon, followed to its end with a progress bar; Ctrl-C cancels it.

use std::io::IsTerminal;
use std::time::Duration;

use commands::signals;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};

use crate::operator::client::Client;
use crate::operator::error::{Error, Result};

/// Time between two looks at the job.
const INTERVAL: Duration = Duration::from_millis(200);
/// How often `job-complete` is tried again: the reason may pass, such as an export that is being removed.
const MAX_REFUSALS: u32 = 50;

/// Begins a job by a command, and waits for its end; the bytes that it has copied. The job dismisses itself. One that is pending is
/// finalized. A mirror that is ready is completed: guests go over to its target then.
///
/// # Errors
/// [`Error::Interrupted`] if it was cancelled, also by others; [`Error::Job`] if it failed; [`Error::Command`] if it was refused, or
/// cannot be completed; [`Error::NotCompleted`] if it is ready and goes on. An error of [`Client`] besides: what became of the job is
/// not known.
pub(crate) fn run(client: &mut Client, id: &str, command: &str, arguments: Value) -> Result<u64> {
    let pause = || std::thread::sleep(INTERVAL);
    run_with_pauses(client, id, command, arguments, pause)
}

/// Runs a job as `run` does, but calls `pause` between two looks at it: tests do not wait.
///
/// # Errors
/// As for `run`.
pub fn run_with_pauses(
    client: &mut Client,
    id: &str,
    command: &str,
    arguments: Value,
    mut pause: impl FnMut(),
) -> Result<u64> {
    client.wait_without_limit();
    // If this command is to end, the job is cancelled below.
    client.execute_to_end(command, arguments)?;
    let bar = Bar::start(id);
    // It would be copied in vain.
    let mut refused = reason_against_completion(client, id)?;
    let is_in_vain = refused.is_some();
    let (mut is_cancelled, mut refusals) = (false, 0);
    loop {
        let job = match find_job(client, id) {
            Ok(Some(job)) => job,
            Ok(None) => break,
            Err(Error::Interrupted) => continue,
            Err(error) => return Err(error),
        };
        bar.show(&job);
        let is_unwanted = signals::termination_requested() || is_in_vain;
        match job["status"].as_str() {
            _ if is_unwanted && !is_cancelled => {
                is_cancelled = true;
                execute_unless_ended(client, "job-cancel", id)?;
            }
            Some("pending") if !is_cancelled => {
                execute_unless_ended(client, "job-finalize", id)?;
            }
            Some("ready") if refusals > MAX_REFUSALS && !is_cancelled => {
                let reason = refused.map_or_else(String::new, |refused| refused.to_string());
                let id = id.to_owned();
                return Err(Error::NotCompleted { id, reason });
            }
            Some("ready") if refusals == 0 || refused.is_some() => {
                refusals += 1;
                refused = execute_unless_ended(client, "job-complete", id)?;
            }
            _ => {}
        }
        pause();
    }
    let ended = result_of(client, id);
    match refused {
        Some(refused) if matches!(ended, Err(Error::Interrupted)) => Err(refused),
        _ => ended,
    }
}

/// Why a job that has just begun cannot be completed, if it is a mirror whose guests cannot go over to its target.
fn reason_against_completion(client: &mut Client, id: &str) -> Result<Option<Error>> {
    let jobs = match client.execute("query-block-jobs", Map::new()) {
        // The job is cancelled later.
        Err(Error::Interrupted) => return Ok(None),
        jobs => jobs?,
    };
    let mut jobs = jobs.as_array().into_iter().flatten();
    let job = jobs.find(|job| job["device"] == id);
    let reason = job.and_then(|job| job["cannot-complete"].as_str());
    Ok(reason.map(|reason| Error::Command {
        class: "GenericError".to_owned(),
        desc: reason.to_owned(),
    }))
}

/// The result of a job that has ended.
fn result_of(client: &mut Client, id: &str) -> Result<u64> {
    let mut failure = "the job has failed";
    loop {
        let event = match client.next_event() {
            Ok(event) => event,
            Err(Error::Interrupted) => continue,
            Err(error) => return Err(error),
        };
        let data = &event["data"];
        if data["device"] != id {
            continue;
        }
        match (event["event"].as_str(), data["error"].as_str()) {
            (Some("BLOCK_JOB_COMPLETED"), None) => return Ok(data["offset"].as_u64().unwrap_or(0)),
            (Some("BLOCK_JOB_COMPLETED"), Some(error)) => {
                let error = error.to_owned();
                return Err(Error::Job { failure, error });
            }
            (Some("BLOCK_JOB_ERROR"), _) => {
                failure = match data["operation"].as_str() {
                    Some("read") => "the job has failed, reading DISK",
                    _ => "the job has failed, writing to TARGET",
                }
            }
            (Some("BLOCK_JOB_CANCELLED"), _) => return Err(Error::Interrupted),
            _ => {}
        }
    }
}

/// The name of the job of a backup or mirror command, which no other process has.
pub(crate) fn name_of_run(command: &str, pid: u32) -> String {
    format!("{command}-{pid}")
}

/// An error of a command that begins a copy. If something is in use, with the job or node that another such command has left.
pub(crate) fn refused_beside_other_job(client: &mut Client, error: Error) -> Error {
    let Error::Command { desc, .. } = &error else {
        return error;
    };
    let conflicts = ["is busy", "in use", "\" lock", "Duplicate nodes"];
    if !conflicts.iter().any(|text| desc.contains(text)) {
        return error;
    }
    let refused = Box::new(error);
    if let Some(job) = id_of_command(client, "query-jobs", "id") {
        return Error::OtherJob { refused, job };
    }
    match id_of_command(client, "query-named-block-nodes", "node-name") {
        Some(node) => Error::OtherTarget { refused, node },
        None => *refused,
    }
}

/// The first of these objects whose name is that of a job or node of a backup or mirror command.
fn id_of_command(client: &mut Client, query: &str, member: &str) -> Option<String> {
    let objects = client.execute(query, Map::new()).ok()?;
    let mut names = objects
        .as_array()?
        .iter()
        .filter_map(|object| object[member].as_str());
    let is_of_command = |name: &&str| {
        let parts = name.split_once('-');
        parts.is_some_and(|(kind, number)| {
            ["backup", "mirror"].contains(&kind) && number.parse::<u32>().is_ok()
        })
    };
    names.find(is_of_command).map(str::to_owned)
}

/// The job among those of the daemon, until it has ended.
fn find_job(client: &mut Client, id: &str) -> Result<Option<Value>> {
    let jobs = client.execute("query-jobs", Map::new())?;
    let mut jobs = jobs.as_array().into_iter().flatten();
    Ok(jobs.find(|job| job["id"] == id).cloned())
}

/// Executes a command for the job. The error reply, which is also that of a job that has ended just now.
fn execute_unless_ended(client: &mut Client, command: &str, id: &str) -> Result<Option<Error>> {
    match client.execute_with(command, json!({"id": id})) {
        Ok(_) | Err(Error::Interrupted) => Ok(None),
        Err(error @ Error::Command { .. }) => Ok(Some(error)),
        Err(error) => Err(error),
    }
}

/// Progress on standard error, if that is a terminal; gone when dropped.
struct Bar(ProgressBar);

impl Bar {
    fn start(title: &str) -> Self {
        if !std::io::stderr().is_terminal() {
            return Bar(ProgressBar::hidden());
        }
        let bar = ProgressBar::new(0);
        let template = "{prefix} {bar:30} {binary_bytes}/{binary_total_bytes} ({binary_bytes_per_sec}, {eta} left)";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_prefix(title.to_owned());
        Bar(bar)
    }

    fn show(&self, job: &Value) {
        let number = |member: &str| job[member].as_u64().unwrap_or(0);
        self.0.set_length(number("total-progress"));
        self.0.set_position(number("current-progress"));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
