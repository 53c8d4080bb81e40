//! `blockplane top`: its figures are what guests did; and how it looks and ends on a terminal.

use std::fs;
use std::io::{PipeWriter, Write, pipe};
use std::process::Stdio;
use std::time::Instant;

use blockplane::operator::client::Client as Monitor;
use blockplane::operator::interval_load::DaemonLoad;
use blockplane::operator::sample::Sample;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use test_support::deadline::eventually_ok;
use test_support::report::installed;

use crate::process::{Folder, Process, STUCK_AFTER, program, words};
use crate::request_driver::{IN, OUT, RequestDriver};
use crate::start_with_disk;

const DISK: &str = "--object iothread,id=io0 --blockdev null-co,node-name=n,size=16M \
    --export vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path=e.sock,num-queues=2,writable=on,iothread=io0";

#[test]
fn samples_count_every_request_once() {
    let (folder, program, _client) = start_with_disk(DISK);
    let mut guest = RequestDriver::connect(&folder.join("e.sock"), 2);
    guest.request(0, IN, 0, 0);
    let mut monitor = Monitor::connect(&folder.join("qmp"), Some(STUCK_AFTER)).unwrap();
    let mut look = || {
        let asked = Instant::now();
        let sample = Sample::take(&mut monitor).unwrap();
        (asked, sample, Instant::now())
    };
    let (before_asked, before, before_answered) = look();
    for block in 0..150 {
        guest.request(0, IN, block, 0);
        guest.request(1, OUT, block, 1);
        guest.request(1, IN, block, 0);
    }
    let (asked, sample, answered) = look();
    let figures = DaemonLoad::between(&before, &sample).to_json();
    let seconds = figures["seconds"].as_f64().unwrap();
    let least = (asked - before_answered).as_secs_f64();
    let most = (answered - before_asked).as_secs_f64();
    assert!(
        (least..=most).contains(&seconds),
        "{least} to {most} s: {seconds}"
    );
    let export = &figures["exports"][0];
    let of = |key: &str| export[key].as_u64().unwrap();
    assert_eq!((of("reads"), of("writes"), of("failed")), (300, 150, 0));
    assert_eq!(of("read_bytes"), 2 * of("write_bytes"));
    let counted = export["iops"].as_f64().unwrap() * seconds;
    assert!((counted - 450.0).abs() < 0.001, "{figures}");
    assert_eq!(export["queues"][1]["writes"], 150);
    assert_eq!(export["mean_batch"], 1.0);
    assert!(export["latency_p50_us"].as_f64() <= export["latency_p99_us"].as_f64());
    assert!(figures["iothreads"][0]["cpu_percent"].as_f64().unwrap() > 0.0);
    program.stop();
}

#[test]
fn top_once_prints_a_table_json_a_picture_or_an_error() {
    let (folder, program, _client) = start_with_disk(DISK);
    let _guest = RequestDriver::connect(&folder.join("e.sock"), 2);
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
    for (line, expected) in [
        ("top qmp --nonsense", "blockplane: top: unexpected argument"),
        ("top nowhere", "blockplane: top: there is no socket nowhere"),
        ("top e.sock", "vhost-user socket"),
        ("info qmp some", "blockplane: info: invalid value 'some'"),
        (
            "bench run e.sock",
            "blockplane: bench: benchmarks are in the program blockplane-bench; write 'blockplane-bench run e.sock'\n",
        ),
    ] {
        let ended = folder.run(line);
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.stderr.contains(expected), "{ended:?}");
    }
    program.stop();
}

/// The program and a shell's line on a terminal of 24 rows and 80 columns, in which `top` stands for the command; and its keys.
/// `None`, and a report: programs that a terminal takes are missing.
fn on_a_terminal(line: &str) -> Option<(Folder, Process, Process, PipeWriter)> {
    if !["script", "stty"].into_iter().all(installed) {
        return None;
    }
    let (folder, daemon, _client) = start_with_disk(DISK);
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
    Some((folder, daemon, Process::spawn(command), typist))
}

/// What it wrote, once that contains `what` so often.
#[track_caller]
fn shown_times(process: &Process, what: &str, times: usize) -> String {
    eventually_ok(format_args!("{what:?} is shown"), || {
        let text = process.stdout();
        match text.matches(what).count() >= times {
            true => Ok(text),
            false => Err(text),
        }
    })
}

#[track_caller]
fn shown(process: &Process, what: &str) -> String {
    shown_times(process, what, 1)
}

const ENTERED: &str = "\x1b[?1049h";
const LEFT: &str = "\x1b[?1049l";

/// What was shown when `stty -a` has printed, at its end, that lines are edited and shown again.
#[track_caller]
fn restored(process: &Process) -> String {
    let text = shown(process, "echoke");
    let is_restored = text.contains(" icanon ") && text.contains(" echo ");
    assert!(is_restored && text.contains(LEFT), "{text:?}");
    text
}

#[test]
fn top_restores_the_terminal_when_the_daemon_or_it_itself_ends() {
    for by_sigquit in [false, true] {
        let line = "sh -c 'echo $$ > pid; TERM=xterm exec top'; echo status $?; stty -a";
        let Some((folder, program, shell, _keys)) = on_a_terminal(line) else {
            return;
        };
        shown(&shell, "space pause");
        if by_sigquit {
            let pid = fs::read_to_string(folder.join("pid")).unwrap();
            let pid = Pid::from_raw(pid.trim().parse().unwrap());
            kill_process(pid.unwrap(), Signal::QUIT).unwrap();
        } else {
            program.signal(Signal::TERM);
        }
        let text = restored(&shell);
        let at = |what: &str| text.find(what).unwrap();
        assert!(at(ENTERED) < at(LEFT) && at(LEFT) < at("status "));
        let why = text.contains("\x1b[?25h\x1b[?1049l")
            && text.contains("closed the connection")
            && text.contains("status 1");
        assert!(why || by_sigquit, "{text:?}");
        shell.ended();
    }
}

#[test]
fn top_handles_keys_while_the_daemon_hangs() {
    let line = "TERM=xterm top; echo status $?";
    let Some((_folder, program, top, mut keys)) = on_a_terminal(line) else {
        return;
    };
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
    // With jobs, as shells have them for people.
    let line = "set -m; TERM=xterm top; echo suspended; stty -a; fg; echo status $?";
    let Some((_folder, program, shell, mut keys)) = on_a_terminal(line) else {
        return;
    };
    shown(&shell, "space pause");
    keys.write_all(b"\x1a").unwrap();
    let text = shown(&shell, "suspended");
    assert_eq!(text.matches(LEFT).count(), 1, "{text:?}");
    restored(&shell);
    shown_times(&shell, "space pause", 2);
    keys.write_all(b"q").unwrap();
    let text = shown(&shell, "status 0");
    assert_eq!(text.matches(ENTERED).count(), 2, "{text:?}");
    assert_eq!(text.matches(LEFT).count(), 2, "{text:?}");
    shell.ended();
    program.stop();
}

#[test]
fn top_prints_plain_blocks_without_a_capable_terminal() {
    let line = "TERM=dumb top; echo status $?";
    let Some((folder, program, dumb, _keys)) = on_a_terminal(line) else {
        return;
    };
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
