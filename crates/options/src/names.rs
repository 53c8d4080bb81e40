//! Registry of the names that options have defined so far, against which references, duplicates and shared sockets and
//! images are checked.
//!
//! Options take effect in the order of the command line, so an option may only refer to objects of earlier ones. The names of an
//! option that turns out to be wrong are removed again.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use crate::{
    Problem, SocketAddr,
    form::{NODE_NAME_FORM, NameForm, RUNNING_NODE_NAME_FORM},
    paths,
};

/// Most names an error lists.
const MAX_LISTED: usize = 12;

/// The names that are defined so far.
#[derive(Debug, Default)]
pub(crate) struct DefinedNames {
    /// Nodes; true if the node or a node below it is read-only.
    nodes: BTreeMap<String, bool>,
    /// Images that nodes lock, each with the first of these nodes, and whether it writes.
    images: BTreeMap<ImageName, (String, bool)>,
    /// Objects, each with its type.
    objects: BTreeMap<String, &'static str>,
    exports: BTreeSet<String>,
    has_nbd_server: bool,
    /// Names of NBD exports for clients.
    nbd_exports: BTreeSet<String>,
    /// Sockets, each with its user.
    sockets: BTreeMap<String, String>,
    /// Chardevs; true if a monitor uses it.
    chardevs: BTreeMap<String, bool>,
    unnamed_nodes: u32,
    /// Whether the options are those of a running daemon, with names that it generated.
    of_running_daemon: bool,
    /// Changes since the start, the latest last.
    changes: Vec<UndoableChange>,
}

/// What a node locks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum ImageName {
    /// A file or device of the host.
    File(PathBuf),
    /// Anything else, by a name that says where it is.
    Other(String),
}

/// A change that can be undone.
#[derive(Debug)]
enum UndoableChange {
    Node(String),
    Image(ImageName),
    Object(String),
    Export(String),
    NbdServer,
    NbdExport(String),
    Socket(String),
    Chardev(String),
    ChardevReserved(String),
    /// The count of unnamed nodes before it.
    UnnamedCount(u32),
}

/// A state to roll back to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Checkpoint(usize);

impl DefinedNames {
    /// No names yet, for the options of a running daemon: names of nodes may be generated ones.
    pub(crate) fn of_running_daemon() -> Self {
        DefinedNames {
            of_running_daemon: true,
            ..DefinedNames::default()
        }
    }

