//! `blockplane bitmap`: shows and changes the dirty bitmaps of a running daemon's disks.

use std::io::Write;

use serde_json::{Value, json};

use crate::operator::disk::Disk;
use crate::operator::error::{Error, Result};
use crate::operator::monitor_args::MonitorArgs;
use crate::operator::output::print_and_flush;
use crate::operator::table::ColumnAlign::{Left, Right};
use crate::operator::table::TextTable;
use crate::operator::units::format_bytes;

/// The command line of `blockplane bitmap`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The monitor.
    #[command(flatten)]
    pub monitor: MonitorArgs,
    /// The id of an export, or the name of a node [default: all nodes]
    #[arg(value_name = "DISK")]
    pub disk: Option<String>,
    /// The bitmap to change
    #[arg(value_name = "BITMAP", requires = "Change")]
    pub bitmap: Option<String>,
    /// What to change; nothing: list bitmaps.
    #[command(flatten)]
    pub change: Option<Change>,
    /// Of --add: bytes per bit, a power of two [default: 64k]
    #[arg(long, short, value_name = "SIZE", requires = "add", value_parser = options::parse_size_argument,
        conflicts_with_all = OTHER_CHANGES)]
    pub granularity: Option<u64>,
    /// Of --add: it outlives restarts of the daemon (the node has a bitmap-file)
    #[arg(long, requires = "add", conflicts_with_all = OTHER_CHANGES)]
    pub persistent: bool,
    /// Print JSON, for scripts: the bitmaps, by their nodes
    #[arg(long)]
    pub json: bool,
}

/// The changes that have no options.
const OTHER_CHANGES: [&str; 5] = ["remove", "clear", "enable", "disable", "merge"];

/// One change, by the names of `qemu-img bitmap`.
#[derive(Clone, Debug, clap::Args)]
#[group(required = false, multiple = false, requires_all = ["disk", "bitmap"])]
pub struct Change {
    /// Add the bitmap: it records from now on
    #[arg(long)]
    pub add: bool,
    /// Remove it
    #[arg(long)]
    pub remove: bool,
    /// Clear it
    #[arg(long)]
    pub clear: bool,
    /// Record writes again
    #[arg(long)]
    pub enable: bool,
    /// Record no more writes
    #[arg(long)]
    pub disable: bool,
    /// Add what is dirty in this bitmap of the same disk
    #[arg(long, value_name = "SOURCE")]
    pub merge: Option<String>,
}

/// Changes a bitmap, and prints the disk's bitmaps as they are then.
///
/// # Errors
/// [`Error::NoDisk`], [`Error::NoBitmapFile`]; an error reply of the daemon, or an error of its
/// [`Client`](crate::operator::client::Client).
pub fn run(options: &Options, out: &mut impl Write) -> Result<()> {
    let mut client = options.monitor.connect()?;
    if let (Some(change), Some(disk), Some(bitmap)) =
        (&options.change, &options.disk, &options.bitmap)
    {
        let node = Disk::find(&mut client, disk)?.node;
        let changed = client.execute_request(change.request(&node, bitmap, options));
        changed.map_err(Error::with_need_of_bitmap_file)?;
    }
    let disks = match &options.disk {
        Some(disk) => vec![Disk::find(&mut client, disk)?],
        None => Disk::all(&mut client)?,
    };
    let text = if options.json {
        let bitmaps = disks
            .into_iter()
            .map(|disk| (disk.node, disk.bitmaps.into()));
        format!("{:#}", Value::Object(bitmaps.collect()))
    } else {
        table(&disks).to_string().trim_end().to_owned()
    };
    print_and_flush(out, &text)
}

impl Change {
    /// The command of the monitor.
    fn request(&self, node: &str, bitmap: &str, options: &Options) -> Value {
        if let Some(source) = &self.merge {
            let arguments = json!({"node": node, "target": bitmap, "bitmaps": [source]});
            return json!({"execute": "block-dirty-bitmap-merge", "arguments": arguments});
        }
        let mut arguments = json!({"node": node, "name": bitmap});
        let command = if self.add {
            arguments["persistent"] = options.persistent.into();
            if let Some(bytes) = options.granularity {
                arguments["granularity"] = bytes.into();
            }
            "block-dirty-bitmap-add"
        } else if self.remove {
            "block-dirty-bitmap-remove"
        } else if self.clear {
            "block-dirty-bitmap-clear"
        } else if self.enable {
            "block-dirty-bitmap-enable"
        } else {
            "block-dirty-bitmap-disable"
        };
        json!({"execute": command, "arguments": arguments})
    }
}

fn table(disks: &[Disk]) -> TextTable {
    let columns = [
        ("NODE", Left),
        ("BITMAP", Left),
        ("DIRTY", Right),
        ("GRANULARITY", Right),
        ("STATE", Left),
    ];
    let mut table = TextTable::new(&columns, "No bitmaps: --add makes one");
    for disk in disks {
        for bitmap in &disk.bitmaps {
            let bytes = |member: &str| bitmap[member].as_u64().map(format_bytes);
            let name = bitmap["name"].as_str().unwrap_or_default();
            table.add_row([
                disk.node.clone(),
                name.to_owned(),
                bytes("count").unwrap_or_default(),
                bytes("granularity").unwrap_or_default(),
                state(bitmap),
            ]);
        }
    }
    table
}

/// `recording, persistent`, and what else is the case.
fn state(bitmap: &Value) -> String {
    let is = |member: &str| bitmap[member] == true;
    let mut parts = Vec::new();
    if is("inconsistent") {
        parts.push("inconsistent");
    } else if is("recording") {
        parts.push("recording");
    } else {
        parts.push("disabled");
    }
    parts.extend(
        ["busy", "persistent"]
            .into_iter()
            .filter(|member| is(member)),
    );
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bitmaps_of_all_disks_are_in_the_table() {
        let bitmap = json!({"name": "b", "count": 131_072, "granularity": 65_536, "recording": true,
            "busy": false, "persistent": true});
        let disk = |node: &str, bitmaps: Vec<Value>| Disk {
            node: node.to_owned(),
            bytes: 1 << 20,
            bitmaps,
        };
        let old = json!({"name": "old", "count": 0, "granularity": 65_536, "inconsistent": true});
        let disks = [
            disk("n", vec![bitmap]),
            disk("none", vec![]),
            disk("m", vec![old]),
        ];
        let text = table(&disks).to_string();
        let rows: Vec<String> = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(rows[1], "n b 128 KiB 64 KiB recording, persistent");
        assert_eq!(rows[2], "m old 0 B 64 KiB inconsistent");
    }
}
