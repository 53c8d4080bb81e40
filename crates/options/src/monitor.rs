//! `--chardev` and `--monitor`: where QMP is spoken.
//!
//! Of chardevs only sockets exist, and only Unix ones. Defaults are those of qemu-storage-daemon.

use std::path::PathBuf;

use crate::{
    Problem, SocketAddr,
    fields::Fields,
    form::{AnyText, Choice, Form, ID, Switch, Unwritable},
    key::{Key, NotYet, ValueType, kind},
    names::Names,
    settings::settings,
    socket,
    tree::{Object, Value},
};

/// `--chardev socket,…`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChardevOptions {
    /// `path` or `fd`: the socket. A descriptor is only there with `server`.
    pub addr: SocketAddr,
    /// All other keys.
    pub settings: ChardevSettings,
}

settings! {
    /// Options of a chardev beside its address.
    pub struct ChardevSettings {
        /// the name a monitor refers to it by
        pub id: String = "id", ID, required("write id=NAME, such as id=qmp0");
        /// listen, or connect to who does (default off)
        pub server: bool = "server", Switch, default(false);
        /// with server=on: serve these users only; the umask has to let them connect (default with a path: who runs blockplane, and root)
        pub users: Option<Vec<u32>> = "users", Users, optional;
        /// with server=on: go on only when somebody has connected (default on)
        pub wait: Option<bool> = "wait", Switch, optional;
    }
    beside {
        /// the kind of chardev; may be written without its key
        "backend", "socket", ValueType::Words;
        /// path of the socket
        "path", "PATH", ValueType::Str;
        /// instead of path: number, or name, of a listening socket
        "fd", "FD", ValueType::Str;
    }
}

impl ChardevOptions {
    /// Whether to go on only when the first client has connected.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.settings.server && self.settings.wait.unwrap_or(true)
    }
}

settings! {
    /// `--monitor …`
    pub struct MonitorOptions {
        /// where it is; may be written without its key
        pub chardev: String = "chardev", AnyText, required("write chardev=ID with the id of a --chardev");
        /// spread answers over lines (default off)
        pub pretty: bool = "pretty", Switch, default(false);
    }
    accepts {
        /// only control (QMP) for now
        "mode", MODE;
    }
}

const MODE: Choice<()> = Choice {
    words: &[("control", ())],
    not_yet: &[NotYet {
        name: "readline",
        instead: "the one mode is control (QMP)",
    }],
    shown: "control",
};

/// Users by number, with colons between them: a name may mean another user tomorrow.
struct Users;

impl Users {
    const fn key(&self, name: &'static str, help: &'static str) -> Key {
        Key::new(name, "UID:…", help, ValueType::Str)
    }
}

impl Form for Users {
    type Value = Vec<u32>;

    fn read(&self, path: &str, value: Value) -> Result<Vec<u32>, Problem> {
        let text = match &value {
            Value::Text(text) | Value::String(text) | Value::Number(text) => text,
            _ => "",
        };
        let users: Result<Vec<u32>, _> = text.split(':').map(str::parse).collect();
        users.map_err(|_| Problem::BadValue {
            key: path.to_owned(),
            value: value.shown(),
            expected:
                "numbers of users with colons between them, such as 0:64055 (id -u NAME says them)"
                    .to_owned(),
        })
    }

    fn write(&self, value: &Vec<u32>) -> Result<Value, Unwritable> {
        let users: Vec<String> = value.iter().map(u32::to_string).collect();
        Ok(Value::String(users.join(":")))
    }
}

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
    let mut fields = Fields::new(object, "", &[ChardevSettings::KEYS], CHARDEV_KEYS_NOT_YET)?;
    fields.take("backend");
    let settings = ChardevSettings::read(&mut fields, None)?;
    let conflict = |reason: &str| {
        Err(Problem::Conflict {
            reason: reason.to_owned(),
        })
    };
    let for_servers = [
        ("wait", settings.wait.is_some()),
        ("users", settings.users.is_some()),
    ];
    if let Some((key, _)) = for_servers
        .iter()
        .find(|(_, is_there)| *is_there && !settings.server)
    {
        return conflict(&format!(
            "'{key}' is for sockets that somebody connects to; add 'server=on', or remove '{key}'"
        ));
    }
    let fd = inherited_socket(&mut fields)?;
    let path = fields.value("path", &AnyText)?;
    let addr = match (path, fd) {
        (Some(_), Some(_)) => return conflict("'path' and 'fd' both name the socket; remove one"),
        (None, None) => {
            return Err(fields.missing("path", "write path=PATH with the path of a Unix socket"));
        }
        (None, Some(_)) if !settings.server => {
            return conflict("'fd' is a listening socket; add 'server=on'");
        }
        (None, Some(fd)) => fd,
        (Some(path), None) if !socket::is_socket_path(path.as_bytes()) => {
            return Err(fields.bad_text("path", &path, socket::SOCKET_EXPECTED));
        }
        (Some(path), None) => SocketAddr::Unix {
            path: PathBuf::from(path),
        },
    };
    fields.finish();
    names.add_chardev(&settings.id, settings.server.then_some(&addr))?;
    Ok(ChardevOptions { addr, settings })
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
    let socket = socket::read_fd(text);
    let wrong = || fields.bad_text("fd", &value.shown(), socket::FD_EXPECTED);
    socket.map(Some).ok_or_else(wrong)
}

/// Reads the tree of one `--monitor`.
pub(crate) fn monitor(object: Object, names: &mut Names) -> Result<MonitorOptions, Problem> {
    let mut fields = Fields::new(object, "", &[MonitorOptions::KEYS], &[])?;
    let monitor = MonitorOptions::read(&mut fields, None)?;
    fields.finish();
    names.use_chardev("chardev", &monitor.chardev)?;
    Ok(monitor)
}
