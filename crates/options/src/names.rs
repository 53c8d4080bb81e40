//! The names given so far: who may be referred to, and which names are taken.
//!
//! Options are carried out in the order of the command line, so an option may only refer to what
//! stands before it. One that turns out to be wrong has given no names: what it noted is taken back.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use crate::{Problem, SocketAddr, paths};

/// Most names an error lists.
const MAX_LISTED: usize = 12;

/// The names given so far.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Node to whether it, or something below it, refuses writes.
    nodes: BTreeMap<String, bool>,
    /// Image that nodes lock to the first of them, and whether it writes.
    images: BTreeMap<PathBuf, (String, bool)>,
    iothreads: BTreeSet<String>,
    exports: BTreeSet<String>,
    /// Socket to who listens on it.
    sockets: BTreeMap<String, String>,
    /// Chardev to whether a monitor has it.
    chardevs: BTreeMap<String, bool>,
    unnamed_nodes: u32,
    /// How to take back what was noted, the latest last.
    noted: Vec<Noted>,
}

/// One thing that was noted.
#[derive(Debug)]
enum Noted {
    Node(String),
    Image(PathBuf),
    Iothread(String),
    Export(String),
    Socket(String),
    Chardev(String),
    ChardevUse(String),
    Unnamed(u32),
}

/// A moment to go back to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark(usize);

