//! Clients that are not ours see what they wrote, and what the image has.

use std::process::Command;

use nbd::wire::command;
use rustix::process::Signal;
use serde_json::Value;
use test_support::report;

use crate::process::{Folder, Process, await_killed};
use crate::raw_client::{RawClient, request};
use crate::{MIB, SERVER, disk_line, start};

/// Runs a program in the folder; `None`, with a report, if it is not installed. It has to succeed.
pub fn run(folder: &Folder, program: &str, args: &[&str]) -> Option<String> {
    if !report::installed(program) {
        return None;
    }
    let mut command = Command::new(program);
    command.args(args).current_dir(folder.path());
    let output = Process::spawn(command).ended();
    let stderr = &output.stderr;
    assert!(output.code == Some(0), "{program} {args:?}: {stderr}");
    Some(output.stdout)
}

const URI: &str = "nbd+unix:///d?socket=nbd";

/// An image with data at its second and its fourth MiB.
fn image_with_holes(folder: &Folder) -> Vec<u8> {
    folder.image("disk", 8 * MIB);
    let mut content = vec![0; 8 << 20];
    let noise = (0u32..1 << 18).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes());
    let noise: Vec<u8> = noise.collect();
    for mib in [1usize, 3] {
        content[mib << 20..(mib + 1) << 20].copy_from_slice(&noise);
        let file = std::fs::File::options();
        let file = file.clone().write(true).open(folder.join("disk")).unwrap();
        let at = (mib as u64) << 20;
        std::os::unix::fs::FileExt::write_all_at(&file, &noise, at).unwrap();
    }
    content
}

