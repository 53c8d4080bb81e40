//! `blockplane backup`: a job that copies a disk as it is now, in full or what has changed since the last time.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use commands::signals;
use serde_json::{Value, json};

use crate::operator::client::Client;
use crate::operator::disk::Disk;
use crate::operator::error::{Error, Result};
use crate::operator::monitor_args::MonitorArgs;
use crate::operator::output::print_and_flush;
use crate::operator::target::Target;
use crate::operator::{job, new_bitmap, units};

/// The command line of `blockplane backup`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The monitor.
    #[command(flatten)]
    pub monitor: MonitorArgs,
    /// The id of an export, or the name of a node
    #[arg(value_name = "DISK")]
    pub disk: String,
    /// The raw image to write, a block device, or an NBD URI; the daemon opens it
    #[arg(value_name = "TARGET", value_hint = clap::ValueHint::FilePath)]
    pub target: PathBuf,
    /// Copy what is dirty in this bitmap; without such a bitmap all, and record from now on
    #[arg(long, value_name = "BITMAP")]
    pub incremental: Option<String>,
    /// A new bitmap outlives restarts of the daemon (the node has a bitmap-file)
    #[arg(long, requires = "incremental")]
    pub persistent: bool,
    /// Most bytes per second, such as 100M; 0: no limit
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = options::parse_size_argument)]
    pub speed: u64,
    /// Print JSON, for scripts
    #[arg(long)]
    pub json: bool,
}

/// What is copied.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind<'a> {
    /// All, to a new file.
    Full,
    /// All, to a new file, and a new bitmap records from that moment.
    FullWithNewBitmap(&'a str),
    /// What is dirty in the bitmap, to the file of the last backup.
    Incremental(&'a str),
}

impl<'a> Kind<'a> {
    fn of(disk: &Disk, bitmap: Option<&'a str>) -> Self {
        match bitmap {
            None => Kind::Full,
            Some(name) if disk.bitmap(name).is_none() => Kind::FullWithNewBitmap(name),
            Some(name) => Kind::Incremental(name),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Full | Kind::FullWithNewBitmap(_) => "full",
            Kind::Incremental(_) => "incremental",
        }
    }
}

/// Copies the disk, and prints what was done.
///
/// # Errors
/// [`Error::TargetExists`], [`Error::TargetUri`], [`Error::NoLastBackup`], [`Error::BitmapIsIncomplete`]; an error reply of the daemon, or
/// an error of [`Client`]. The file of a full backup is removed then, and a bitmap has what it had.
pub fn run(options: &Options, out: &mut impl Write) -> Result<()> {
    signals::record_termination_signals();
    let mut client = options.monitor.connect()?;
    let disk = Disk::find(&mut client, &options.disk)?;
    let kind = Kind::of(&disk, options.incremental.as_deref());
    if let Kind::Incremental(bitmap) = kind {
        check_is_complete(&disk, bitmap)?;
    }
    let mut target = match kind {
        Kind::Full | Kind::FullWithNewBitmap(_) => {
            Target::of_full_copy(&client, &options.target, disk.bytes)?
        }
        Kind::Incremental(bitmap) => target_of_last_backup(&options.target, bitmap, disk.bytes)?,
    };
    let name = target.name.clone();
    let begin = Instant::now();
    let copied = copy(&mut client, &disk, kind, &mut target, options)
        .map_err(Error::with_need_of_bitmap_file)
        .map_err(|error| job::refused_beside_other_job(&mut client, error))?;
    let seconds = begin.elapsed().as_secs_f64();
    let text = if options.json {
        let report = json!({
            "node-name": disk.node,
            "target": name,
            "kind": kind.name(),
            "bitmap": options.incremental,
            "size": disk.bytes,
            "copied": copied,
            "seconds": seconds,
        });
        format!("{report:#}")
    } else {
        format!(
            "{} backup of {} in {}: {} of {} copied in {seconds:.1} s",
            kind.name(),
            disk.node,
            name,
            units::format_bytes(copied),
            units::format_bytes(disk.bytes),
        )
    };
    print_and_flush(out, &text)
}

/// Refuses a bitmap that is known to lack writes.
fn check_is_complete(disk: &Disk, name: &str) -> Result<()> {
    let bitmap = disk.bitmap(name).unwrap_or(&Value::Null);
    let reason = if bitmap["inconsistent"] == true {
        "is inconsistent"
    } else if bitmap["recording"] == false && bitmap["busy"] != true {
        "does not record"
    } else {
        return Ok(());
    };
    Err(Error::BitmapIsIncomplete {
        bitmap: name.to_owned(),
        node: disk.node.clone(),
        reason,
    })
}

/// The target that the last backup of a disk of so many bytes was written to, or a copy of it.
fn target_of_last_backup(text: &Path, bitmap: &str, bytes: u64) -> Result<Target> {
    let target = Target::existing(text)?;
    match target.is_there() {
        true => target.check_is_not_larger(bytes).map(|()| target),
        false => Err(Error::NoLastBackup {
            path: target.name.clone().into(),
            bitmap: bitmap.to_owned(),
        }),
    }
}

/// Adds the target as a node, runs the job, and removes the node; the bytes that were copied.
fn copy(
    client: &mut Client,
    disk: &Disk,
    kind: Kind<'_>,
    target: &mut Target,
    options: &Options,
) -> Result<u64> {
    let id = job::name_of_run("backup", std::process::id());
    if let Kind::FullWithNewBitmap(bitmap) = kind {
        new_bitmap::remove_left_ones(client, disk, bitmap)?;
    }
    target.open(client, &id)?;
    let actions = actions(disk, kind, &id, options);
    let copied = job::run(client, &id, "transaction", json!({"actions": actions}));
    if copied.is_ok() {
        target.keep();
    }
    let copied = match kind {
        Kind::FullWithNewBitmap(bitmap) => copied
            .and_then(|bytes| {
                new_bitmap::give_name(client, disk, bitmap, options.persistent).map(|()| bytes)
            })
            .inspect_err(|_| new_bitmap::remove(client, disk, bitmap)),
        Kind::Full | Kind::Incremental(_) => copied,
    };
    match copied {
        Ok(copied) => target.close(client, &id).map(|()| copied),
        Err(error) => Err(target.close_after(error, client, &id)),
    }
}

/// The actions of the transaction that begins the job.
fn actions(disk: &Disk, kind: Kind<'_>, id: &str, options: &Options) -> Vec<Value> {
    let mut backup = json!({
        "job-id": id,
        "device": disk.node,
        "target": id,
        "sync": kind.name(),
        "speed": options.speed,
        // The bitmap is not changed if this command ends before the job does.
        "auto-finalize": false,
    });
    let mut actions = Vec::new();
    match kind {
        Kind::Full => {}
        Kind::FullWithNewBitmap(name) => {
            let name = new_bitmap::temporary_name(name);
            actions.push(new_bitmap::add_action(
                &disk.node,
                &name,
                options.persistent,
            ));
        }
        Kind::Incremental(name) => backup["bitmap"] = json!(name),
    }
    actions.push(json!({"type": "blockdev-backup", "data": backup}));
    actions
}