impl Names {
    /// This moment.
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.noted.len())
    }

    /// Takes back all that was noted since.
    pub(crate) fn go_back(&mut self, to: Mark) {
        for noted in self.noted.drain(to.0..).rev() {
            match noted {
                Noted::Node(name) => drop(self.nodes.remove(&name)),
                Noted::Image(path) => drop(self.images.remove(&path)),
                Noted::Iothread(id) => drop(self.iothreads.remove(&id)),
                Noted::Export(id) => drop(self.exports.remove(&id)),
                Noted::Socket(socket) => drop(self.sockets.remove(&socket)),
                Noted::Chardev(id) => drop(self.chardevs.remove(&id)),
                Noted::ChardevUse(id) => drop(self.chardevs.insert(id, false)),
                Noted::Unnamed(number) => self.unnamed_nodes = number,
            }
        }
    }

    /// A name for a node that was given none. No user can write it: it starts with `#`.
    pub(crate) fn unnamed_node(&mut self) -> String {
        self.noted.push(Noted::Unnamed(self.unnamed_nodes));
        loop {
            let name = format!("#block{}", self.unnamed_nodes);
            self.unnamed_nodes += 1;
            // One may be left from an earlier command of a monitor.
            if !self.nodes.contains_key(&name) {
                return name;
            }
        }
    }

    pub(crate) fn add_node(&mut self, name: &str, read_only: bool) -> Result<(), Problem> {
        if self.nodes.contains_key(name) {
            return Err(Problem::Duplicate {
                kind: "a node",
                name: name.to_owned(),
                key: "node-name",
            });
        }
        self.nodes.insert(name.to_owned(), read_only);
        self.noted.push(Noted::Node(name.to_owned()));
        Ok(())
    }

    /// A node locks the image that `key` names. Whoever writes it is alone.
    pub(crate) fn add_image(
        &mut self,
        key: &str,
        path: &Path,
        node: &str,
        writes: bool,
    ) -> Result<(), Problem> {
        let path = paths::plain(path);
        match self.images.get(&path) {
            Some((other, other_writes)) if writes || *other_writes => {
                let reason = format!(
                    "'{key}' names the image of node '{other}' as well: an image that is written belongs to one node. \
                     Show parts of that node by nodes with driver=raw, or read the image only (read-only=on, in both), \
                     or set locking=off in both if you know that they do not harm each other"
                );
                Err(Problem::Conflict { reason })
            }
            Some(_) => Ok(()),
            None => {
                self.noted.push(Noted::Image(path.clone()));
                self.images.insert(path, (node.to_owned(), writes));
                Ok(())
            }
        }
    }

    /// Whether the node refuses writes; an error if there is none of that name.
    pub(crate) fn node_is_read_only(&self, key: &str, name: &str) -> Result<bool, Problem> {
        self.nodes
            .get(name)
            .copied()
            .ok_or_else(|| not_defined(key, "node", name, self.nodes.keys()))
    }

    pub(crate) fn add_iothread(&mut self, id: &str) -> Result<(), Problem> {
        if !self.iothreads.insert(id.to_owned()) {
            return Err(Problem::Duplicate {
                kind: "an object",
                name: id.to_owned(),
                key: "id",
            });
        }
        self.noted.push(Noted::Iothread(id.to_owned()));
        Ok(())
    }

    pub(crate) fn check_iothread(&self, key: &str, id: &str) -> Result<(), Problem> {
        if self.iothreads.contains(id) {
            return Ok(());
        }
        Err(not_defined(key, "iothread", id, self.iothreads.iter()))
    }

    /// A chardev; `listens` is where others connect to it, if they do.
    pub(crate) fn add_chardev(
        &mut self,
        id: &str,
        listens: Option<&SocketAddr>,
    ) -> Result<(), Problem> {
        if self.chardevs.contains_key(id) {
            return Err(Problem::Duplicate {
                kind: "a chardev",
                name: id.to_owned(),
                key: "id",
            });
        }
        self.chardevs.insert(id.to_owned(), false);
        self.noted.push(Noted::Chardev(id.to_owned()));
        let Some(addr) = listens else { return Ok(()) };
        let key = match addr {
            SocketAddr::Unix { .. } => "path",
            SocketAddr::Fd { .. } | SocketAddr::FdName { .. } => "fd",
        };
        self.add_socket(format!("chardev '{id}'"), addr, key)
    }

    /// Figures are served there.
    pub(crate) fn add_metrics(&mut self, addr: &SocketAddr) -> Result<(), Problem> {
        self.add_socket("the endpoint for metrics".to_owned(), addr, "listen")
    }

    /// A monitor takes a chardev, which no other monitor then can.
    pub(crate) fn use_chardev(&mut self, key: &str, id: &str) -> Result<(), Problem> {
        match self.chardevs.get_mut(id) {
            Some(used) if *used => {
                let reason =
                    format!("chardev '{id}' is in use by another monitor; give each its own");
                Err(Problem::Conflict { reason })
            }
            Some(used) => {
                *used = true;
                self.noted.push(Noted::ChardevUse(id.to_owned()));
                Ok(())
            }
            None => Err(not_defined(key, "chardev", id, self.chardevs.keys())),
        }
    }

    /// Takes something for defined, so that what follows can be judged; its mistake was reported. A node may be
    /// written. False if it is defined already.
    pub(crate) fn pretend(&mut self, kind: &str, name: &str) -> bool {
        let is_new = match kind {
            "iothread" => !self.iothreads.contains(name),
            "node" => !self.nodes.contains_key(name),
            _ => !self.chardevs.contains_key(name),
        };
        if !is_new {
            return false;
        }
        let name = name.to_owned();
        self.noted.push(match kind {
            "iothread" => {
                self.iothreads.insert(name.clone());
                Noted::Iothread(name)
            }
            "node" => {
                self.nodes.insert(name.clone(), false);
                Noted::Node(name)
            }
            _ => {
                self.chardevs.insert(name.clone(), false);
                Noted::Chardev(name)
            }
        });
        true
    }

    pub(crate) fn add_export(&mut self, id: &str, addr: &SocketAddr) -> Result<(), Problem> {
        if !self.exports.insert(id.to_owned()) {
            return Err(Problem::Duplicate {
                kind: "an export",
                name: id.to_owned(),
                key: "id",
            });
        }
        self.noted.push(Noted::Export(id.to_owned()));
        self.add_socket(format!("export '{id}'"), addr, "addr")
    }

    /// `user` listens there, as its `key` says.
    fn add_socket(&mut self, user: String, addr: &SocketAddr, key: &str) -> Result<(), Problem> {
        let socket = match addr {
            SocketAddr::Unix { path } => format!("socket '{}'", paths::plain(path).display()),
            SocketAddr::Fd { fd } => format!("file descriptor {fd}"),
            SocketAddr::FdName { name } => format!("file descriptor '{name}'"),
        };
        if let Some(other) = self.sockets.get(&socket) {
            let reason =
                format!("{other} already listens on {socket}; {user} needs another '{key}'");
            return Err(Problem::Conflict { reason });
        }
        self.noted.push(Noted::Socket(socket.clone()));
        self.sockets.insert(socket, user);
        Ok(())
    }
}

fn not_defined<'a>(
    key: &str,
    kind: &'static str,
    name: &str,
    known: impl Iterator<Item = &'a String>,
) -> Problem {
    // Names that no user wrote are of no help.
    let mut known: Vec<String> = known
        .filter(|name| !name.starts_with('#'))
        .take(MAX_LISTED + 1)
        .cloned()
        .collect();
    if known.len() > MAX_LISTED {
        known[MAX_LISTED] = "…".to_owned();
    }
    Problem::NotDefined {
        key: key.to_owned(),
        kind,
        name: crate::error::shown(name),
        known,
    }
}
