//! `--chardev` and `--monitor`: where QMP is spoken.
//!
//! Of chardevs only sockets exist, and only Unix ones. Defaults are those of qemu-storage-daemon.

use std::path::PathBuf;

use crate::{
    Problem, SocketAddr,
    fields::{Fields, Key, NotYet, kind},
    inherited, limits,
    names::{MAX_ID_BYTES, Names},
    tree::{Object, Value},
};

/// `--chardev socket,…`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChardevOptions {
    /// `id`: the name a monitor refers to it by.
    pub id: String,
    /// `path` or `fd`: the socket. A descriptor is only there with `server`.
    pub addr: SocketAddr,
    /// `server`: listen; else connect to somebody who does. Default off.
    pub server: bool,
    /// `users`: numbers of the users who are served, with `server`. `None`: this process's own and root, and for `fd` whoever
    /// can connect.
    pub users: Option<Vec<u32>>,
    /// `wait`: go on only when the first client has connected; never without `server`. Default on.
    pub wait: bool,
}

/// `--monitor …`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MonitorOptions {
    /// `chardev`: where; checked to exist, and named by one monitor only.
    pub chardev: String,
    /// `pretty`: answers are spread over lines. Default off.
    pub pretty: bool,
}

pub(crate) const CHARDEV_KEYS: &[Key] = &[
    Key {
        name: "backend",
        value: "socket",
        help: "the kind of chardev; may be written without its key",
    },
    Key {
        name: "id",
        value: "NAME",
        help: "the name a monitor refers to it by",
    },
    Key {
        name: "path",
        value: "PATH",
        help: "path of the socket",
    },
    Key {
        name: "fd",
        value: "FD",
        help: "instead of path: number, or name, of a listening socket",
    },
    Key {
        name: "server",
        value: "on|off",
        help: "listen, or connect to who does (default off)",
    },
    Key {
        name: "users",
        value: "UID:…",
        help: "with server=on: serve these users only; the umask has to let them connect (default with a path: who runs blockplane, and root)",
    },
    Key {
        name: "wait",
        value: "on|off",
        help: "with server=on: go on only when somebody has connected (default on)",
    },
];

pub(crate) const MONITOR_KEYS: &[Key] = &[
    Key {
        name: "chardev",
        value: "NAME",
        help: "where it is; may be written without its key",
    },
    Key {
        name: "mode",
        value: "control",
        help: "only control (QMP) for now",
    },
    Key {
        name: "pretty",
        value: "on|off",
        help: "spread answers over lines (default off)",
    },
];

macro_rules! not_yet {
    ($instead:literal: $($name:literal)*) => { &[$(NotYet { name: $name, instead: $instead }),*] };
}

const CHARDEV_KEYS_NOT_YET: &[NotYet] = not_yet!["leave it out: sockets are Unix sockets at a path":
    "abstract" "append" "cols" "delay" "height" "host" "input" "ipv4" "ipv6" "localaddr" "localport" "logappend"
    "logfile" "mux" "name" "nodelay" "port" "reconnect" "reconnect-ms" "rows" "signal" "size" "telnet" "tight"
    "tls-authz" "tls-creds" "tn3270" "to" "websocket" "width"];

#[derive(Clone, Copy)]
pub(crate) enum Backend {
    Socket,
}

pub(crate) const BACKENDS: &[(&str, Backend)] = &[("socket", Backend::Socket)];

#[rustfmt::skip]
const BACKENDS_NOT_YET: &[&str] = &[
    "dbus", "file", "hub", "memory", "msmouse", "mux", "null", "parallel", "pipe", "pty", "ringbuf", "serial", "stdio", "udp", "vc",
];

