//! `blockplane mirror`: a job that moves a disk to another place while its guest works.

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use commands::signals;
use serde_json::{Value, json};

use crate::operator::client::Client;
use crate::operator::disk::Disk;
use crate::operator::error::{Error, Result};
use crate::operator::monitor_args::MonitorArgs;
use crate::operator::output::print_and_flush;
use crate::operator::target::Target;
use crate::operator::{job, units};

/// The guest's requests wait so long for a server that is gone.
const RECONNECT_DELAY_SECONDS: u32 = 60;

/// The command line of `blockplane mirror`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The monitor.
    #[command(flatten)]
    pub monitor: MonitorArgs,
    /// The id of an export, or the name of a node
    #[arg(value_name = "DISK")]
    pub disk: String,
    /// A new raw image, a block device, or an NBD URI; the daemon opens it
    #[arg(value_name = "TARGET", value_hint = clap::ValueHint::FilePath)]
    pub target: PathBuf,
    /// The name of the target's node [default: that of the disk's node with "-moved" after it]
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// TARGET is the name of a node of the daemon
    #[arg(long, conflicts_with = "node_name")]
    pub to_node: bool,
    /// Let the guest's writes wait for the target, so that a busy disk is ready as well
    #[arg(long)]
    pub write_blocking: bool,
    /// Most bytes per second, such as 100M; 0: no limit
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = options::parse_size_argument)]
    pub speed: u64,
    /// Print JSON, for scripts
    #[arg(long)]
    pub json: bool,
}

/// Moves the disk, and prints what was done.
///
/// # Errors
/// [`Error::TargetExists`], [`Error::TargetUri`], [`Error::NodeHasBitmaps`]; an error reply of the daemon: the disk is where it was, and
/// a new file is removed. An error of [`Client`]: the job may go on.
pub fn run(options: &Options, out: &mut impl Write) -> Result<()> {
    signals::record_termination_signals();
    let mut client = options.monitor.connect()?;
    let disk = Disk::find(&mut client, &options.disk)?;
    if !disk.bitmaps.is_empty() {
        return Err(Error::NodeHasBitmaps(disk.node));
    }
    let text = options.target.to_string_lossy().into_owned();
    if !options.to_node && Disk::all(&mut client)?.iter().any(|disk| disk.node == text) {
        return Err(Error::TargetIsNode(text));
    }
    let target = match options.to_node {
        true => None,
        false => Some(Target::of_full_copy(&client, &options.target, disk.bytes)?),
    };
    let name = target
        .as_ref()
        .map_or(text.clone(), |target| target.name.clone());
    let node = match (&options.node_name, options.to_node) {
        (_, true) => text,
        (Some(name), false) => name.clone(),
        (None, false) => moved_name(&disk.node)?,
    };
    let begin = Instant::now();
    let copied = copy(&mut client, &disk, target, &node, options)
        .map_err(|error| job::refused_beside_other_job(&mut client, error))?;
    let seconds = begin.elapsed().as_secs_f64();
    let removed = remove_unless_it_has_bitmaps(&mut client, &disk.node);
    let text = if options.json {
        let report = json!({
            "old-node-name": disk.node,
            "node-name": node,
            "target": name,
            "size": disk.bytes,
            "old-node-removed": removed.is_ok(),
            "copied": copied,
            "seconds": seconds,
        });
        format!("{report:#}")
    } else {
        let mut text = format!(
            "{old} is now {name} (node {node}): {} copied in {seconds:.1} s\n\
             Change the configuration of the daemon: started again, it would serve the old disk",
            units::format_bytes(copied),
            old = disk.node,
        );
        if let Err(error) = removed {
            text += &format!("\nThe node {} is still there: {error}", disk.node);
        }
        text
    };
    print_and_flush(out, &text)
}

/// The name of a target's node.
fn moved_name(node: &str) -> Result<String> {
    let name = format!("{node}-moved");
    match name.len() <= options::MAX_NODE_NAME_BYTES {
        true => Ok(name),
        false => Err(Error::LongNodeName(name)),
    }
}

/// Removes the old node, which nothing uses any more, unless bitmaps were added while the job ran.
fn remove_unless_it_has_bitmaps(client: &mut Client, node: &str) -> Result<()> {
    let disks = Disk::all(client)?;
    let old = disks.into_iter().find(|disk| disk.node == node);
    if old.is_some_and(|disk| !disk.bitmaps.is_empty()) {
        return Err(Error::NodeHasBitmaps(node.to_owned()));
    }
    client.execute_with("blockdev-del", json!({"node-name": node}))?;
    Ok(())
}

/// Runs the job. The bytes that were copied; the guest uses the target then.
fn copy(
    client: &mut Client,
    disk: &Disk,
    mut target: Option<Target>,
    node: &str,
    options: &Options,
) -> Result<u64> {
    if let Some(target) = &mut target {
        target.set_reconnect_delay(RECONNECT_DELAY_SECONDS);
        target.open(client, node)?;
    }
    let id = job::name_of_run("mirror", std::process::id());
    let copied = job::run(
        client,
        &id,
        "blockdev-mirror",
        arguments(&id, disk, node, options),
    );
    let Some(target) = &mut target else {
        return copied;
    };
    match copied {
        Err(error @ (Error::Interrupted | Error::Job { .. } | Error::Command { .. })) => {
            Err(target.close_after(error, client, node))
        }
        copied => {
            // The job may go on. Also if the connection is lost: the guest may use it.
            target.keep();
            copied
        }
    }
}

fn arguments(id: &str, disk: &Disk, node: &str, options: &Options) -> Value {
    json!({
        "job-id": id,
        "device": disk.node,
        "target": node,
        "sync": "full",
        "speed": options.speed,
        "copy-mode": match options.write_blocking {
            true => "write-blocking",
            false => "background",
        },
    })
}
