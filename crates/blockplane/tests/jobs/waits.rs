//! Jobs that begin or end while an iothread or a target hangs.

use serde_json::{Value, json};
use test_support::deadline::eventually;

use crate::client::Client;
use crate::guest::{Guest, IN, OUT, SLOTS};
use crate::nbd_target::{node, start_qemu_nbd};
use crate::process::{Folder, Process};
use crate::servers::Server;
use crate::stopped_thread::StoppedThread;
use crate::{MIB, backup, start_with_disks};

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
        client.done("query-jobs", json!({}))[0].is_object()
    });
    assert_eq!(status_of_job(client), "created");
}

fn status_of_job(client: &mut Client) -> Value {
    client.done("query-jobs", json!({}))[0]["status"].take()
}

#[test]
fn ids_of_jobs_are_taken_while_they_begin() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, MIB, LINE);
    let mut guest = Guest::connect(&folder.join("e.sock"), 1);
    guest.request(0, OUT, 0, 1);
    let iothread = StoppedThread::of_name(program.pid(), "IO io0");
    client.send("blockdev-backup", &backup("full", json!({"speed": 1})));
    let mut other = Client::connect(&folder.join("qmp"));
    until_reserved(&mut other, "command that begins a job");
    let of_others = json!({"device": "null0", "target": "null1"});
    let said = other.fails("blockdev-backup", backup("full", of_others));
    assert_eq!(said, "Job ID 'j' already in use");
    drop(iothread);
    assert_eq!(client.answer()["return"], json!({}));
    client.done("job-cancel", json!({"id": "j"}));
    client.wait_for_event("BLOCK_JOB_CANCELLED");
    program.stop();
}

