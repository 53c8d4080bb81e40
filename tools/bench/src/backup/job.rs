//! Backups, each of the disk `d0` to a new file.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::load::Episode;
use crate::monitor::Monitor;
use crate::storage::{Backing, BackingOption, Storage};

/// The part of the disk that a backup copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Sync {
    /// All of it: then the job ends
    Full,
    /// Only what the guest overwrites, until the job is cancelled after --time
    None,
}

/// The arguments of a backup.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobSettings {
    pub sync: Sync,
    /// Bytes per second; 0: no limit.
    pub speed: u64,
    /// After this time a job without an end is cancelled.
    pub time: Duration,
}

/// For a job. Only one that hangs, or gets next to nothing beside the load, takes it.
const JOB_LIMIT: Duration = Duration::from_secs(600);
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// The job, and the node that it writes to.
const JOB: &str = "backup";
const TARGET: &str = "target";

/// The file that a backup writes, at the place of the disk.
pub(super) struct BackupTarget {
    place: BackingOption,
    path: PathBuf,
    bytes: u64,
}

impl BackupTarget {
    /// In the folder of a disk of so many bytes.
    pub fn beside(disk: &Storage, place: &BackingOption, bytes: u64) -> Result<Self> {
        match &disk.backing {
            Backing::File(path, _) => Ok(BackupTarget {
                place: place.clone(),
                path: path.with_file_name("backup.img"),
                bytes,
            }),
            other => Err(Error::Unsuitable(format!(
                "a backup is made beside a file, and not beside {other:?}"
            ))),
        }
    }
}

/// A backup: prepared, begun, and finished when it has ended.
pub(super) struct BackupJob<'j> {
    monitor: &'j mut Monitor,
    target: &'j BackupTarget,
    settings: JobSettings,
    begun: Instant,
    took: Duration,
    is_cancelled: bool,
}

impl<'j> BackupJob<'j> {
    /// To a new file.
    pub fn new(monitor: &'j mut Monitor, target: &'j BackupTarget, settings: JobSettings) -> Self {
        BackupJob {
            monitor,
            target,
            settings,
            begun: Instant::now(),
            took: Duration::ZERO,
            is_cancelled: false,
        }
    }

    /// All of it, without a load.
    pub fn run_alone(mut self) -> Result<Duration> {
        self.prepare()?;
        self.begin()?;
        while !self.wait(LOOK_INTERVAL)? {}
        self.finish()
    }

    /// Removes the target; how long the job took, from the command to the event of its end.
    pub fn finish(self) -> Result<Duration> {
        self.monitor
            .execute("blockdev-del", &json!({ "node-name": TARGET }))?;
        let path = &self.target.path;
        std::fs::remove_file(path).map_err(Error::io(format!("remove {}", path.display())))?;
        Ok(self.took)
    }
}

impl Episode for BackupJob<'_> {
    /// A front-end is connected then, or none has been: a peer may close descriptors twice when a front-end leaves, those of a
    /// file that is opened meanwhile.
    fn prepare(&mut self) -> Result<()> {
        let target = self.target;
        target.place.empty_file(&target.path, target.bytes)?;
        let node = json!({
            "driver": "file",
            "node-name": TARGET,
            "filename": target.path.display().to_string(),
            "cache": { "direct": true },
            "aio": "native",
            "discard": "unmap",
        });
        self.monitor.execute("blockdev-add", &node)?;
        Ok(())
    }

    fn begin(&mut self) -> Result<()> {
        self.begun = Instant::now();
        let arguments = json!({
            "job-id": JOB,
            "device": "d0",
            "target": TARGET,
            "sync": match self.settings.sync {
                Sync::Full => "full",
                Sync::None => "none",
            },
            "speed": self.settings.speed,
        });
        self.monitor.execute("blockdev-backup", &arguments)?;
        Ok(())
    }

    fn wait(&mut self, limit: Duration) -> Result<bool> {
        let event = self.monitor.event(limit)?;
        if let Some(ended) = event.as_ref().and_then(end) {
            self.took = self.begun.elapsed();
            return match ended {
                End::Cancelled if self.is_cancelled => Ok(true),
                End::Cancelled => Err(Error::Requests("the backup was cancelled".to_owned())),
                End::Failed(error) => Err(Error::Requests(format!("the backup failed: {error}"))),
                End::Completed => Ok(true),
            };
        }
        let has_no_end = self.settings.sync == Sync::None;
        if has_no_end && !self.is_cancelled && self.begun.elapsed() > self.settings.time {
            self.is_cancelled = true;
            self.monitor.execute("job-cancel", &json!({ "id": JOB }))?;
        }
        match self.begun.elapsed() > JOB_LIMIT {
            true => Err(Error::Requests(format!(
                "the backup has not ended after {JOB_LIMIT:?}"
            ))),
            false => Ok(false),
        }
    }
}

/// The end of a job.
#[derive(Debug, PartialEq)]
enum End {
    Completed,
    Failed(String),
    Cancelled,
}

/// The job's end, if that is what the event is about.
fn end(event: &Value) -> Option<End> {
    let data = event.get("data")?;
    if data.get("device")? != JOB {
        return None;
    }
    let error = data.get("error").and_then(Value::as_str);
    match (event.get("event")?.as_str()?, error) {
        ("BLOCK_JOB_COMPLETED", None) => Some(End::Completed),
        ("BLOCK_JOB_COMPLETED", Some(error)) => Some(End::Failed(error.to_owned())),
        ("BLOCK_JOB_CANCELLED", _) => Some(End::Cancelled),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_event_of_its_end_ends_a_job() {
        let event = |name, data| end(&json!({ "event": name, "data": data }));
        let of_job = || json!({ "device": JOB, "len": 1, "offset": 1 });
        let completed = event("BLOCK_JOB_COMPLETED", of_job());
        assert_eq!(completed, Some(End::Completed));
        let failed = json!({ "device": JOB, "error": "No space left on device" });
        let failed = event("BLOCK_JOB_COMPLETED", failed);
        assert_eq!(
            failed,
            Some(End::Failed("No space left on device".to_owned()))
        );
        let cancelled = event("BLOCK_JOB_CANCELLED", of_job());
        assert_eq!(cancelled, Some(End::Cancelled));
        for (name, data) in [
            ("BLOCK_JOB_READY", of_job()),
            ("BLOCK_JOB_COMPLETED", json!({ "device": "other" })),
            ("JOB_STATUS_CHANGE", json!({ "id": JOB, "status": "null" })),
        ] {
            assert_eq!(event(name, data), None, "{name}");
        }
    }
}
