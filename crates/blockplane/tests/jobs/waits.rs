//! Jobs that begin or end while an iothread or a target hangs.

use serde_json::{Value, json};
use test_support::deadline::eventually;
use test_support::stopped_thread::StoppedThread;

use crate::client::Client;
use crate::nbd_target::start_qemu_nbd;
use crate::process::{Folder, Process};
use crate::request_driver::{IN, OUT, RequestDriver};
use crate::{
    EXPORT, MIB, assert_has, await_progress, begin_backup, copy, job, set_faults, start_with_disks,
    start_with_guest,
};

const LINE: &str = "--object iothread,id=io0 --blockdev blkdebug,node-name=target,image=copy \
    --blockdev null-co,node-name=null0,size=1M --blockdev null-co,node-name=null1,size=1M \
    --export vhost-user-blk,id=e,node-name=disk,writable=on,iothread=io0,addr.type=unix,addr.path=e.sock";

/// Waits until a command of another client has reserved the disk.
fn until_reserved(client: &mut Client, command: &str) {
    let refused = format!("Node 'disk' is busy: a {command} waits");
    eventually(format_args!("a {command} waits"), || {
        let add = json!({"node": "disk", "name": "probe"});
        let answer = client.ask("block-dirty-bitmap-add", add);
        let text = answer["error"]["desc"].as_str();
        text.is_some_and(|text| text.starts_with(&refused))
    });
}

/// Waits until there is a job, which has not started.
fn until_created(client: &mut Client) {
    eventually("there is a job", || {
        client.execute("query-jobs")[0].is_object()
    });
    assert_eq!(status_of_job(client), "created");
}

fn status_of_job(client: &mut Client) -> Value {
    client.execute("query-jobs")[0]["status"].take()
}

#[test]
fn id_of_a_job_is_taken_and_the_job_is_paused_or_cancelled_while_its_transaction_waits() {
    for is_cancelled in [false, true] {
        let folder = Folder::new();
        let (program, mut client, mut guest) = start_with_guest(&folder, MIB, LINE);
        guest.request(0, OUT, 0, 1);
        client.take_events();
        let iothread = StoppedThread::of_name(program.pid(), "IO io0");
        client.send("blockdev-backup", &copy("full", json!({"speed": 1})));
        let mut other = Client::connect(&folder.join("qmp"));
        until_created(&mut other);
        let of_others = json!({"device": "null0", "target": "null1"});
        let said = other.fails("blockdev-backup", copy("full", of_others));
        assert_eq!(said, "Job ID 'j' already in use");
        let (command, status) = match is_cancelled {
            true => ("job-cancel", "aborting"),
            false => ("job-pause", "created"),
        };
        other.done(command, json!({"id": "j"}));
        assert_eq!(status_of_job(&mut other), status);
        drop(iothread);
        assert_eq!(client.answer()["return"], json!({}));
        if !is_cancelled {
            assert_eq!(status_of_job(&mut client), "paused");
            client.execute("job-cancel id=j");
        }
        client.wait_for_event("BLOCK_JOB_CANCELLED");
        guest.request(0, OUT, 0, 1);
        program.stop();
    }
}

/// The transaction waits for a guest's write, which waits for the target: it was under way before the moment, behind another one.
#[test]
fn transaction_whose_server_is_silent_ends_when_its_job_is_cancelled_or_the_daemon_ends() {
    for is_cancelled in [false, true] {
        let folder = Folder::new();
        let Some(server) = start_qemu_nbd(&folder, MIB) else {
            return;
        };
        let line = format!(
            "--object iothread,id=io0 --object iothread,id=io1 \
             --blockdev blkdebug,node-name=slow,image=disk,inject-error.0.iotype=write,\
inject-error.0.action=delay,inject-error.0.delay-ns=500000000 \
             --blockdev null-co,node-name=null0,size=1M --blockdev null-co,node-name=null1,size=1M \
             --blockdev nbd,node-name=there,server.type=unix,server.path={},stop-timeout=1 \
             --export vhost-user-blk,id=e,node-name=slow,writable=on,iothread=io0,addr.type=unix,addr.path=e.sock \
             --export vhost-user-blk,id=o,node-name=null0,writable=on,iothread=io1,addr.type=unix,addr.path=o.sock",
            server.socket().display()
        );
        let (program, mut client, mut guest) = start_with_guest(&folder, MIB, &line);
        let mut other_guest = RequestDriver::connect(&folder.join("o.sock"), 1);
        guest.request(0, IN, 0, 0);
        other_guest.request(0, OUT, 0, 1);
        server.pause();
        let iothread = StoppedThread::of_name(program.pid(), "IO io1");
        let actions = [("j", "slow", "there"), ("k", "null0", "null1")];
        let actions = actions.map(|(id, device, target)| {
            let of_disk = json!({"job-id": id, "device": device, "target": target});
            json!({"type": "blockdev-backup", "data": copy("none", of_disk)})
        });
        client.send("transaction", &json!({"actions": actions}));
        let mut other = Client::connect(&folder.join("qmp"));
        until_created(&mut other);
        // Its disk has the filter, and the moment has not come.
        (0..20).for_each(|_| guest.request(0, IN, 0, 0));
        guest.ask(0, 0, OUT, 0, 1);
        guest.ask(0, 1, OUT, 0, 2);
        guest.ask(0, 2, IN, 8, 0);
        guest.wait(0, 2);
        drop(iothread);
        guest.wait(0, 0);
        if is_cancelled {
            other.execute("job-cancel id=j");
            guest.wait(0, 1);
            assert_eq!(client.answer()["return"], json!({}));
            assert_eq!(client.wait_for_event("BLOCK_JOB_CANCELLED")["device"], "j");
            server.resume();
        }
        program.stop();
    }
}

