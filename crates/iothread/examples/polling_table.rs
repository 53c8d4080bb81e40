//! Prints what ways to poll cost and spare, for guests of several kinds on a simulated clock: the
//! table in docs/architecture.md.
//!
//! ```text
//! cargo run --release -p iothread --example polling_table
//! ```

#![allow(clippy::print_stdout, reason = "printing is what it is for")]

#[path = "../tests/iothread/polling/simulation.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod simulation;

use iothread::event_loop::PollSettings;
use simulation::{Policy, Script, Simulation, gaps, guest};

/// A kind of guest, and what makes one.
type Load = (&'static str, fn() -> Script);

const EVENTS: u64 = 20_000;

fn main() {
    let policies = [
        Policy::Never,
        Policy::Fixed(32_000),
        Policy::Fixed(200_000),
        Policy::Learnt(PollSettings::default()),
    ];
    let scripts: [Load; 7] = [
        ("depth 1, 60 us disk", || guest(5_000, 60_000)),
        ("depth 1, 100 us disk", || guest(10_000, 100_000)),
        ("the same, the guest sleeps", || guest(40_000, 60_000)),
        ("a request per ms, 60 us disk", || guest(1_000_000, 60_000)),
        ("a request per s, 60 us disk", || {
            guest(1_000_000_000, 60_000)
        }),
        ("bursts of 20 each 10 us, 50 ms apart", || {
            gaps(|event| if event % 20 == 0 { 50_000_000 } else { 10_000 })
        }),
        ("half 20 us, half 1 s", || {
            gaps(|event| {
                if event * 7 % 10 < 5 {
                    20_000
                } else {
                    1_000_000_000
                }
            })
        }),
    ];
    println!("| load | never | fixed 32 us | fixed 200 us | learnt |\n|---|---|---|---|---|");
    for (name, script) in scripts {
        let cells = policies.map(|policy| {
            let seen = Simulation::new(policy, vec![script()]).serve(EVENTS);
            format!(
                "{:.1} / {:.1}",
                micros(seen.late_ns),
                micros(seen.polled_ns)
            )
        });
        println!("| {name} | {} |", cells.join(" | "));
    }
}

/// Per event.
#[allow(
    clippy::cast_precision_loss,
    reason = "a tenth of a microsecond is shown"
)]
fn micros(total_ns: u64) -> f64 {
    total_ns as f64 / EVENTS as f64 / 1_000.0
}
