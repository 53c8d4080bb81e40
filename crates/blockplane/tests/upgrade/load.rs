//! Tests of verified load across live upgrades that succeed and that fail.

use std::path::Path;

use serde_json::json;
use test_support::deadline::eventually_ok;
use test_support::lock_contender::LockContender;
use test_support::upgraded_daemon::{
    Daemon, HELLO_MESSAGE, script_that_sends, script_that_sends_in_two_parts,
};

use crate::process::program;

const UPGRADES: usize = 20;
const SECONDS: u32 = 5;

/// `response-timeout` of upgrades to a script: it is started and sends its first message by then, also on a busy machine.
const RESPONSE_TIMEOUT_SECONDS: u32 = 3;

/// What a program says until the old one leaves everything to it.
const TAKES_OVER: [&str; 3] = [HELLO_MESSAGE, r#"{"prepared":true}"#, r#"{"started":true}"#];

/// A script that says this, hears nothing, and never ends. Its number is in a file.
fn hangs_after(said: &[&str]) -> String {
    format!(
        "echo $$ > new-pid; {}exec sleep 1000",
        script_that_sends(said)
    )
}

/// Upgrades a daemon again and again under a verified load.
fn assert_upgrades_go_unnoticed(queues: u16, packed: &str, rest: &str) {
    let export = format!("num-queues={queues},packed={packed}");
    let mut daemon = Daemon::with_image(&export, rest);
    let load = daemon.load(queues, SECONDS);
    for _ in 0..UPGRADES {
        daemon.upgrade();
    }
    load.ended_well();
    daemon.stop();
}

#[test]
#[ignore = "full run only"]
fn upgrade_under_load_of_one_split_queue_loses_nothing() {
    assert_upgrades_go_unnoticed(1, "off", "");
}

#[test]
fn upgrade_under_load_of_four_split_queues_loses_nothing() {
    assert_upgrades_go_unnoticed(4, "off", "--sandbox off");
}

#[test]
fn upgrade_under_load_of_one_packed_queue_loses_nothing() {
    assert_upgrades_go_unnoticed(1, "on", "--sandbox strict");
}

#[test]
#[ignore = "full run only"]
fn upgrade_under_load_of_four_packed_queues_loses_nothing() {
    assert_upgrades_go_unnoticed(4, "on", "");
}

#[test]
fn program_that_cannot_take_over_leaves_the_old_process_running() {
    let mut daemon = Daemon::with_image("num-queues=4", "");
    let load = daemon.load(4, SECONDS);
    let of_this_build = program().display();
    for _ in 0..2 {
        for (script, words) in [
            (None, ["cannot start", "No such file"]),
            (
                Some("exit 7"),
                ["exited before it took over", "(exit status: 7)"],
            ),
            // An option that it does not know.
            (
                Some(&*format!("exec {of_this_build} --no-such-option")),
                ["cannot take over", "no-such-option"],
            ),
        ] {
            match script {
                Some(script) => daemon.replace_program(script),
                None => daemon.remove_program(),
            }
            let said = daemon.fails_to_upgrade();
            assert!(words.iter().all(|word| said.contains(word)), "{said}");
        }
    }
    daemon.replace_program("exec sleep 1000");
    let said = daemon.fails_to_upgrade_within(1);
    assert!(said.contains("did not respond for 1 s"), "{said}");
    daemon.restore_program();
    daemon.upgrade();
    load.ended_well();
    daemon.stop();
}

/// Also at the step where the old one's queues have stopped, and have to go on. The new process has the image as well, and ends with
/// it: its lock stays.
#[test]
fn failure_of_the_new_program_at_any_step_leaves_the_old_one_running() {
    let mut daemon = Daemon::with_image("num-queues=4", "");
    let contender = LockContender::for_image(&daemon.folder.join("disk.img"));
    let load = daemon.load(4, SECONDS);
    let mut reasons = daemon.fail_at_each_step(2, || contender.has_tried_again());
    reasons.dedup();
    assert!(reasons.len() > 2, "it failed at several steps: {reasons:?}");
    load.ended_well();
    contender.has_tried_again();
    daemon.stop();
}

#[test]
fn new_program_that_hangs_before_the_handover_fails_the_upgrade() {
    // What is said of them is more than a socket holds.
    let nodes: String = (0..3000)
        .map(|node| format!(" --blockdev null-co,node-name=n{node},size=1M"))
        .collect();
    let mut daemon = Daemon::with_image("num-queues=1", &nodes);
    daemon.replace_program(&hangs_after(&[HELLO_MESSAGE]));
    let said = daemon.fails_to_upgrade_within(RESPONSE_TIMEOUT_SECONDS);
    let expected = "in the middle of a message for 3 s";
    assert!(said.contains(expected), "{said}");
    daemon.load(1, 1).ended_well();
    daemon.stop();
}

/// What a client allows for its start is enough for the rest: guests stand still.
#[test]
fn new_program_that_hangs_once_queues_have_stopped_fails_the_upgrade_as_soon() {
    let mut daemon = Daemon::with_image("num-queues=1", "");
    daemon.replace_program(&hangs_after(&TAKES_OVER[..2]));
    let said = daemon.fails_to_upgrade_within(RESPONSE_TIMEOUT_SECONDS);
    assert!(said.contains("did not respond for 3 s"), "{said}");
    daemon.load(1, 1).ended_well();
    daemon.stop();
}

/// The state of the new process is unknown, so its front-ends must be disconnected.
#[test]
fn new_program_that_hangs_after_the_handover_ends_both_processes() {
    let mut daemon = Daemon::with_image("num-queues=1", "");
    daemon.replace_program(&hangs_after(&TAKES_OVER));
    let mut client = daemon.client();
    let timeout = json!({"response-timeout": RESPONSE_TIMEOUT_SECONDS});
    client.send("upgrade", &timeout);
    let ended = daemon.ended();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("hung"), "{ended:?}");
    let new = std::fs::read_to_string(daemon.folder.join("new-pid")).unwrap();
    let of_new = Path::new("/proc").join(new.trim());
    assert!(!of_new.exists(), "nothing of it is left");
}

