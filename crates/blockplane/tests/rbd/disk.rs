//! An image of a test, and the options that serve it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use test_support::ceph::Cluster;
use test_support::deadline::eventually;

use crate::MIB;
use crate::client::Client;
use crate::process::{Folder, Process};
use crate::request_driver::{IN, RequestDriver};

/// Bytes of an object of the images: small, so that few requests use several.
pub const OBJECT: u64 = 64 << 10;

/// The socket of the disk.
pub const SOCKET: &str = "s";

/// An image of the pool `rbd`.
#[derive(Clone, Copy)]
pub struct Disk<'a> {
    pub cluster: &'a Cluster,
    pub name: &'static str,
}

impl<'a> Disk<'a> {
    /// Creates an image of 1 MiB.
    pub fn create(cluster: &'a Cluster, name: &'static str) -> Self {
        Self::create_with_size(cluster, name, MIB)
    }

    pub fn create_with_size(cluster: &'a Cluster, name: &'static str, bytes: u64) -> Self {
        let (size, object) = (format!("{bytes}B"), format!("{OBJECT}B"));
        cluster.rbd(["create", "--size", &size, "--object-size", &object, name]);
        Disk { cluster, name }
    }

    /// An image that exists, such as a snapshot.
    pub fn existing(cluster: &'a Cluster, name: &'static str) -> Self {
        Disk { cluster, name }
    }

    /// Another client changes its size.
    pub fn resize(&self, bytes: u64) {
        let size = format!("{bytes}B");
        let how = ["resize", "--no-progress", "--allow-shrink", "--size"];
        self.cluster.rbd(how.into_iter().chain([&*size, self.name]));
    }

    /// Options of a node `d`, without the driver's name.
    pub fn node(&self) -> String {
        let (name, conf) = (self.name, self.cluster.conf());
        format!("node-name=d,pool=rbd,image={name},conf={}", conf.display())
    }

    /// Its name for `blockplane serve` and for QEMU.
    pub fn uri(&self) -> String {
        let (name, conf) = (self.name, self.cluster.conf());
        format!("rbd:rbd/{name}:conf={}", conf.display())
    }

    /// The node and its export, with a configuration of Ceph that has one more line.
    pub fn line_with_setting(&self, file: &str, setting: &str) -> String {
        let conf = self.cluster.conf();
        let text = fs::read_to_string(&conf).unwrap();
        // Beside the keyring, which the sandbox allows with it.
        let changed: PathBuf = conf.with_file_name(file);
        fs::write(&changed, format!("{text}{setting}\n")).unwrap();
        let [conf, changed] = [conf, changed].map(|path| path.display().to_string());
        self.line().replace(&conf, &changed)
    }

    /// Arguments of `blockdev-add` for such a node.
    pub fn node_json(&self, node: &str) -> Value {
        json!({"driver": "rbd", "node-name": node, "pool": "rbd", "image": self.name, "conf": self.cluster.conf()})
    }

    /// The node, and a writable export of it.
    pub fn line(&self) -> String {
        self.line_with("", "")
    }

    /// The same with more options of each, which begin with a comma.
    pub fn line_with(&self, node: &str, export: &str) -> String {
        let (disk, export) = (self.node(), export_of("d", export));
        format!("--blockdev rbd,{disk}{node} {export}")
    }

    /// Adds a writable export of such a node.
    pub fn add_to(&self, client: &mut Client) {
        client.done("blockdev-add", self.node_json("d"));
        add_export(client, "d");
    }

    /// Its whole content, read by `rbd export`.
    pub fn content(&self) -> Vec<u8> {
        let folder = Folder::new();
        let file = folder.join("content");
        self.cluster
            .rbd(["export", "--no-progress", self.name, file.to_str().unwrap()]);
        fs::read(file).unwrap()
    }

    /// Runs `rbd` with these arguments, which fails; returns what it says.
    #[track_caller]
    pub fn rbd_fails<const N: usize>(&self, args: [&str; N]) -> String {
        let mut command = Command::new("rbd");
        command.arg("--conf").arg(self.cluster.conf()).args(args);
        let output = Process::spawn(command).ended();
        assert_ne!(output.code, Some(0), "{output:?}");
        output.stderr
    }

    /// Numbers of objects that have data, as `rbd diff` lists them.
    pub fn objects(&self) -> Vec<u64> {
        let list = self
            .cluster
            .rbd(["diff", "--whole-object", "--format", "json", self.name]);
        let list: Vec<Value> = serde_json::from_str(&list).unwrap();
        let with_data = list.iter().filter(|part| part["exists"] == "true");
        let objects = with_data.flat_map(|part| {
            let [offset, length] = ["offset", "length"].map(|key| part[key].as_u64().unwrap());
            offset / OBJECT..(offset + length).div_ceil(OBJECT)
        });
        objects.collect()
    }

    /// The address of the holder of the exclusive lock.
    pub fn lock_holder(&self) -> Option<String> {
        let list = self
            .cluster
            .rbd(["lock", "ls", "--format", "json", self.name]);
        let list: Vec<Value> = serde_json::from_str(&list).unwrap();
        let first = list.first()?;
        Some(first["address"].as_str().unwrap().to_owned())
    }

    /// The number of clients that have it open for writing.
    pub fn watchers(&self) -> usize {
        let status = self.cluster.rbd(["status", "--format", "json", self.name]);
        let status: Value = serde_json::from_str(&status).unwrap();
        status["watchers"].as_array().unwrap().len()
    }

    /// Waits until no client has it open for writing.
    pub fn is_closed(&self) {
        eventually("nothing watches the image", || self.watchers() == 0);
    }
}

/// A writable export of a node, with more options, which begin with a comma.
pub fn export_of(node: &str, options: &str) -> String {
    format!(
        "--export vhost-user-blk,id=e,node-name={node},addr.type=unix,addr.path={SOCKET},writable=on{options}"
    )
}

/// The same by a monitor.
pub fn add_export(client: &mut Client, node: &str) {
    let export = format!("id=e node-name={node} addr.type=unix addr.path={SOCKET} writable=true");
    client.execute(&format!("block-export-add type=vhost-user-blk {export}"));
}

/// Removes the export and its node.
pub fn remove_export(client: &mut Client, node: &str) {
    client.execute("block-export-del id=e mode=hard");
    client.event("BLOCK_EXPORT_DELETED", "e");
    client.done("blockdev-del", json!({"node-name": node}));
}

/// A block that is read.
pub fn read(guest: &mut RequestDriver, block: u64) -> Vec<u8> {
    guest.request(0, IN, block, 0);
    guest.data(0, 0)
}