#[test]
fn nbdinfo_shows_the_export_and_its_holes() {
    let folder = Folder::new();
    image_with_holes(&folder);
    let (program, _client) = start(&folder, &disk_line(",description=a-disk"));
    let Some(info) = run(&folder, "nbdinfo", &["--json", URI]) else {
        return;
    };
    let info: Value = serde_json::from_str(&info).unwrap();
    let export = &info["exports"][0];
    assert_eq!(export["description"], "a-disk");
    assert_eq!(export["export-size"], 8 * MIB);
    assert_eq!(export["contexts"], serde_json::json!(["base:allocation"]));
    for (flag, is_set) in [
        ("is_read_only", false),
        ("can_flush", true),
        ("can_fua", true),
        ("can_multi_conn", true),
        ("can_trim", true),
        ("can_zero", true),
        ("can_df", true),
        ("can_cache", true),
    ] {
        assert_eq!(export[flag], is_set, "{flag}");
    }
    assert_eq!(export["block_size_minimum"], 1);
    let map = run(&folder, "nbdinfo", &["--map", "--json", URI]).unwrap();
    let map: Value = serde_json::from_str(&map).unwrap();
    let pieces: Vec<(u64, u64)> = map
        .as_array()
        .unwrap()
        .iter()
        .map(|piece| {
            (
                piece["length"].as_u64().unwrap() / MIB,
                piece["type"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(pieces, [(1, 3), (1, 0), (1, 3), (1, 0), (4, 3)]);
    program.stop();
}

#[test]
fn nbdcopy_reads_and_writes_over_several_connections() {
    let folder = Folder::new();
    let content = image_with_holes(&folder);
    let line = format!(
        "--object iothread,id=a --object iothread,id=b {} --blockdev file,node-name=t,filename=target \
         --export nbd,id=f,node-name=t,name=target,writable=on",
        disk_line(",iothread.0=a,iothread.1=b")
    );
    folder.image("target", 8 * MIB);
    let (program, _client) = start(&folder, &line);
    let copy = |from: &str, to: &str| {
        let args = ["--connections=4", "--requests=128", "--flush", from, to];
        run(&folder, "nbdcopy", &args)
    };
    if copy(URI, "copy").is_none() {
        return;
    }
    assert!(std::fs::read(folder.join("copy")).unwrap() == content);
    copy("copy", "nbd+unix:///target?socket=nbd");
    assert!(std::fs::read(folder.join("target")).unwrap() == content);
    program.stop();
}

#[test]
fn qemu_io_reads_back_what_it_changed() {
    let folder = Folder::new();
    image_with_holes(&folder);
    let (program, _client) = start(&folder, &disk_line(""));
    let commands = [
        "write -P 7 0 5M",
        "read -P 7 0 5M",
        // Parts of sectors.
        "write -P 3 511 1000",
        "read -P 3 511 1000",
        "read -P 7 0 511",
        "write -z 1M 64k",
        "read -P 0 1M 64k",
        "write -z -u 2M 1M",
        "read -P 0 2M 1M",
        "write -f -P 9 8388607 1",
        "read -P 9 8388607 1",
        "discard 4M 1M",
        "flush",
    ];
    let mut args = vec!["-f", "raw"];
    args.extend(commands.iter().flat_map(|command| ["-c", command]));
    args.push(URI);
    let Some(output) = run(&folder, "qemu-io", &args) else {
        return;
    };
    assert!(
        !output.contains("failed") && !output.contains("error"),
        "{output}"
    );
    let image = std::fs::read(folder.join("disk")).unwrap();
    assert_eq!((image[511], image[510], image[8_388_607]), (3, 7, 9));
    assert!(image[2 << 20..3 << 20].iter().all(|byte| *byte == 0));
    program.stop();
}

#[test]
fn qemu_img_copies_a_read_only_export_and_cannot_write_it() {
    let folder = Folder::new();
    let content = image_with_holes(&folder);
    let line = format!(
        "--blockdev file,node-name=d,filename=disk,read-only=on {SERVER} --export nbd,id=e,node-name=d"
    );
    let (program, _client) = start(&folder, &line);
    let args = ["convert", "-f", "raw", "-O", "raw", URI, "copy"];
    if run(&folder, "qemu-img", &args).is_none() {
        return;
    }
    assert!(std::fs::read(folder.join("copy")).unwrap() == content);
    let mut write = Command::new("qemu-io");
    write.args(["-f", "raw", "-c", "write 0 512", URI]);
    write.current_dir(folder.path());
    let output = Process::spawn(write).ended();
    assert!(
        output.code != Some(0) && output.stderr.contains("Permission denied"),
        "{output:?}"
    );
    program.stop();
}

#[test]
fn qemu_img_compares_converts_into_and_maps_an_export() {
    let folder = Folder::new();
    let content = image_with_holes(&folder);
    std::fs::write(folder.join("source"), &content).unwrap();
    folder.image("target", 8 * MIB);
    let line = format!(
        "{} --blockdev file,node-name=t,filename=target,discard=unmap --export nbd,id=f,node-name=t,name=target,writable=on",
        disk_line("")
    );
    let (program, _client) = start(&folder, &line);
    let target = "nbd+unix:///target?socket=nbd";
    let convert = ["convert", "-n", "-f", "raw", "-O", "raw", "source", target];
    if run(&folder, "qemu-img", &convert).is_none() {
        return;
    }
    assert!(std::fs::read(folder.join("target")).unwrap() == content);
    let compare = ["compare", "-f", "raw", "-F", "raw", URI, target];
    run(&folder, "qemu-img", &compare);
    let map = ["map", "--output=json", "-f", "raw", URI];
    let map = run(&folder, "qemu-img", &map).unwrap();
    let map: Vec<Value> = serde_json::from_str(&map).unwrap();
    let data = map.iter().filter(|piece| piece["data"] == true);
    let data: Vec<_> = data
        .map(|piece| (piece["start"].as_u64(), piece["length"].as_u64()))
        .collect();
    assert_eq!(data, [(Some(MIB), Some(MIB)), (Some(3 * MIB), Some(MIB))]);
    program.stop();
}

/// A kill loses what the daemon has not passed on; what the kernel has stays.
#[test]
fn writes_of_one_client_that_another_has_flushed_survive_a_kill() {
    let folder = Folder::new();
    folder.image("disk", MIB);
    let line = format!(
        "--object iothread,id=a --object iothread,id=b {}",
        disk_line(",iothread.0=a,iothread.1=b")
    );
    let (program, _client) = start(&folder, &line);
    let mut writer = RawClient::enter(&folder, "d");
    let mut flusher = RawClient::enter(&folder, "d");
    let blocks = 64u8;
    for block in 0..blocks {
        let range = (u64::from(block) * 4096, 4096);
        writer.send(&[request(command::WRITE, 0, 1, range), vec![block + 1; 4096]].concat());
        assert_eq!(writer.reply(0).1, 0);
        assert_eq!(flusher.result_of(command::FLUSH, 0, (0, 0)), 0);
    }
    program.signal(Signal::KILL);
    await_killed(program.pid());
    let image = std::fs::read(folder.join("disk")).unwrap();
    for block in 0..blocks {
        let at = usize::from(block) * 4096;
        assert!(image[at..at + 4096].iter().all(|byte| *byte == block + 1));
    }
}
