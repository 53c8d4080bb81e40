//! An image of Ceph without a cluster: a stub takes the place of Ceph's libraries, and a file controls it.

use std::fs::File;
use std::os::unix::fs::{FileExt, chown};
use std::path::Path;
use std::process::Command;

use test_support::deadline::eventually;
use test_support::qmp::Client;
use test_support::report::installed;

use crate::control_threads::{UID, can_limit_threads};
use crate::process::{Folder, Process, words};

pub(crate) const MIB: u64 = 1 << 20;

/// Ceph's number of the feature `exclusive-lock`.
pub(crate) const EXCLUSIVE_LOCK: u64 = 4;

/// What the file has: the place of each number. The stub has the same list.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Control {
    ImageSize,
    Features,
    /// Requests do not complete while this is not zero.
    HoldsRequests,
    /// The same of reading the image's metadata, which opening it does after it has read the size.
    HoldsMetadata,
    /// The same of reading the image's features, which opening it does between its size and its metadata.
    HoldsFeatures,
    /// The last size for which the daemon has been called back.
    AnnouncedSize,
    MetadataReads,
    FeatureReads,
    /// How many requests were submitted.
    Requests,
    OwnsLock,
    /// How often an image was closed on a thread for calls to Ceph.
    Closed,
}

const CONTROL_BYTES: u64 = 8 * (Control::Closed as u64 + 1);

/// A daemon with an image of 1 MiB as node `d`, as a user of its own.
pub(crate) struct Served {
    pub program: Process,
    pub client: Client,
    pub folder: Folder,
    control: File,
}

impl Served {
    /// Starts a daemon with further options, and an image with these features. `None`, which is reported, if that is not possible here.
    pub fn start(options: &str, features: u64) -> Option<Self> {
        if !can_limit_threads() || !installed("cc") {
            return None;
        }
        let folder = Folder::new();
        chown(folder.join("."), Some(UID), None).unwrap();
        build_stub(&folder);
        let path = folder.join("control");
        let control = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap();
        chown(&path, Some(UID), None).unwrap();
        control.set_len(CONTROL_BYTES).unwrap();
        set(&control, Control::ImageSize, MIB);
        set(&control, Control::Features, features);
        let line = format!(
            "--blockdev rbd,node-name=d,pool=p,image=i,conf=/dev/null --user {UID} \
             --chardev socket,id=c,path=qmp,server=on,wait=off --monitor chardev=c {options}"
        );
        let mut command = folder.command(words(&line));
        command.env("LD_LIBRARY_PATH", folder.path());
        command.env("STUB_CONTROL", path);
        command.env("BLOCKPLANE_LOG", "warn");
        let mut program = Process::spawn(command);
        let mut client = Client::of(program.connection(&folder.join("qmp")));
        // It is answered when everything has been created.
        client.node("d");
        Some(Served {
            program,
            client,
            folder,
            control,
        })
    }

    pub fn set(&self, what: Control, value: u64) {
        set(&self.control, what, value);
    }

    pub fn get(&self, what: Control) -> u64 {
        let mut bytes = [0; 8];
        let place = 8 * what as u64;
        self.control.read_exact_at(&mut bytes, place).unwrap();
        u64::from_ne_bytes(bytes)
    }

    /// Waits for a number that the stub writes.
    pub fn wait_for(&self, what: Control, value: u64) {
        eventually(format_args!("{what:?} is {value}"), || {
            self.get(what) == value
        });
    }

    /// Resizes the image, and waits until the daemon has been called back.
    pub fn resize_by_another_client(&self, bytes: u64) {
        self.set(Control::ImageSize, bytes);
        self.wait_for(Control::AnnouncedSize, bytes);
    }

    pub fn node_size(&mut self, name: &str) -> u64 {
        node_size(&mut self.client, name)
    }

    pub fn wait_for_log(&self, text: &str) {
        eventually(text, || self.program.stderr().contains(text));
    }
}

pub(crate) fn node_size(client: &mut Client, name: &str) -> u64 {
    let size = &client.node(name)["image"]["virtual-size"];
    size.as_u64().unwrap()
}

fn set(control: &File, what: Control, value: u64) {
    let bytes = value.to_ne_bytes();
    control.write_all_at(&bytes, 8 * what as u64).unwrap();
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
