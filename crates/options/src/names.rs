//! The names given so far: who may be referred to, and which names are taken.
//!
//! Options are carried out in the order of the command line, so an option may only refer to what
//! stands before it.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Problem, SocketAddr};

/// Longest `node-name` in bytes, as in qemu-storage-daemon.
pub(crate) const MAX_NODE_NAME_BYTES: usize = 31;
/// Longest id of an object or export. There is no limit in the field; this one keeps log lines readable.
pub(crate) const MAX_ID_BYTES: usize = 127;
/// Most names an error lists.
const MAX_LISTED: usize = 12;

/// The names given so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Names {
    /// Node to whether it, or something below it, refuses writes.
    nodes: BTreeMap<String, bool>,
    iothreads: BTreeSet<String>,
    exports: BTreeSet<String>,
    /// Socket to the export that listens on it.
    sockets: BTreeMap<String, String>,
    /// Chardev to whether a monitor has it.
    chardevs: BTreeMap<String, bool>,
    unnamed_nodes: u32,
}

impl Names {
    /// A name for a node that was given none. No user can write it: it starts with `#`.
    pub(crate) fn unnamed_node(&mut self) -> String {
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
        if self.nodes.insert(name.to_owned(), read_only).is_some() {
            return Err(Problem::Duplicate {
                kind: "a node",
                name: name.to_owned(),
                key: "node-name",
            });
        }
        Ok(())
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
        Ok(())
    }

    pub(crate) fn check_iothread(&self, key: &str, id: &str) -> Result<(), Problem> {
        if self.iothreads.contains(id) {
            return Ok(());
        }
        Err(not_defined(key, "iothread", id, self.iothreads.iter()))
    }

    pub(crate) fn add_chardev(&mut self, id: &str) -> Result<(), Problem> {
        if self.chardevs.insert(id.to_owned(), false).is_some() {
            return Err(Problem::Duplicate {
                kind: "a chardev",
                name: id.to_owned(),
                key: "id",
            });
        }
        Ok(())
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
                Ok(())
            }
            None => Err(not_defined(key, "chardev", id, self.chardevs.keys())),
        }
    }

    /// Takes something for defined, so that what follows can be judged; its mistake was reported. A node may be
    /// written. False if it is defined already.
    pub(crate) fn pretend(&mut self, kind: &str, name: &str) -> bool {
        let name = name.to_owned();
        if kind == "iothread" {
            return self.iothreads.insert(name);
        }
        let map = match kind {
            "node" => &mut self.nodes,
            _ => &mut self.chardevs,
        };
        let is_new = !map.contains_key(&name);
        map.entry(name).or_insert(false);
        is_new
    }

    pub(crate) fn add_export(&mut self, id: &str, addr: &SocketAddr) -> Result<(), Problem> {
        if !self.exports.insert(id.to_owned()) {
            return Err(Problem::Duplicate {
                kind: "an export",
                name: id.to_owned(),
                key: "id",
            });
        }
        let socket = match addr {
            SocketAddr::Unix { path } => format!("socket '{}'", path.display()),
            SocketAddr::Fd { fd } => format!("file descriptor {fd}"),
            SocketAddr::FdName { name } => format!("file descriptor '{name}'"),
        };
        match self.sockets.insert(socket.clone(), id.to_owned()) {
            None => Ok(()),
            Some(other) => {
                let reason = format!(
                    "export '{other}' already listens on {socket}; export '{id}' needs another 'addr'"
                );
                Err(Problem::Conflict { reason })
            }
        }
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