/// `response-timeout` ends with *go*, since there is no way back then.
#[test]
fn new_program_that_is_slow_after_the_handover_has_taken_over() {
    let mut daemon = Daemon::with_image("num-queues=1", "");
    // Two pauses, before the last message and in the middle of it. Each is longer than `response-timeout`, which has no effect after *go*.
    // They are three seconds longer, since the first one begins before the old process has sent *go*.
    let pause = format!("sleep {}; ", RESPONSE_TIMEOUT_SECONDS + 3);
    let begin = script_that_sends(&TAKES_OVER);
    let end = script_that_sends_in_two_parts(r#"{"gone":1}"#, &pause);
    daemon.replace_program(&format!("{begin}{pause}{end}"));
    let mut client = daemon.client();
    let timeout = json!({"response-timeout": RESPONSE_TIMEOUT_SECONDS});
    client.send("upgrade", &timeout);
    let ended = daemon.ended();
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn quit_during_an_upgrade_ends_the_new_program_that_has_not_responded() {
    let mut daemon = Daemon::with_image("num-queues=1", "");
    daemon.replace_program(&hangs_after(&[]));
    let mut upgrading = daemon.client();
    upgrading.send("upgrade", &json!({}));
    let path = daemon.folder.join("new-pid");
    let new = eventually_ok("the new program runs", || {
        let pid = std::fs::read_to_string(&path).unwrap_or_default();
        pid.ends_with('\n').then_some(pid).ok_or("no number")
    });
    let of_new = Path::new("/proc").join(new.trim());
    assert!(of_new.exists());
    daemon.client().done("quit", json!({}));
    let ended = daemon.ended();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    eventually_ok("nothing of the new program is left", || {
        if of_new.exists() { Err(&new) } else { Ok(()) }
    });
}
