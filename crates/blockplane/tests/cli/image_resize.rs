//! New sizes of an image of Ceph that are not adopted. There is no cluster: a stub takes the place of Ceph's libraries.

use std::fs::File;
use std::os::unix::fs::{FileExt, chown};
use std::path::Path;
use std::process::Command;

use test_support::deadline::eventually;
use test_support::qmp::Client;
use test_support::report::installed;

use crate::control_threads::{UID, can_limit_threads, limit_threads};
use crate::process::{Folder, Process, words};

const MIB: u64 = 1 << 20;

/// A daemon with an image, as a user of its own.
struct Served {
    program: Process,
    client: Client,
    image_size: File,
    _folder: Folder,
}

impl Served {
    /// `None`, which is reported, if that is not possible here.
    fn start() -> Option<Self> {
        if !can_limit_threads() || !installed("cc") {
            return None;
        }
        let folder = Folder::new();
        chown(folder.join("."), Some(UID), None).unwrap();
        build_stub(&folder);
        let image_size = File::create_new(folder.join("size")).unwrap();
        let line = format!(
            "--blockdev rbd,node-name=d,pool=p,image=i,conf=/dev/null --user {UID} \
             --chardev socket,id=c,path=qmp,server=on,wait=off --monitor chardev=c"
        );
        let mut command = folder.command(words(&line));
        command.env("LD_LIBRARY_PATH", folder.path());
        command.env("STUB_IMAGE_SIZE", folder.join("size"));
        command.env("BLOCKPLANE_LOG", "warn");
        resize(&image_size, MIB);
        let mut program = Process::spawn(command);
        let client = Client::of(program.connection(&folder.join("qmp")));
        Some(Served {
            program,
            client,
            image_size,
            _folder: folder,
        })
    }

    fn resize_by_another_client(&self, bytes: u64) {
        resize(&self.image_size, bytes);
    }

    fn node_size(&mut self) -> u64 {
        let size = &self.client.node("d")["image"]["virtual-size"];
        size.as_u64().unwrap()
    }

    fn wait_for_log(&self, text: &str) {
        eventually(text, || self.program.stderr().contains(text));
    }
}

fn resize(image_size: &File, bytes: u64) {
    image_size.write_all_at(&bytes.to_ne_bytes(), 0).unwrap();
}

/// Builds the stub in the folder, under the names of both libraries.
fn build_stub(folder: &Folder) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/stub_librbd.c");
    for library in ["librados.so.2", "librbd.so.1"] {
        let mut compile = Command::new("cc");
        compile.args(["-shared", "-fPIC", "-pthread", "-o"]);
        compile.arg(folder.join(library)).arg(&source);
        assert!(compile.status().unwrap().success(), "{compile:?}");
    }
}

#[test]
fn resize_while_no_thread_can_be_started_is_reported_once_and_the_next_one_is_adopted() {
    const NOT_ADOPTED: &str = "the image's new size is not adopted";
    let Some(mut served) = Served::start() else {
        return;
    };
    limit_threads(&served.program, Some(1));
    served.resize_by_another_client(2 * MIB);
    served.wait_for_log(NOT_ADOPTED);
    assert_eq!(served.node_size(), MIB);
    limit_threads(&served.program, None);
    served.resize_by_another_client(3 * MIB);
    eventually("the size is adopted", || served.node_size() == 3 * MIB);
    let log = served.program.stop().stderr;
    assert_eq!(log.matches(NOT_ADOPTED).count(), 1, "{log}");
}

#[test]
fn resize_to_less_than_a_sector_is_refused_with_the_remedy() {
    let Some(mut served) = Served::start() else {
        return;
    };
    served.resize_by_another_client(511);
    served.wait_for_log("needs at least one sector of 512 bytes");
    served.wait_for_log("resize the image to a size");
    assert_eq!(served.node_size(), MIB);
    served.resize_by_another_client(2 * MIB);
    eventually("the size is adopted", || served.node_size() == 2 * MIB);
    served.program.stop();
}
