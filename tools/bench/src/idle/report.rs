//! Cost of an idle server, as a table and as JSON.

use serde_json::{Value, json};

use super::Options;
use crate::procfs::{self, Memory, Thread};
use crate::stats::count;
use crate::table::Table;

/// One server, idle.
#[derive(Clone, Debug)]
pub struct Idle {
    /// `null-co` or `file`.
    pub backing: &'static str,
    /// Queues started, all disks together.
    pub queues: u64,
    /// Time from the first message to the last started queue.
    pub start_ns: u64,
    /// Time watched.
    pub watched_ns: u64,
    /// What each thread used in that time.
    pub threads: Vec<Thread>,
    /// Memory once all front-ends are connected, before a queue is started.
    pub memory_before: Memory,
    /// Memory with all queues started.
    pub memory_after: Memory,
    /// Descriptors before and after.
    pub descriptors: (usize, usize),
}

impl Idle {
    /// Threads that run queues.
    pub fn iothreads(&self) -> impl Iterator<Item = &Thread> {
        self.threads
            .iter()
            .filter(|thread| thread.name.starts_with("IO "))
    }

    /// What one queue added to `part` of the memory, in bytes.
    #[must_use]
    pub fn bytes_per_queue(&self, part: impl Fn(&Memory) -> u64) -> i64 {
        // Memory is far below 2^63 bytes.
        let bytes = |memory| i64::try_from(part(memory)).unwrap_or(i64::MAX);
        let queues = i64::try_from(self.queues).unwrap_or(i64::MAX);
        (bytes(&self.memory_after) - bytes(&self.memory_before)) / queues
    }
}

/// The figures.
#[derive(Clone, Debug)]
pub struct Report {
    pub(super) options: Options,
    /// One for each backing.
    pub servers: Vec<Idle>,
}

/// A size in KiB for people.
fn kib(bytes: u64) -> String {
    format!("{} KiB", count(bytes / 1024))
}

type Row<'a> = (&'a str, &'a dyn Fn(&Idle) -> String);

impl Report {
    /// The table for people: a column for each server.
    #[must_use]
    pub fn table(&self) -> Table {
        let Options {
            disks,
            queues,
            queue_size,
            ..
        } = &self.options;
        let title =
            format!("One idle server: {disks} disks with {queues} queues of {queue_size} entries");
        let mut columns = vec![String::new()];
        columns.extend(self.servers.iter().map(|idle| idle.backing.to_owned()));
        let mut table = Table::new(&title, &columns);
        let total = |idle: &Idle| procfs::total(&idle.threads);
        let iothreads = |idle: &Idle| {
            let iothreads: Vec<Thread> = idle.iothreads().cloned().collect();
            procfs::total(&iothreads)
        };
        let bytes = |bytes: i64| format!("{bytes} bytes");
        let rows: &[Row<'_>] = &[
            ("watched, seconds", &|idle| {
                format!("{:.2}", idle.watched_ns as f64 / 1e9)
            }),
            ("processor time, us", &|idle| {
                format!("{:.1}", total(idle).cpu_ns as f64 / 1e3)
            }),
            ("voluntary switches (wake-ups)", &|idle| {
                count(total(idle).voluntary_switches)
            }),
            ("... of iothreads", &|idle| {
                count(iothreads(idle).voluntary_switches)
            }),
            ("involuntary switches", &|idle| {
                count(total(idle).involuntary_switches)
            }),
            ("threads", &|idle| count(idle.threads.len() as u64)),
            ("... iothreads", &|idle| {
                count(idle.iothreads().count() as u64)
            }),
            ("descriptors, connected", &|idle| {
                count(idle.descriptors.0 as u64)
            }),
            ("descriptors, queues started", &|idle| {
                count(idle.descriptors.1 as u64)
            }),
            ("private, connected", &|idle| {
                kib(idle.memory_before.private_bytes)
            }),
            ("private, queues started", &|idle| {
                kib(idle.memory_after.private_bytes)
            }),
            ("Pss, queues started", &|idle| {
                kib(idle.memory_after.proportional_bytes)
            }),
            ("Rss, queues started", &|idle| {
                kib(idle.memory_after.resident_bytes)
            }),
            ("virtual, connected", &|idle| {
                kib(idle.memory_before.virtual_bytes)
            }),
            ("virtual, queues started", &|idle| {
                kib(idle.memory_after.virtual_bytes)
            }),
            ("private per queue", &|idle| {
                bytes(idle.bytes_per_queue(|memory| memory.private_bytes))
            }),
            ("Rss per queue", &|idle| {
                bytes(idle.bytes_per_queue(|memory| memory.resident_bytes))
            }),
            ("virtual per queue", &|idle| {
                bytes(idle.bytes_per_queue(|memory| memory.virtual_bytes))
            }),
            ("starting a queue, us", &|idle| {
                format!("{:.0}", idle.start_ns as f64 / 1e3 / idle.queues as f64)
            }),
        ];
        for (name, figure) in rows {
            let mut row = vec![(*name).to_owned()];
            row.extend(self.servers.iter().map(figure));
            table.row(row);
        }
        table.note("Rss and virtual contain the guests' memory, which is shared: one page per queue of 128 entries");
        for idle in &self.servers {
            for thread in &idle.threads {
                if thread.usage.voluntary_switches > 0 {
                    let wake_ups = thread.usage.voluntary_switches;
                    table.note(format!(
                        "{}: thread '{}' woke up {wake_ups} times",
                        idle.backing, thread.name
                    ));
                }
            }
        }
        table
    }

    /// For scripts.
    #[must_use]
    pub fn json(&self) -> Value {
        let memory = |memory: &Memory| {
            json!({
                "virtual_bytes": memory.virtual_bytes,
                "resident_bytes": memory.resident_bytes,
                "proportional_bytes": memory.proportional_bytes,
                "private_bytes": memory.private_bytes,
            })
        };
        let thread = |thread: &Thread| {
            json!({
                "id": thread.id,
                "name": thread.name,
                "cpu_ns": thread.usage.cpu_ns,
                "voluntary_switches": thread.usage.voluntary_switches,
                "involuntary_switches": thread.usage.involuntary_switches,
            })
        };
        let server = |idle: &Idle| {
            json!({
                "backing": idle.backing,
                "queues": idle.queues,
                "start_ns": idle.start_ns,
                "watched_ns": idle.watched_ns,
                "threads": idle.threads.iter().map(thread).collect::<Vec<_>>(),
                "memory_connected": memory(&idle.memory_before),
                "memory_started": memory(&idle.memory_after),
                "private_bytes_per_queue": idle.bytes_per_queue(|memory| memory.private_bytes),
                "virtual_bytes_per_queue": idle.bytes_per_queue(|memory| memory.virtual_bytes),
                "descriptors_connected": idle.descriptors.0,
                "descriptors_started": idle.descriptors.1,
            })
        };
        json!({ "idle": self.servers.iter().map(server).collect::<Vec<_>>() })
    }
}
