//! `blockplane top`: its figures are what guests did; and how it looks and ends on a terminal.

use std::fs;
use std::io::{PipeWriter, Write, pipe};
use std::ops::RangeInclusive;
use std::process::Stdio;
use std::thread::{self, sleep};
use std::time::Duration;

use blockplane::operator::client::Client as Monitor;
use blockplane::operator::interval_load::DaemonLoad;
use blockplane::operator::sample::Sample;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use test_support::deadline::eventually_ok;
use test_support::report::installed;

use crate::guest::{Guest, IN, OUT};
use crate::process::{Folder, Process, STUCK_AFTER, program, words};
use crate::start;

const DISK: &str = "--object iothread,id=io0 --blockdev null-co,node-name=n,size=16M \
    --export vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path=e.sock,num-queues=2,writable=on,iothread=io0";

#[test]
fn samples_count_every_request_once() {
    let folder = Folder::new();
    let (program, _client) = start(&folder, DISK);
    let mut guest = Guest::connect(&folder.join("e.sock"), 2);
    guest.request(0, IN, 0, 0);
    let mut monitor = Monitor::connect(&folder.join("qmp"), Some(STUCK_AFTER)).unwrap();
    let mut look = || Sample::take(&mut monitor).unwrap();
    let before = look();
    for block in 0..150 {
        guest.request(0, IN, block, 0);
        guest.request(1, OUT, block, 1);
        guest.request(1, IN, block, 0);
    }
    let figures = DaemonLoad::between(&before, &look()).to_json();
    let export = &figures["exports"][0];
    let of = |key: &str| export[key].as_u64().unwrap();
    assert_eq!((of("reads"), of("writes"), of("failed")), (300, 150, 0));
    assert_eq!(of("read_bytes"), 2 * of("write_bytes"));
    let counted = export["iops"].as_f64().unwrap() * figures["seconds"].as_f64().unwrap();
    assert!((counted - 450.0).abs() < 0.001, "{figures}");
    assert_eq!(export["queues"][1]["writes"], 150);
    assert_eq!(export["mean_batch"], 1.0);
    assert!(export["latency_p50_us"].as_f64() <= export["latency_p99_us"].as_f64());
    assert!(figures["iothreads"][0]["cpu_percent"].as_f64().unwrap() > 0.0);
    program.stop();
}

#[test]
fn top_agrees_with_the_load_generator() {
    let folder = Folder::new();
    let (program, _client) = start(&folder, DISK);
    let mut monitor = Monitor::connect(&folder.join("qmp"), Some(STUCK_AFTER)).unwrap();
    let mut look = || {
        let asked = monotonic_ns();
        let sample = Sample::take(&mut monitor).unwrap();
        Look {
            asked,
            sample,
            answered: monotonic_ns(),
        }
    };
    let begin = look();
    let mut looks = Vec::new();
    let run = "run e.sock --queues 2 --depth 4 --client blocking --time 4s \
        --repetitions 1 --status-interval 10ms --json";
    let ended = thread::scope(|scope| {
        let load = scope.spawn(|| folder.measure(run));
        while !load.is_finished() {
            looks.push(look());
            sleep(Duration::from_millis(500));
        }
        load.join().unwrap()
    });
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    let generated = &report["run"]["each"][0];

    // Not one more, not one less: also those before and after the part that the generator reports.
    let all = DaemonLoad::between(&begin.sample, &look().sample).to_json();
    assert_eq!(all["exports"][0]["reads"], generated["requests_in_all"]);
    assert!(generated["requests_in_all"].as_u64() > generated["requests"].as_u64());

    // What is shown of intervals within the run, and what the generator counted in them.
    let course = Course::of(&generated["threads"][0]["course"]);
    let mut compared = 0;
    for (index, from) in looks.iter().enumerate() {
        for to in &looks[index + 1..] {
            if course.covers(from, to) {
                let shown = DaemonLoad::between(&from.sample, &to.sample).to_json();
                let seconds = shown["seconds"].as_f64().unwrap();
                let taken = (to.asked - from.answered) / 1e9..=(to.answered - from.asked) / 1e9;
                assert!(taken.contains(&seconds), "{seconds} s of {taken:?}");
                let requests = shown["exports"][0]["iops"].as_f64().unwrap() * seconds;
                let possible = course.possible(from, to);
                assert!(possible.contains(&requests), "{requests} of {possible:?}");
                compared += 1;
            }
        }
    }
    assert!(
        compared >= 3,
        "{compared} intervals in {} looks",
        looks.len()
    );
    program.stop();
}

/// A sample of the daemon, taken at some time between the two, in nanoseconds.
struct Look {
    asked: f64,
    sample: Sample,
    answered: f64,
}

/// The clock of the generator's marks.
fn monotonic_ns() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

