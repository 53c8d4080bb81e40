//! Tests of verified load across live upgrades that succeed and that fail.

use std::path::Path;

use serde_json::json;
use test_support::deadline::eventually_ok;

use crate::daemon::Daemon;
use crate::process::Folder;

const UPGRADES: usize = 20;
const SECONDS: u32 = 5;

/// Seconds in which a script is started and says something, also on a busy machine.
const SAYS_HELLO_WITHIN: u32 = 3;

/// What a program says first.
const HELLO: &str = r#"{"hello":"0"}"#;

/// A script that says this to the program that has started it, hears nothing, and never ends. Its number is in a file.
fn hangs_after(said: &[&str]) -> String {
    let mut script = "echo $$ > new-pid; ".to_owned();
    for json in said {
        // Bytes, and no descriptors.
        let head = format!(r"\{:03o}\000\000\000\000\000\000\000", json.len());
        script += &format!(r#"printf '{head}{json}' >&$BLOCKPLANE_TAKE_OVER; "#);
    }
    script + "exec sleep 1000"
}

/// Upgrades a daemon again and again under a verified load.
fn assert_upgrades_go_unnoticed(queues: u16, packed: &str, rest: &str) {
    let export = format!("num-queues={queues},packed={packed}");
    let mut daemon = Daemon::with_image(Folder::new(), &export, rest);
    let load = daemon.load(queues, SECONDS);
    for _ in 0..UPGRADES {
        daemon.upgrade();
    }
    load.ended_well();
    daemon.stop();
}

#[test]
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
fn upgrade_under_load_of_four_packed_queues_loses_nothing() {
    assert_upgrades_go_unnoticed(4, "on", "");
}

#[test]
fn program_that_cannot_take_over_leaves_the_old_process_running() {
    let mut daemon = Daemon::with_image(Folder::new(), "num-queues=4", "");
    let load = daemon.load(4, SECONDS);
    for _ in 0..2 {
        daemon.remove_program();
        let said = daemon.fails_to_upgrade();
        assert!(
            said.contains("cannot start") && said.contains("No such file"),
            "{said}"
        );
        daemon.replace_program("exit 7");
        let said = daemon.fails_to_upgrade();
        assert!(
            said.contains("exited before it took over (exit status: 7)"),
            "{said}"
        );
        // An option that it does not know.
        daemon.replace_program(&format!(
            "exec {} --no-such-option",
            env!("CARGO_BIN_EXE_blockplane")
        ));
        let said = daemon.fails_to_upgrade();
        assert!(
            said.contains("cannot take over") && said.contains("no-such-option"),
            "{said}"
        );
    }
    daemon.restore_program();
    daemon.upgrade();
    load.ended_well();
    daemon.stop();
}

/// With one descriptor more each time the new program comes a step further before it has none left: also to where the
/// old one's queues have stopped, and have to go on.
#[test]
fn failure_of_the_new_program_at_any_step_leaves_the_old_one_running() {
    let mut daemon = Daemon::with_image(Folder::new(), "num-queues=4", "");
    let load = daemon.load(4, SECONDS);
    let program = env!("CARGO_BIN_EXE_blockplane");
    let mut reasons = Vec::new();
    for limit in (12..200).step_by(2) {
        daemon.replace_program(&format!("ulimit -n {limit}; exec {program} \"$@\""));
        let said = daemon.folder.run("upgrade qmp");
        if said.code == Some(0) {
            daemon.forget_first();
            break;
        }
        reasons.push(said.stderr);
        assert!(limit < 190, "{reasons:?}");
    }
    reasons.dedup();
    assert!(reasons.len() > 2, "it failed at several steps: {reasons:?}");
    load.ended_well();
    daemon.stop();
}

#[test]
fn hanging_new_program_fails_the_upgrade() {
    let mut daemon = Daemon::with_image(Folder::new(), "num-queues=1", "");
    daemon.replace_program("exec sleep 1000");
    let said = daemon.fails_to_upgrade_within(1);
    assert!(said.contains("did not respond for 1 s"), "{said}");
    daemon.restore_program();
    let load = daemon.load(1, 1);
    daemon.upgrade();
    load.ended_well();
    daemon.stop();
}

#[test]
fn new_program_that_hangs_before_the_handover_fails_the_upgrade() {
    // What is said of them is more than a socket holds.
    let nodes: String = (0..3000)
        .map(|node| format!(" --blockdev null-co,node-name=n{node},size=1M"))
        .collect();
    let mut daemon = Daemon::with_image(Folder::new(), "num-queues=1", &nodes);
    daemon.replace_program(&hangs_after(&[HELLO]));
    let said = daemon.fails_to_upgrade_within(SAYS_HELLO_WITHIN);
    assert!(
        said.contains("in the middle of a message for 3 s"),
        "{said}"
    );
    let load = daemon.load(1, 1);
    load.ended_well();
    daemon.stop();
}

/// The state of the new process is unknown, so its front-ends must be disconnected.
#[test]
fn new_program_that_hangs_after_the_handover_ends_both_processes() {
    let mut daemon = Daemon::with_image(Folder::new(), "num-queues=1", "");
    let all = [HELLO, r#"{"prepared":true}"#, r#"{"started":true}"#];
    daemon.replace_program(&hangs_after(&all));
    let mut client = daemon.client();
    client.send("upgrade", &json!({"response-timeout": SAYS_HELLO_WITHIN}));
    let ended = daemon.ended();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("hung"), "{ended:?}");
    let new = std::fs::read_to_string(daemon.folder.join("new-pid")).unwrap();
    let of_new = Path::new("/proc").join(new.trim());
    assert!(!of_new.exists(), "nothing of it is left");
}

#[test]
fn quit_during_an_upgrade_ends_the_new_program_that_has_not_responded() {
    let mut daemon = Daemon::with_image(Folder::new(), "num-queues=1", "");
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
