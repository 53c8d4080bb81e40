//! Command-line options of a load.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::load::{Load, Pattern, Times, Waiting};
use crate::units;

/// What the load is; for whatever is measured.
#[derive(Clone, Debug, clap::Args)]
pub struct LoadOptions {
    /// randread, randwrite, randrw[:READS], read, write or rw[:READS]: fio's names, and the percentage of reads
    #[arg(long, value_name = "PATTERN", default_value = "randread")]
    pub pattern: Pattern,
    /// Bytes of a request, a multiple of 512 up to 1M
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = units::block_bytes)]
    pub bs: u32,
    /// Queues of the disk that are used
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub queues: u16,
    /// Threads of the client, which share the queues [default: one per processor in --client-cpus, else 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub client_threads: Option<u16>,
    /// Use only this much of the disk, from its beginning [default: all]
    #[arg(long, value_name = "SIZE", value_parser = units::bytes, default_value = "0", hide_default_value = true)]
    pub span: u64,
    /// Have the server record what is in flight (INFLIGHT_SHMFD), as QEMU does, so that another one could go on after a crash
    #[arg(long)]
    pub recorded: bool,
    /// How long each measurement is
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = units::time)]
    pub time: Duration,
    /// Load before it that does not count
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = commands::time::parse_duration)]
    pub warm_up: Duration,
    /// How often it is measured
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u32).range(1..))]
    pub repetitions: u32,
    /// Allow patterns that write: what is on the disk is lost
    #[arg(long)]
    pub destroy_data: bool,
}

impl LoadOptions {
    /// How long it is, and how often.
    #[must_use]
    pub fn times(&self) -> Times {
        Times {
            warm_up: self.warm_up,
            time: self.time,
            repetitions: self.repetitions,
        }
    }

    /// The load with `depth` requests in flight per queue, on each of `disks` disks.
    ///
    /// # Errors
    /// [`Error::Unsuitable`] for options that do not go together.
    pub fn load(&self, depth: u16, waiting: Waiting, cpus: &[usize], disks: u16) -> Result<Load> {
        let queues = self.queues.saturating_mul(disks);
        let per_cpu = u16::try_from(cpus.len()).unwrap_or(u16::MAX).max(1);
        let threads = self.client_threads.unwrap_or(per_cpu.min(queues));
        if threads > queues {
            return Err(Error::Unsuitable(format!(
                "--client-threads {threads} is more than --queues {}: a thread without a queue has nothing to do",
                self.queues
            )));
        }
        Ok(Load {
            pattern: self.pattern,
            block_bytes: self.bs,
            queues: self.queues,
            threads,
            cpus: cpus.to_vec(),
            span_bytes: self.span,
            recorded: self.recorded,
            ..Load::random(self.pattern.read_percent, depth, waiting)
        })
    }
}