/// Requests that the generator had seen complete, by time in nanoseconds.
struct Course(Vec<(f64, f64)>);

impl Course {
    fn of(marks: &Value) -> Self {
        let marks = marks.as_array().unwrap().iter();
        let mark = |mark: &Value| (mark[0].as_f64().unwrap(), mark[1].as_f64().unwrap());
        Course(marks.map(mark).collect())
    }

    fn covers(&self, from: &Look, to: &Look) -> bool {
        let (first, last) = (self.0.first().unwrap(), self.0.last().unwrap());
        first.0 <= from.asked && to.answered < last.0
    }

    /// How many the daemon may have counted between two looks, whenever in each of them it did.
    fn possible(&self, from: &Look, to: &Look) -> RangeInclusive<f64> {
        /// Two queues of depth 4: what the daemon has counted and the generator not yet, or the reverse.
        const IN_FLIGHT: f64 = 8.0;
        let least = self.before(to.asked) - self.after(from.answered);
        let most = self.after(to.answered) - self.before(from.asked);
        least - IN_FLIGHT..=most + IN_FLIGHT
    }

    /// Completed at the last mark that is not after a time.
    fn before(&self, ns: f64) -> f64 {
        self.0[self.0.partition_point(|mark| mark.0 <= ns) - 1].1
    }

    /// Completed at the first mark after a time.
    fn after(&self, ns: f64) -> f64 {
        self.0[self.0.partition_point(|mark| mark.0 <= ns)].1
    }
}

#[test]
fn top_once_prints_a_table_json_or_a_picture() {
    let folder = Folder::new();
    let (program, _client) = start(&folder, DISK);
    let _guest = Guest::connect(&folder.join("e.sock"), 2);
    let table = folder.run("top qmp --once --interval 100ms --queues --svg top.svg");
    let lines: Vec<&str> = table.assert_success().lines().collect();
    assert!(lines[0].contains("1 export, 1 connected"), "{table:?}");
    assert!(lines[3].starts_with("e  "), "{table:?}");
    assert!(lines[4].starts_with("  0 io0"), "{table:?}");
    let picture = fs::read_to_string(folder.join("top.svg")).unwrap();
    assert!(
        picture.starts_with("<svg ") && picture.contains(">IOTHREAD "),
        "{picture}"
    );
    let json = folder.run("top qmp --once --interval 100ms --json");
    let json: Value = serde_json::from_str(json.assert_success()).unwrap();
    assert_eq!(json["exports"][0]["export"], "e");
    let queues = json["exports"][0]["queues"].as_array().unwrap();
    assert_eq!(queues.len(), 2, "those that the guest has started");
    program.stop();
}

/// Whether there are the programs that a terminal takes; reports that the calling test does not run if one is missing.
fn has_terminal() -> bool {
    ["script", "stty"].into_iter().all(installed)
}

/// A shell's line on a terminal of 24 rows and 80 columns, in which `top` stands for the command; and its keys.
fn on_a_terminal(folder: &Folder, line: &str) -> (Process, PipeWriter) {
    let top = format!(
        "{} top qmp --interval 100ms --timeout 1m",
        program().display()
    );
    let line = format!("stty rows 24 cols 80; {}", line.replace("top", &top));
    let (keys, typist) = pipe().unwrap();
    let mut command = std::process::Command::new("script");
    command
        .args(["-q", "-c", &line, "typescript"])
        .current_dir(folder.path())
        .stdin(Stdio::from(keys));
    (Process::spawn(command), typist)
}

/// What it wrote, once that contains `what`.
#[track_caller]
fn shown(process: &Process, what: &str) -> String {
    eventually_ok(format_args!("{what:?} is shown"), || {
        let text = process.stdout();
        if text.contains(what) {
            Ok(text)
        } else {
            Err(text)
        }
    })
}

#[test]
fn top_restores_the_terminal_when_the_daemon_ends() {
    if !has_terminal() {
        return;
    }
    let folder = Folder::new();
    let (program, _client) = start(&folder, DISK);
    let (top, _keys) = on_a_terminal(&folder, "TERM=xterm top; echo status $?; stty -a");
    shown(&top, "space pause");
    program.stop();
    let text = shown(&top, "status 1");
    assert!(text.contains("closed the connection"), "{text:?}");
    let entered = text.find("\x1b[?1049h").unwrap();
    let left = text.find("\x1b[?25h\x1b[?1049l").unwrap();
    assert!(entered < left && left < text.find("status 1").unwrap());
    let text = shown(&top, "echoke");
    assert!(
        text.contains(" icanon ") && text.contains(" echo "),
        "{text:?}"
    );
    top.ended();
}

