//! A limit of time: what hangs fails with its output so far, before CI ends the run without any.
//!
//! A process stays in the process group of the terminal, so that Ctrl-C ends it as well; timeout(1) would begin another one.

use std::io;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Waits for a process for so long. `None`: it has not ended by then, and was killed with all processes that it has started.
pub(super) fn wait_within(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let end = Instant::now() + limit;
    while Instant::now() < end {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    for id in with_descendants(child.id()) {
        if let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) {
            // One that has just ended needs no signal.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    child.wait()?;
    Ok(None)
}

/// A process and those that it has started, also through others: proc(5), `/proc/pid/task/tid/children`.
fn with_descendants(id: u32) -> Vec<u32> {
    let mut found = vec![id];
    let mut looked_at = 0;
    while let Some(&id) = found.get(looked_at) {
        looked_at += 1;
        let threads = std::fs::read_dir(format!("/proc/{id}/task"));
        for thread in threads.into_iter().flatten().flatten() {
            let children = std::fs::read_to_string(thread.path().join("children"));
            let children = children.unwrap_or_default();
            let ids = children.split_whitespace();
            found.extend(ids.filter_map(|id| id.parse::<u32>().ok()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use test_support::deadline::Deadline;

    use super::*;

    #[test]
    fn a_process_that_does_not_end_is_killed_with_what_it_started() {
        let mut ends = Command::new("/bin/false").spawn().unwrap();
        let status = wait_within(&mut ends, Duration::from_secs(60)).unwrap();
        assert_eq!(status.and_then(|status| status.code()), Some(1));

        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "sh -c 'echo $$; exec sleep 1000' & wait"]);
        let mut hangs = shell.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let output = hangs.stdout.take().unwrap();
        io::BufRead::read_line(&mut io::BufReader::new(output), &mut line).unwrap();
        let status = wait_within(&mut hangs, Duration::ZERO).unwrap();
        assert_eq!(status, None);
        let sleep = format!("/proc/{}/cmdline", line.trim());
        let deadline = Deadline::default();
        // Once it is killed it has no command line.
        while std::fs::read(&sleep).is_ok_and(|text| !text.is_empty()) {
            deadline.check("the started process is killed");
        }
    }
}
