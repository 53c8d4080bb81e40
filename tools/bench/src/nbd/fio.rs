//! fio with its engine `nbd`, which is a client of libnbd.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::Load;
use crate::error::{Error, Result};
use crate::program::find_program;

/// The program.
pub(super) struct Fio(PathBuf);

/// What it has done.
pub(super) struct Done {
    pub requests: f64,
    pub iops: f64,
    pub p50_us: f64,
    pub p99_us: f64,
}

impl Fio {
    pub fn find() -> Result<Fio> {
        find_program("fio").map(Fio).ok_or_else(|| {
            Error::Unsuitable("fio is not in PATH: install it, with its engine nbd".to_owned())
        })
    }

    /// Puts a load on the server that listens at `socket`.
    pub fn run(&self, load: &Load, socket: &Path) -> Result<Done> {
        let output = Command::new(&self.0)
            .args(["--name=load", "--ioengine=nbd", "--output-format=json"])
            .args(["--group_reporting", "--time_based", "--thread"])
            .arg(format!("--uri=nbd+unix:///?socket={}", socket.display()))
            .arg(format!("--rw={}", load.rw))
            .arg(format!("--bs={}", load.block_bytes))
            .arg(format!("--iodepth={}", load.depth))
            .arg(format!("--numjobs={}", load.connections))
            .arg(format!("--runtime={}ms", load.time.as_millis()))
            .output()
            .map_err(Error::io("start fio"))?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            return Err(Error::Requests(format!(
                "fio failed ({}): {}",
                output.status,
                text.trim()
            )));
        }
        done(&output.stdout)
            .ok_or_else(|| Error::Requests("fio reports no figures of requests".to_owned()))
    }
}

/// Reads its report: both directions together, and the latencies of the one with more requests.
fn done(output: &[u8]) -> Option<Done> {
    // Warnings may come first.
    let start = output.iter().position(|&byte| byte == b'{')?;
    let report: Value = serde_json::from_slice(&output[start..]).ok()?;
    let job = report.get("jobs")?.get(0)?;
    let directions = [job.get("read")?, job.get("write")?];
    let of = |direction: &Value, key: &str| direction.get(key).and_then(Value::as_f64);
    let sum = |key: &str| {
        directions
            .iter()
            .map(|direction| of(direction, key))
            .sum::<Option<f64>>()
    };
    let requests = sum("total_ios").filter(|&requests| requests > 0.0)?;
    let main = match of(directions[0], "total_ios")? >= requests / 2.0 {
        true => directions[0],
        false => directions[1],
    };
    let percentiles = main.get("clat_ns")?.get("percentile")?;
    let us = |percent: &str| Some(percentiles.get(percent)?.as_f64()? / 1e3);
    Some(Done {
        requests,
        iops: sum("iops")?,
        p50_us: us("50.000000")?,
        p99_us: us("99.000000")?,
    })
}
