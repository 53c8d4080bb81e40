//! Clients that are not ours see what they wrote, and what the image has.

use std::os::unix::fs::FileExt;
use std::process::Command;

use nbd::wire::command;
use rustix::process::Signal;
use serde_json::{Value, json};
use test_support::report;

use crate::process::{Folder, Process, ProcessOutput, await_killed};
use crate::raw_client::RawClient;
use crate::{MIB, disk_line, serve, start};

/// Runs a program in the folder.
pub fn run(folder: &Folder, program: &str, args: &[&str]) -> ProcessOutput {
    let mut command = Command::new(program);
    command.args(args).current_dir(folder.path());
    Process::spawn(command).ended()
}

/// The same; `None`, with a report, if it is not installed. It has to succeed.
#[track_caller]
pub fn run_if_installed(folder: &Folder, program: &str, args: &[&str]) -> Option<String> {
    report::installed(program).then(|| {
        let output = run(folder, program, args);
        let stderr = &output.stderr;
        assert!(output.code == Some(0), "{program} {args:?}: {stderr}");
        output.stdout
    })
}

const URI: &str = "nbd+unix:///d?socket=nbd";
const TARGET: &str = "nbd+unix:///target?socket=nbd";

/// Bytes that repeat late.
pub fn noise(bytes: u32) -> Vec<u8> {
    let words = (0..bytes / 4).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes());
    words.collect()
}

/// An image with data at its second and its fourth MiB, which is exported, as is an empty one.
fn start_with_holes(folder: &Folder, further: &str) -> (Process, Vec<u8>) {
    let mut content = vec![0; 8 << 20];
    let noise = noise(1 << 20);
    let image = std::fs::File::create_new(folder.join("disk")).unwrap();
    image.set_len(8 * MIB).unwrap();
    for mib in [1usize, 3] {
        content[mib << 20..(mib + 1) << 20].copy_from_slice(&noise);
        image.write_all_at(&noise, (mib as u64) << 20).unwrap();
    }
    folder.image("target", 8 * MIB);
    let target = "--blockdev file,node-name=t,filename=target,discard=unmap \
         --export nbd,id=f,node-name=t,name=target,writable=on";
    let disk = disk_line(",description=a-disk");
    let (program, _) = start(folder, &format!("{disk} {target} {further}"));
    (program, content)
}

#[test]
fn nbdinfo_shows_the_export_and_its_holes() {
    let folder = Folder::new();
    let (program, _) = start_with_holes(&folder, "");
    let Some(info) = run_if_installed(&folder, "nbdinfo", &["--json", URI]) else {
        return;
    };
    let info: Value = serde_json::from_str(&info).unwrap();
    let export = &info["exports"][0];
    let expected = json!({"description": "a-disk", "export-size": 8 * MIB, "contexts": ["base:allocation"],
        "is_read_only": false, "can_flush": true, "can_fua": true, "can_multi_conn": true, "can_trim": true,
        "can_zero": true, "can_df": true, "can_cache": true, "block_size_minimum": 1});
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(&export[key], value, "{key}");
    }
    let map = run_if_installed(&folder, "nbdinfo", &["--map", "--json", URI]).unwrap();
    let map: Value = serde_json::from_str(&map).unwrap();
    let piece = |piece: &Value| ["length", "type"].map(|key| piece[key].as_u64().unwrap());
    let pieces: Vec<_> = map.as_array().unwrap().iter().map(piece).collect();
    let expected = [[MIB, 3], [MIB, 0], [MIB, 3], [MIB, 0], [4 * MIB, 3]];
    assert_eq!(pieces, expected);
    program.stop();
}

#[test]
fn nbdcopy_reads_and_writes_over_several_connections() {
    let folder = Folder::new();
    let iothreads = "--object iothread,id=a --object iothread,id=b --export nbd,id=g,node-name=d,name=both,iothread.0=a,iothread.1=b";
    let (program, content) = start_with_holes(&folder, iothreads);
    let copy = |from: &str, to: &str| {
        let args = ["--connections=4", "--requests=128", "--flush", from, to];
        run_if_installed(&folder, "nbdcopy", &args)
    };
    if copy("nbd+unix:///both?socket=nbd", "copy").is_none() {
        return;
    }
    assert!(std::fs::read(folder.join("copy")).unwrap() == content);
    copy("copy", TARGET);
    assert!(std::fs::read(folder.join("target")).unwrap() == content);
    program.stop();
}

#[test]
fn qemu_reads_back_what_it_changed_and_copied() {
    let folder = Folder::new();
    let read_only = "--export nbd,id=r,node-name=d,name=read";
    let (program, content) = start_with_holes(&folder, read_only);
    std::fs::write(folder.join("source"), &content).unwrap();
    let qemu_img = |args: &str| {
        let args: Vec<_> = args.split(' ').collect();
        run_if_installed(&folder, "qemu-img", &args)
    };
    if qemu_img(&format!("convert -n -f raw -O raw source {TARGET}")).is_none() {
        return;
    }
    assert!(std::fs::read(folder.join("target")).unwrap() == content);
    qemu_img(&format!("compare -f raw -F raw {URI} {TARGET}"));
    let read_only = "nbd+unix:///read?socket=nbd";
    let write = ["-f", "raw", "-c", "write 0 512", read_only];
    let output = run(&folder, "qemu-io", &write);
    let is_refused = output.stderr.contains("Permission denied");
    assert!(output.code != Some(0) && is_refused, "{output:?}");
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
    let output = run_if_installed(&folder, "qemu-io", &args).unwrap();
    // A pattern that differs is not an error of the program.
    let has_failed = output.contains("failed") || output.contains("error");
    assert!(!has_failed, "{output}");
    let image = std::fs::read(folder.join("disk")).unwrap();
    assert_eq!((image[511], image[510], image[8_388_607]), (3, 7, 9));
    assert!(image[2 << 20..3 << 20].iter().all(|byte| *byte == 0));
    program.stop();
}

/// A kill loses what the daemon has not passed on; what the kernel has stays.
#[test]
fn writes_of_one_client_that_another_has_flushed_survive_a_kill() {
    let (folder, program, _monitor, mut writer) = serve(MIB, ",iothread.0=a,iothread.1=b");
    let mut flusher = RawClient::enter(&folder, "d");
    let blocks = 64u8;
    for block in 0..blocks {
        writer.write(u64::from(block) * 4096, 4096, block + 1);
        assert_eq!(flusher.result_of(command::FLUSH, 0, (0, 0)), 0);
    }
    program.signal(Signal::KILL);
    await_killed(program.pid());
    let image = std::fs::read(folder.join("disk")).unwrap();
    for (block, found) in (1..=blocks).zip(image.chunks(4096)) {
        assert_eq!(found, [block; 4096]);
    }
}