/// Reads the tree of one `--chardev` and notes its name.
pub(crate) fn chardev(object: Object, names: &mut Names) -> Result<ChardevOptions, Problem> {
    let Backend::Socket = kind(&object, "", "backend", BACKENDS, BACKENDS_NOT_YET)?;
    let mut fields = Fields::new(object, "", &[CHARDEV_KEYS], CHARDEV_KEYS_NOT_YET)?;
    fields.take("backend");
    let id = fields
        .identifier("id", MAX_ID_BYTES)?
        .ok_or_else(|| Problem::Missing {
            key: "id".to_owned(),
            expected: "write id=NAME, such as id=qmp0".to_owned(),
        })?;
    let server = fields.boolean("server")?.unwrap_or(false);
    let wait = fields.boolean("wait")?;
    let conflict = |reason: &str| {
        Err(Problem::Conflict {
            reason: reason.to_owned(),
        })
    };
    if wait.is_some() && !server {
        return conflict(
            "'wait' is for sockets that somebody connects to; add 'server=on', or remove 'wait'",
        );
    }
    let users = users(&mut fields, server)?;
    let fd = inherited_socket(&mut fields)?;
    let path = fields.string("path")?;
    let addr = match (path, fd) {
        (Some(_), Some(_)) => return conflict("'path' and 'fd' both name the socket; remove one"),
        (None, None) => {
            return Err(Problem::Missing {
                key: "path".to_owned(),
                expected: "write path=PATH with the path of a Unix socket".to_owned(),
            });
        }
        (None, Some(_)) if !server => {
            return conflict("'fd' is a listening socket; add 'server=on'");
        }
        (None, Some(fd)) => fd,
        (Some(path), None) if !limits::is_socket_path(path.as_bytes()) => {
            return Err(fields.bad_text("path", &path, limits::SOCKET_EXPECTED));
        }
        (Some(path), None) => SocketAddr::Unix {
            path: PathBuf::from(path),
        },
    };
    fields.finish();
    names.add_chardev(&id, server.then_some(&addr))?;
    Ok(ChardevOptions {
        id,
        addr,
        server,
        users,
        wait: server && wait.unwrap_or(true),
    })
}

/// Users by number: a name may mean somebody else tomorrow.
fn users(fields: &mut Fields, server: bool) -> Result<Option<Vec<u32>>, Problem> {
    let Some(value) = fields.take("users") else {
        return Ok(None);
    };
    if !server {
        let reason =
            "'users' is for sockets that somebody connects to; add 'server=on', or remove 'users'";
        return Err(Problem::Conflict {
            reason: reason.to_owned(),
        });
    }
    let text = match &value {
        Value::Text(text) | Value::String(text) | Value::Number(text) => text,
        _ => "",
    };
    let users: Result<Vec<u32>, _> = text.split(':').map(str::parse).collect();
    let wrong = |_| {
        let expected =
            "numbers of users with colons between them, such as 0:64055 (id -u NAME says them)";
        fields.bad_text("users", &value.shown(), expected)
    };
    users.map(Some).map_err(wrong)
}

/// A number is one also without quotes.
fn inherited_socket(fields: &mut Fields) -> Result<Option<SocketAddr>, Problem> {
    let Some(value) = fields.take("fd") else {
        return Ok(None);
    };
    let text = match &value {
        Value::Text(text) | Value::String(text) | Value::Number(text) => text,
        _ => "",
    };
    let socket = inherited::read(text);
    let wrong = || fields.bad_text("fd", &value.shown(), inherited::EXPECTED);
    socket.map(Some).ok_or_else(wrong)
}

/// Reads the tree of one `--monitor`.
pub(crate) fn monitor(object: Object, names: &mut Names) -> Result<MonitorOptions, Problem> {
    let mut fields = Fields::new(object, "", &[MONITOR_KEYS], &[])?;
    let chardev = fields.required("chardev", "write chardev=ID with the id of a --chardev")?;
    let readline = NotYet {
        name: "readline",
        instead: "the one mode is control (QMP)",
    };
    fields.choice("mode", &[("control", ())], &[readline])?;
    let pretty = fields.boolean("pretty")?.unwrap_or(false);
    fields.finish();
    names.use_chardev("chardev", &chardev)?;
    Ok(MonitorOptions { chardev, pretty })
}
