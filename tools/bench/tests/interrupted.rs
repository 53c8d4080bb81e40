//! Ctrl-C, as the real program hears it: each of its long loops comes to an end.
#![allow(clippy::unwrap_used, missing_docs)] // a test panics on what it did not expect

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Nothing takes so long; a loop that does not listen would take years.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn first_signal_ends_a_running_measurement() {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_blockplane-bench"))
        .args(["handlers", "--only", "loop", "--registered", "10"])
        .args(["--loop-repetitions", "4000000000"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(bench.stderr.take().unwrap());
    let mut begun = String::new();
    stderr.read_line(&mut begun).unwrap();
    assert!(begun.starts_with("handlers"), "{begun}");
    let pid = Pid::from_raw(i32::try_from(bench.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();

    let (end, ended) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut rest = String::new();
        stderr.read_to_string(&mut rest).unwrap();
        // The receiver may have given up after a timeout.
        let _ = end.send(rest);
    });
    let rest = ended.recv_timeout(PATIENCE);
    // Has ended already, or never would.
    let _ = bench.kill();
    let status = bench.wait().unwrap();
    reader.join().unwrap();
    assert_eq!(rest.as_deref(), Ok("blockplane-bench: interrupted\n"));
    assert_eq!(status.code(), Some(1));
}