#[test]
fn job_is_paused_or_cancelled_while_its_transaction_waits() {
    for is_cancelled in [false, true] {
        let folder = Folder::new();
        let (program, mut client) = start_with_disks(&folder, MIB, LINE);
        let mut guest = Guest::connect(&folder.join("e.sock"), 1);
        guest.request(0, OUT, 0, 1);
        client.take_events();
        let iothread = StoppedThread::of_name(program.pid(), "IO io0");
        client.send("blockdev-backup", &backup("full", json!({"speed": 1})));
        let mut other = Client::connect(&folder.join("qmp"));
        until_created(&mut other);
        let command = if is_cancelled {
            "job-cancel"
        } else {
            "job-pause"
        };
        other.done(command, json!({"id": "j"}));
        let status = if is_cancelled { "aborting" } else { "created" };
        assert_eq!(status_of_job(&mut other), status);
        drop(iothread);
        assert_eq!(client.answer()["return"], json!({}));
        if !is_cancelled {
            assert_eq!(status_of_job(&mut client), "paused");
            client.done("job-cancel", json!({"id": "j"}));
        }
        client.wait_for_event("BLOCK_JOB_CANCELLED");
        guest.request(0, OUT, 0, 1);
        assert_eq!(guest.status(0, 0), 0);
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
        let (program, mut client) = start_with_disks(&folder, MIB, &line);
        let mut guest = Guest::connect(&folder.join("e.sock"), 1);
        let mut other_guest = Guest::connect(&folder.join("o.sock"), 1);
        guest.request(0, IN, 0, 0);
        other_guest.request(0, OUT, 0, 1);
        server.pause();
        let iothread = StoppedThread::of_name(program.pid(), "IO io1");
        let actions =
            [("j", "slow", "there"), ("k", "null0", "null1")].map(|(id, device, target)| {
                json!({"type": "blockdev-backup", "data": backup("none",
                json!({"job-id": id, "device": device, "target": target}))})
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
            other.done("job-cancel", json!({"id": "j"}));
            guest.wait(0, 1);
            assert_eq!(guest.status(0, 1), 0);
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
    client.done("blockdev-backup", backup("full", json!({"speed": 1})));
    client.done("block-export-del", json!({"id": "e"}));
    client.wait_for_event("BLOCK_EXPORT_DELETED");
    let iothread = StoppedThread::of_name(program.pid(), "IO io0");
    client.done("job-cancel", json!({"id": "j"}));
    let said = client.fails("object-del", json!({"id": "io0"}));
    assert!(said.contains("job 'j' runs on it"), "{said}");
    drop(iothread);
    client.wait_for_event("BLOCK_JOB_CANCELLED");
    client.done("object-del", json!({"id": "io0"}));
    program.stop();
}

#[test]
fn paused_job_is_busy_until_what_was_in_flight_has_ended() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, 8 * MIB, LINE);
    let inject = |rules| json!({"node-name": "target", "inject-error": rules});
    let hang = json!([{"iotype": "write", "sector": 2048, "action": "hang"}]);
    client.done("x-blkdebug-set", inject(hang));
    client.done(
        "blockdev-backup",
        backup("full", json!({"target": "target"})),
    );
    eventually("other parts are copied", || {
        let jobs = client.done("query-jobs", json!({}));
        jobs[0]["current-progress"].as_u64() >= Some(4 * MIB)
    });
    client.done("job-pause", json!({"id": "j"}));
    let job = |client: &mut Client| client.done("query-block-jobs", json!({}))[0].take();
    let before = job(&mut client);
    assert_eq!(before["paused"], true);
    assert_eq!(before["busy"], true);
    client.done("x-blkdebug-set", inject(json!([])));
    eventually("the job rests", || job(&mut client)["busy"] == false);
    let rests = job(&mut client);
    assert!(rests["offset"].as_u64() > before["offset"].as_u64());
    assert_eq!(job(&mut client)["offset"], rests["offset"]);
    program.stop();
}

/// The guest's first write to what is not copied waits for the target, which answers nothing, or is gone for an hour.
#[test]
fn guest_goes_on_when_a_job_whose_server_is_silent_or_gone_is_cancelled() {
    for is_gone in [false, true] {
        let folder = Folder::new();
        let Some(mut server) = start_qemu_nbd(&folder, 8 * MIB) else {
            return;
        };
        let (program, mut client) = start_with_disks(&folder, 8 * MIB, LINE);
        let mut guest = Guest::connect(&folder.join("e.sock"), 1);
        let mut node = node(&server, 3600);
        node["stop-timeout"] = json!(1);
        client.done("blockdev-add", node);
        client.done(
            "blockdev-backup",
            backup("full", json!({"target": "there", "speed": 1})),
        );
        match is_gone {
            false => server.pause(),
            true => server.kill(),
        }
        guest.ask(0, 0, OUT, 2047, 1);
        client.done("query-jobs", json!({}));
        assert!(!guest.is_answered(0, 0));
        client.done("block-job-cancel", json!({"device": "j", "force": true}));
        guest.wait(0, 0);
        assert_eq!(guest.status(0, 0), 0);
        client.wait_for_event("BLOCK_JOB_CANCELLED");
        // The last flush of the target fails if its server is gone.
        if !is_gone {
            server.resume();
            program.stop();
        }
    }
}

/// A job to one half of an export, and a guest of the other half, on the same connection.
struct SharedExport {
    folder: Folder,
    server: Server,
    program: Process,
    client: Client,
    /// Of the disk that is copied.
    guest: Guest,
    /// Of the other half.
    other: Guest,
}

impl SharedExport {
    /// `None`, with a report, if the server is not installed. The job has begun.
    fn start(reconnect_delay: u32, queues: u32) -> Option<Self> {
        let folder = Folder::new();
        let server = start_qemu_nbd(&folder, 8 * MIB)?;
        let line = format!(
            "{LINE} --blockdev nbd,node-name=there,server.type=unix,server.path={},reconnect-delay={reconnect_delay},stop-timeout=1 \
             --blockdev raw,node-name=target,file=there,size=4M \
             --blockdev raw,node-name=other,file=there,offset=4M,size=4M \
             --export vhost-user-blk,id=o,node-name=other,writable=on,iothread=io0,addr.type=unix,addr.path=o.sock,num-queues={queues}",
            server.socket().display()
        );
        let line = line.replace("--blockdev blkdebug,node-name=target,image=copy ", "");
        let (program, mut client) = start_with_disks(&folder, 4 * MIB, &line);
        let guest = Guest::connect(&folder.join("e.sock"), 1);
        let other = Guest::connect(&folder.join("o.sock"), queues);
        let arguments = json!({"target": "target", "speed": 1});
        client.done("blockdev-backup", backup("full", arguments));
        Some(SharedExport {
            folder,
            server,
            program,
            client,
            guest,
            other,
        })
    }

    /// Cancels the job, for which a guest's write waits.
    fn cancel_job(&mut self) {
        self.guest.ask(0, 0, OUT, 1023, 1);
        self.client.done("job-cancel", json!({"id": "j"}));
        self.guest.wait(0, 0);
        assert_eq!(self.guest.status(0, 0), 0);
        self.client.wait_for_event("BLOCK_JOB_CANCELLED");
    }

    fn stop(self) {
        drop((self.guest, self.other));
        self.program.stop();
        drop(self.folder);
    }
}

#[test]
fn guest_of_the_same_server_waits_when_a_job_is_cancelled() {
    for is_gone in [false, true] {
        let reconnect_delay = if is_gone { 3600 } else { 0 };
        let Some(mut shared) = SharedExport::start(reconnect_delay, 1) else {
            return;
        };
        shared.other.request(0, OUT, 0, 1);
        match is_gone {
            false => shared.server.pause(),
            true => shared.server.kill(),
        }
        shared.other.ask(0, 0, OUT, 5, 2);
        shared.cancel_job();
        assert!(!shared.other.is_answered(0, 0));
        match is_gone {
            false => shared.server.resume(),
            true => shared.server.start(),
        }
        shared.other.wait(0, 0);
        assert_eq!(shared.other.status(0, 0), 0, "gone: {is_gone}");
        shared.other.request(0, IN, 5, 0);
        assert_eq!(shared.other.data(0, 0)[0], 2);
        shared.stop();
    }
}

/// The guest of the other half has as many requests in flight to the silent server as fit, so that the job's request has no place.
#[test]
fn cancelled_job_ends_although_a_guest_fills_the_queue_of_its_silent_server() {
    const QUEUES: u32 = 32;
    let Some(mut shared) = SharedExport::start(0, QUEUES) else {
        return;
    };
    shared.server.pause();
    for queue in 0..QUEUES {
        for slot in 0..SLOTS {
            let block = u64::from(queue) * 32 + slot as u64 * 2;
            shared.other.add(queue, slot, OUT, block, 2);
        }
        shared.other.submit(queue);
    }
    eventually("the iothread has taken them", || {
        let stats = shared.client.done("query-blockstats", json!({}));
        let exports = stats.as_array().unwrap();
        let other = exports.iter().find(|export| export["export"] == "o");
        let queues = other.unwrap()["queues"].as_array().unwrap();
        queues.iter().all(|queue| queue["depth"] == SLOTS)
    });
    shared.cancel_job();
    assert!(!shared.other.is_answered(0, 0));
    shared.server.resume();
    for queue in 0..QUEUES {
        for slot in 0..SLOTS {
            shared.other.wait(queue, slot);
            assert_eq!(shared.other.status(queue, slot), 0);
        }
    }
    shared.stop();
}

/// A command waits for a guest's write, which waits for the job's write.
#[test]
fn daemon_ends_while_a_target_hangs_and_a_command_waits_for_it() {
    let folder = Folder::new();
    let (program, mut client) = start_with_disks(&folder, 8 * MIB, LINE);
    let mut guest = Guest::connect(&folder.join("e.sock"), 1);
    let hang = json!([{"iotype": "write", "sector": 2048, "action": "hang"}]);
    client.done(
        "x-blkdebug-set",
        json!({"node-name": "target", "inject-error": hang}),
    );
    client.done(
        "blockdev-backup",
        backup("full", json!({"target": "target"})),
    );
    eventually("later parts are copied", || {
        let jobs = client.done("query-jobs", json!({}));
        jobs[0]["current-progress"].as_u64() >= Some(4 * MIB)
    });
    guest.ask(0, 0, OUT, 256, 1);
    client.send(
        "block-dirty-bitmap-add",
        &json!({"node": "disk", "name": "b"}),
    );
    let mut other = Client::connect(&folder.join("qmp"));
    until_reserved(&mut other, "change of dirty bitmaps");
    program.stop();
}
