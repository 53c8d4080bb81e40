//! `cargo xtask bench-guest`: what a guest gets from QEMU's own LSI 53C895A, from ours, and from our virtio devices.

use std::error::Error;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use guest::{CELLS, Contest, DISKS};

/// Less than two minutes with the boot of the guest.
const ROUNDS: u16 = 3;
const TIME: Duration = Duration::from_millis(1000);
/// As many as Linux gives the adapter.
const DEPTH: u16 = 16;

/// Over nothing (`null-co`) and over files (`file`), or over one of them; prints a table of each.
pub fn bench_guest(only: Option<&str>) -> ExitCode {
    let built = super::cargo(&[
        "build",
        "--release",
        "--package",
        "blockplane",
        "--package",
        "bench",
    ])
    .args(["--example", "disk_load", "--bin", "blockplane"])
    .status();
    if !built.is_ok_and(|status| status.success()) {
        return ExitCode::FAILURE;
    }
    for behind in ["null-co", "file"] {
        if only.is_some_and(|only| only != behind) {
            continue;
        }
        if let Err(error) = measure(behind) {
            eprintln!("bench-guest: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn measure(behind: &str) -> Result<(), Box<dyn Error>> {
    let release = guest::target_dir().join("release");
    let contest = Contest {
        null: behind == "null-co",
        depth: DEPTH,
        rounds: ROUNDS,
        time: TIME,
    };
    let load = release.join("examples/disk_load");
    let rounds = guest::contest(&release.join("blockplane"), &load, &contest)?;
    let text = table(behind, &rounds);
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

/// Medians of requests per second, and of the ratios to the first disk in the same round, with the least and the largest.
fn table(behind: &str, rounds: &[Vec<[f64; DISKS.len()]>]) -> String {
    let mut text = format!(
        "\n{behind}, {DEPTH} in flight, {} rounds: IOPS, and ratio to {} (least to largest)\n",
        rounds.len(),
        DISKS[0]
    );
    for (index, cell) in CELLS.iter().enumerate() {
        text.push_str(&format!("{:9} {:2}k", cell.pattern, cell.block_bytes >> 10));
        for (disk, name) in DISKS.iter().enumerate() {
            let of = |round: &Vec<[f64; DISKS.len()]>| round[index][disk];
            let rate = middle(rounds.iter().map(of));
            text.push_str(&format!("   {name} {rate:.0}"));
            if disk > 0 {
                let ratios = || {
                    rounds
                        .iter()
                        .map(|round| round[index][disk] / round[index][0])
                };
                let (least, largest) = (
                    ratios().fold(f64::MAX, f64::min),
                    ratios().fold(0.0, f64::max),
                );
                text.push_str(&format!(
                    " = {:.2} ({least:.2}–{largest:.2})",
                    middle(ratios())
                ));
            }
        }
        text.push('\n');
    }
    text
}

/// The median.
fn middle(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