#[test]
fn iothread_of_a_job_is_not_removed_before_the_job_has_ended() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, MIB, LINE);
    begin_backup(&mut client, "full", json!({"speed": 1}));
    client.execute("block-export-del id=e");
    client.wait_for_event("BLOCK_EXPORT_DELETED");
    let iothread = StoppedThread::of_name(program.pid(), "IO io0");
    client.execute("job-cancel id=j");
    let said = client.error_of("object-del id=io0");
    assert!(said.contains("job 'j' runs on it"), "{said}");
    drop(iothread);
    client.wait_for_event("BLOCK_JOB_CANCELLED");
    client.execute("object-del id=io0");
    program.stop();
}

/// A backup of which one part hangs, and others are copied.
fn start_with_part_that_hangs() -> (Folder, Process, Client, RequestDriver) {
    let folder = Folder::new();
    let (program, mut client, guest) = start_with_guest(&folder, 8 * MIB, LINE);
    let hang = json!([{"iotype": "write", "sector": 2048, "action": "hang"}]);
    set_faults(&mut client, "target", hang);
    begin_backup(&mut client, "full", json!({"target": "target"}));
    await_progress(&mut client, 4 * MIB);
    (folder, program, client, guest)
}

#[test]
fn paused_job_is_busy_until_what_was_in_flight_has_ended() {
    let (_folder, program, mut client, _guest) = start_with_part_that_hangs();
    client.execute("job-pause id=j");
    let before = job(&mut client);
    assert_has(&before, json!({"paused": true, "busy": true}));
    set_faults(&mut client, "target", json!([]));
    eventually("the job rests", || job(&mut client)["busy"] == false);
    let rests = job(&mut client);
    assert!(rests["offset"].as_u64() > before["offset"].as_u64());
    assert_eq!(job(&mut client)["offset"], rests["offset"]);
    program.stop();
}

/// A command waits for a guest's write, which waits for the job's write.
#[test]
fn daemon_ends_while_a_target_hangs_and_a_command_waits_for_it() {
    let (folder, program, mut client, mut guest) = start_with_part_that_hangs();
    guest.ask(0, 0, OUT, 256, 1);
    let bitmap = json!({"node": "disk", "name": "b"});
    client.send("block-dirty-bitmap-add", &bitmap);
    let mut other = Client::connect(&folder.join("qmp"));
    until_reserved(&mut other, "change of dirty bitmaps");
    program.stop();
}

/// A job copies to one half of an export, and a guest uses the other half, on the same connection.
#[test]
fn guest_of_the_same_server_waits_when_a_job_is_cancelled() {
    for is_gone in [false, true] {
        let folder = Folder::new();
        let Some(mut server) = start_qemu_nbd(&folder, 8 * MIB) else {
            return;
        };
        let reconnect_delay = if is_gone { 3600 } else { 0 };
        let line = format!(
            "--object iothread,id=io0 \
             --blockdev nbd,node-name=there,server.type=unix,server.path={},reconnect-delay={reconnect_delay},stop-timeout=1 \
             --blockdev raw,node-name=target,file=there,size=4M \
             --blockdev raw,node-name=other,file=there,offset=4M,size=4M \
             {EXPORT},iothread=io0 \
             --export vhost-user-blk,id=o,node-name=other,writable=on,iothread=io0,addr.type=unix,addr.path=o.sock",
            server.socket().display()
        );
        let (program, mut client, mut guest) = start_with_guest(&folder, 4 * MIB, &line);
        let mut other = RequestDriver::connect(&folder.join("o.sock"), 1);
        begin_backup(&mut client, "full", json!({"target": "target", "speed": 1}));
        other.request(0, OUT, 0, 1);
        match is_gone {
            false => server.pause(),
            true => server.kill(),
        }
        other.ask(0, 0, OUT, 5, 2);
        // A write to what is not copied waits for the job.
        guest.ask(0, 0, OUT, 1023, 1);
        client.execute("query-jobs");
        assert!(!guest.is_answered(0, 0));
        client.execute("block-job-cancel device=j force=true");
        guest.wait(0, 0);
        client.wait_for_event("BLOCK_JOB_CANCELLED");
        assert!(!other.is_answered(0, 0));
        match is_gone {
            false => server.resume(),
            true => server.start(),
        }
        other.wait(0, 0);
        other.request(0, IN, 5, 0);
        assert_eq!(other.data(0, 0)[0], 2);
        program.stop();
    }
}