    /// The form of the name of a new node.
    pub(crate) fn form_of_new_node_name(&self) -> &'static NameForm {
        if self.of_running_daemon {
            &RUNNING_NODE_NAME_FORM
        } else {
            &NODE_NAME_FORM
        }
    }

    /// The current state.
    pub(crate) fn checkpoint(&self) -> Checkpoint {
        Checkpoint(self.changes.len())
    }

    /// Undoes all changes since.
    pub(crate) fn roll_back(&mut self, to: Checkpoint) {
        for change in self.changes.drain(to.0..).rev() {
            match change {
                UndoableChange::Node(name) => drop(self.nodes.remove(&name)),
                UndoableChange::Image(image) => drop(self.images.remove(&image)),
                UndoableChange::Object(id) => drop(self.objects.remove(&id)),
                UndoableChange::Export(id) => drop(self.exports.remove(&id)),
                UndoableChange::NbdServer => self.has_nbd_server = false,
                UndoableChange::NbdExport(name) => drop(self.nbd_exports.remove(&name)),
                UndoableChange::Socket(socket) => drop(self.sockets.remove(&socket)),
                UndoableChange::Chardev(id) => drop(self.chardevs.remove(&id)),
                UndoableChange::ChardevReserved(id) => drop(self.chardevs.insert(id, false)),
                UndoableChange::UnnamedCount(before) => self.unnamed_nodes = before,
            }
        }
    }

    /// A name for a node without a `node-name`. It starts with `#`, which users cannot write.
    pub(crate) fn generate_node_name(&mut self) -> String {
        self.changes
            .push(UndoableChange::UnnamedCount(self.unnamed_nodes));
        loop {
            let name = format!("#block{}", self.unnamed_nodes);
            self.unnamed_nodes += 1;
            // An earlier QMP command may have created a node of this name.
            if !self.nodes.contains_key(&name) {
                return name;
            }
        }
    }

    /// Adds a node. `read_only` is true as well if only a node below it is read-only.
    pub(crate) fn add_node(&mut self, name: &str, read_only: bool) -> Result<(), Problem> {
        if self.nodes.contains_key(name) {
            return Err(Problem::Duplicate {
                kind: "a node",
                name: name.to_owned(),
                key: "node-name",
            });
        }
        self.nodes.insert(name.to_owned(), read_only);
        self.changes.push(UndoableChange::Node(name.to_owned()));
        Ok(())
    }

    /// Adds the file of `key`, which a node locks. Only one node may use an image that is written.
    pub(crate) fn add_image_file(
        &mut self,
        key: &str,
        path: &Path,
        node: &str,
        writes: bool,
    ) -> Result<(), Problem> {
        let path = paths::without_redundant_components(path);
        self.add_image(key, ImageName::File(path), node, writes)
    }

    /// Adds the image of `key` that is no file, by a name that says where it is.
    pub(crate) fn add_remote_image(
        &mut self,
        key: &str,
        image: String,
        node: &str,
        writes: bool,
    ) -> Result<(), Problem> {
        self.add_image(key, ImageName::Other(image), node, writes)
    }

    fn add_image(
        &mut self,
        key: &str,
        image: ImageName,
        node: &str,
        writes: bool,
    ) -> Result<(), Problem> {
        match self.images.get(&image) {
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
                self.changes.push(UndoableChange::Image(image.clone()));
                self.images.insert(image, (node.to_owned(), writes));
                Ok(())
            }
        }
    }

    /// Whether the node is read-only; an error if there is no such node.
    pub(crate) fn node_is_read_only(&self, key: &str, name: &str) -> Result<bool, Problem> {
        self.nodes
            .get(name)
            .copied()
            .ok_or_else(|| not_defined_error(key, "node", name, self.nodes.keys()))
    }

    /// Adds an object of a type, which no other object may be called like.
    pub(crate) fn add_object(&mut self, r#type: &'static str, id: &str) -> Result<(), Problem> {
        if self.objects.contains_key(id) {
            return Err(Problem::Duplicate {
                kind: "an object",
                name: id.to_owned(),
                key: "id",
            });
        }
        self.objects.insert(id.to_owned(), r#type);
        self.changes.push(UndoableChange::Object(id.to_owned()));
        Ok(())
    }

    /// Checks that an object of a type is defined. `key` is the key that refers to it.
    pub(crate) fn check_object_defined(
        &self,
        key: &str,
        r#type: &'static str,
        id: &str,
    ) -> Result<(), Problem> {
        if self.objects.get(id) == Some(&r#type) {
            return Ok(());
        }
        let objects = self.objects.iter();
        let known = objects.filter_map(|(id, found)| (*found == r#type).then_some(id));
        Err(not_defined_error(key, r#type, id, known))
    }

    /// Adds a chardev; `listens` is its address if it is a server.
    pub(crate) fn add_chardev_and_socket(
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
        self.changes.push(UndoableChange::Chardev(id.to_owned()));
        let Some(addr) = listens else { return Ok(()) };
        let key = match addr {
            SocketAddr::Unix { .. } => "path",
            SocketAddr::Fd { .. } | SocketAddr::FdName { .. } => "fd",
        };
        self.add_socket(format!("chardev '{id}'"), addr, key)
    }

    /// Adds the socket that serves metrics.
    pub(crate) fn add_metrics_socket(&mut self, addr: &SocketAddr) -> Result<(), Problem> {
        self.add_socket("the endpoint for metrics".to_owned(), addr, "listen")
    }

    /// Reserves a chardev for a monitor.
    pub(crate) fn reserve_chardev(&mut self, key: &str, id: &str) -> Result<(), Problem> {
        match self.chardevs.get_mut(id) {
            Some(used) if *used => {
                let reason =
                    format!("chardev '{id}' is in use by another monitor; give each its own");
                Err(Problem::Conflict { reason })
            }
            Some(used) => {
                *used = true;
                self.changes
                    .push(UndoableChange::ChardevReserved(id.to_owned()));
                Ok(())
            }
            None => Err(not_defined_error(key, "chardev", id, self.chardevs.keys())),
        }
    }

    /// Assumes that a node, a chardev or an object of a type is defined, so that the options after it can be checked; the error was
    /// reported. A node is assumed to be writable. False if it is defined already.
    pub(crate) fn assume_defined(&mut self, kind: &'static str, name: &str) -> bool {
        let is_new = match kind {
            "node" => !self.nodes.contains_key(name),
            "chardev" => !self.chardevs.contains_key(name),
            _ => !self.objects.contains_key(name),
        };
        if !is_new {
            return false;
        }
        let name = name.to_owned();
        self.changes.push(match kind {
            "node" => {
                self.nodes.insert(name.clone(), false);
                UndoableChange::Node(name)
            }
            "chardev" => {
                self.chardevs.insert(name.clone(), false);
                UndoableChange::Chardev(name)
            }
            r#type => {
                self.objects.insert(name.clone(), r#type);
                UndoableChange::Object(name)
            }
        });
        true
    }

    /// Adds an export, and its socket if it has one.
    pub(crate) fn add_export_and_socket(
        &mut self,
        id: &str,
        addr: Option<&SocketAddr>,
    ) -> Result<(), Problem> {
        if !self.exports.insert(id.to_owned()) {
            return Err(Problem::Duplicate {
                kind: "an export",
                name: id.to_owned(),
                key: "id",
            });
        }
        self.changes.push(UndoableChange::Export(id.to_owned()));
        match addr {
            Some(addr) => self.add_socket(format!("export '{id}'"), addr, "addr"),
            None => Ok(()),
        }
    }

    /// Adds the NBD server, and its socket if it is a Unix socket.
    pub(crate) fn add_nbd_server(&mut self, addr: Option<&SocketAddr>) -> Result<(), Problem> {
        if self.has_nbd_server {
            let reason = "NBD server already running: there is one, for all exports".to_owned();
            return Err(Problem::Conflict { reason });
        }
        self.has_nbd_server = true;
        self.changes.push(UndoableChange::NbdServer);
        match addr {
            Some(addr) => self.add_socket("the NBD server".to_owned(), addr, "addr"),
            None => Ok(()),
        }
    }

    /// Checks that an NBD server is defined.
    pub(crate) fn check_nbd_server_defined(&self) -> Result<(), Problem> {
        if self.has_nbd_server {
            return Ok(());
        }
        let reason = "NBD server not running: clients connect to the server of --nbd-server, which comes before \
                      exports of type nbd"
            .to_owned();
        Err(Problem::Conflict { reason })
    }

    /// Assumes that an NBD server runs: for commands, which report that it does not.
    pub(crate) fn assume_nbd_server(&mut self) {
        self.has_nbd_server = true;
    }

    /// Adds the name of an NBD export.
    pub(crate) fn add_nbd_export_name(&mut self, name: &str) -> Result<(), Problem> {
        if !self.nbd_exports.insert(name.to_owned()) {
            let reason =
                format!("NBD server already has export named '{name}'; give each its own 'name'");
            return Err(Problem::Conflict { reason });
        }
        self.changes
            .push(UndoableChange::NbdExport(name.to_owned()));
        Ok(())
    }

    /// Adds the socket that `user` listens on; `key` is the key of its address.
    fn add_socket(&mut self, user: String, addr: &SocketAddr, key: &str) -> Result<(), Problem> {
        let socket = match addr {
            SocketAddr::Unix { path } => format!(
                "socket '{}'",
                paths::without_redundant_components(path).display()
            ),
            SocketAddr::Fd { fd } => format!("file descriptor {fd}"),
            SocketAddr::FdName { name } => format!("file descriptor '{name}'"),
        };
        if let Some(other) = self.sockets.get(&socket) {
            let reason =
                format!("{other} already listens on {socket}; {user} needs another '{key}'");
            return Err(Problem::Conflict { reason });
        }
        self.changes.push(UndoableChange::Socket(socket.clone()));
        self.sockets.insert(socket, user);
        Ok(())
    }
}

/// The error for a reference to an unknown name. It lists the names that could have been meant.
fn not_defined_error<'a>(
    key: &str,
    kind: &'static str,
    name: &str,
    known: impl Iterator<Item = &'a String>,
) -> Problem {
    // Generated names are of no help.
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
        name: crate::error::excerpt(name),
        known,
    }
}