#[test]
fn top_handles_keys_while_the_daemon_hangs() {
    if !has_terminal() {
        return;
    }
    let folder = Folder::new();
    let (program, _client) = start(&folder, DISK);
    let (top, mut keys) = on_a_terminal(&folder, "TERM=xterm top; echo status $?");
    shown(&top, "space pause");
    program.signal(Signal::STOP);
    shown(&top, "NO ANSWER FOR");
    keys.write_all(b" ").unwrap();
    shown(&top, "PAUSED");
    keys.write_all(b"q").unwrap();
    shown(&top, "status 0");
    program.signal(Signal::CONT);
    top.ended();
    program.stop();
}

#[test]
fn top_restores_the_terminal_while_suspended() {
    if !has_terminal() {
        return;
    }
    let folder = Folder::new();
    let (program, _client) = start(&folder, DISK);
    // With jobs, as shells have them for people.
    let line = "set -m; TERM=xterm top; echo suspended; stty -a; fg; echo status $?";
    let (shell, mut keys) = on_a_terminal(&folder, line);
    shown(&shell, "space pause");
    keys.write_all(b"\x1a").unwrap();
    let text = shown(&shell, "suspended");
    let screens = |text: &str, change: &str| text.matches(change).count();
    assert_eq!(screens(&text, "\x1b[?1049l"), 1, "{text:?}");
    let text = shown(&shell, "echoke");
    assert!(
        text.contains(" icanon ") && text.contains(" echo "),
        "{text:?}"
    );
    eventually_ok("another screen", || {
        let text = shell.stdout();
        let shown = screens(&text, "space pause") >= 2;
        shown.then_some(()).ok_or(text)
    });
    keys.write_all(b"q").unwrap();
    let text = shown(&shell, "status 0");
    assert_eq!(screens(&text, "\x1b[?1049h"), 2, "{text:?}");
    assert_eq!(screens(&text, "\x1b[?1049l"), 2, "{text:?}");
    shell.ended();
    program.stop();
}

#[test]
fn top_restores_the_terminal_on_sigquit() {
    if !has_terminal() {
        return;
    }
    let folder = Folder::new();
    let (program, _client) = start(&folder, DISK);
    let line = "sh -c 'echo $$ > pid; TERM=xterm exec top'; echo status $?; stty -a";
    let (shell, _keys) = on_a_terminal(&folder, line);
    shown(&shell, "space pause");
    let pid = fs::read_to_string(folder.join("pid")).unwrap();
    let pid = Pid::from_raw(pid.trim().parse().unwrap());
    kill_process(pid.unwrap(), Signal::QUIT).unwrap();
    let text = shown(&shell, "echoke");
    assert!(
        text.contains(" icanon ") && text.contains("\x1b[?1049l"),
        "{text:?}"
    );
    shell.ended();
    program.stop();
}

#[test]
fn top_reports_errors_like_other_commands() {
    let folder = Folder::new();
    for (line, expected) in [
        ("top qmp --nonsense", "blockplane: top: unexpected argument"),
        ("top qmp", "blockplane: top: there is no socket qmp"),
        ("info qmp some", "blockplane: info: invalid value 'some'"),
        (
            "bench run e.sock",
            "blockplane: bench: benchmarks are in the program blockplane-bench; write 'blockplane-bench run e.sock'\n",
        ),
    ] {
        let ended = folder.run(line);
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.stderr.starts_with(expected), "{ended:?}");
    }
}

#[test]
fn top_prints_plain_blocks_without_a_capable_terminal() {
    if !has_terminal() {
        return;
    }
    let folder = Folder::new();
    let (program, _client) = start(&folder, DISK);
    let (dumb, _keys) = on_a_terminal(&folder, "TERM=dumb top; echo status $?");
    shown(&dumb, "IOTHREAD");
    let piped = Process::spawn(folder.command(words("top qmp --interval 100ms")));
    shown(&piped, "IOTHREAD");
    piped.signal(Signal::INT);
    let ended = piped.ended();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    program.stop();
    let text = shown(&dumb, "status 1");
    assert!(!text.contains('\x1b'), "{text:?}");
    dumb.ended();
}

#[test]
fn top_refuses_a_monitor_without_statistics() {
    let folder = Folder::new();
    let (program, _client) = start(&folder, DISK);
    let wrong = folder.run("top e.sock");
    assert_eq!(wrong.code, Some(1));
    assert!(wrong.stderr.contains("vhost-user socket"), "{wrong:?}");
    program.stop();
}

#[test]
fn serve_with_monitor_can_be_watched() {
    let folder = Folder::new();
    let line = "serve null-co: --size 16M --socket e.sock --monitor qmp";
    let program = Process::spawn(folder.command(words(line)));
    let announced = shown(&program, "blockplane top");
    assert!(announced.contains(folder.join("qmp").to_str().unwrap()));
    let table = folder.run("top qmp --once --interval 100ms");
    assert!(table.assert_success().contains("disk  "), "{table:?}");
    program.stop();
}
