//! `--chardev` and `--monitor`: the options of QMP sockets, and the functions that parse them.
//!
//! The only chardevs are Unix sockets. Defaults are those of qemu-storage-daemon.

use std::path::PathBuf;

use crate::{
    Problem, SocketAddr,
    fields::Fields,
    form::{AnyTextForm, ChoiceForm, ID_FORM, NonUtf8Path, SwitchForm, ValueForm},
    key::{KeySpec, UnsupportedName, ValueType, read_kind},
    names::DefinedNames,
    settings::settings,
    socket,
    tree::{Object, Value},
};

/// `--chardev socket,…`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChardevOptions {
    /// `path` or `fd`: the socket. It is inherited only with `server`.
    pub addr: SocketAddr,
    /// All other keys.
    pub settings: CommonChardevOptions,
}

settings! {
    /// Options of a chardev beside its address.
    pub struct CommonChardevOptions {
        /// its name, for monitors
        pub id: String = "id", ID_FORM, required("write id=NAME, such as id=qmp0");
        /// listen for clients, or connect to a server (default off)
        pub server: bool = "server", SwitchForm, default(false);
        /// with server=on: serve these users only; the umask has to let them connect
        /// (default with a path: the user of blockplane, and root)
        pub users: Option<Vec<u32>> = "users", UserIdListForm, optional;
        /// with server=on: wait for a client before going on (default on)
        pub wait: Option<bool> = "wait", SwitchForm, optional;
    }
    beside {
        /// the kind of chardev; its key may be omitted
        "backend", "socket", ValueType::Words;
        /// path of the socket
        "path", "PATH", ValueType::Str;
        /// instead of path: number, or name, of a listening socket
        "fd", "FD", ValueType::Str;
    }
}

impl ChardevOptions {
    /// Whether to wait for the first client before going on.
    #[must_use]
    pub fn waits_for_client(&self) -> bool {
        self.settings.server && self.settings.wait.unwrap_or(true)
    }
}

settings! {
    /// `--monitor …`
    pub struct MonitorOptions {
        /// the chardev; its key may be omitted
        pub chardev: String = "chardev", AnyTextForm, required("write chardev=ID with the id of a --chardev");
        /// indent responses over several lines (default off)
        pub pretty: bool = "pretty", SwitchForm, default(false);
    }
    accepts {
        /// only control (QMP) for now
        "mode", MODE_FORM;
    }
}

const MODE_FORM: ChoiceForm<()> = ChoiceForm {
    words: &[("control", ())],
    unsupported: &[UnsupportedName {
        name: "readline",
        instead: "the only mode is control (QMP)",
    }],
    placeholder: "control",
};

/// Numbers of users, separated by colons. Names are not supported, since their meaning may change.
struct UserIdListForm;

impl UserIdListForm {
    /// A key whose values have this form.
    const fn define_key(&self, name: &'static str, help: &'static str) -> KeySpec {
        KeySpec::new(name, "UID:…", help, ValueType::Str)
    }
}

impl ValueForm for UserIdListForm {
    type Value = Vec<u32>;

    fn read(&self, key: &str, value: Value) -> Result<Vec<u32>, Problem> {
        let text = match &value {
            Value::Text(text) | Value::String(text) | Value::Number(text) => text,
            _ => "",
        };
        let users: Result<Vec<u32>, _> = text.split(':').map(str::parse).collect();
        users.map_err(|_| Problem::BadValue {
            key: key.to_owned(),
            value: value.excerpt(),
            expected:
                "numbers of users, separated by colons, such as 0:64055 (id -u NAME prints them)"
                    .to_owned(),
        })
    }

    fn to_value(&self, value: &Vec<u32>) -> Result<Value, NonUtf8Path> {
        let users: Vec<String> = value.iter().map(u32::to_string).collect();
        Ok(Value::String(users.join(":")))
    }
}

macro_rules! unsupported {
    ($instead:literal: $($name:literal)*) => { &[$(UnsupportedName { name: $name, instead: $instead }),*] };
}

const UNSUPPORTED_CHARDEV_KEYS: &[UnsupportedName] = unsupported!["leave it out: sockets are Unix sockets at a path":
    "abstract" "append" "cols" "delay" "height" "host" "input" "ipv4" "ipv6" "localaddr" "localport" "logappend"
    "logfile" "mux" "name" "nodelay" "port" "reconnect" "reconnect-ms" "rows" "signal" "size" "telnet" "tight"
    "tls-authz" "tls-creds" "tn3270" "to" "websocket" "width"];

/// Kinds of chardevs.
#[derive(Clone, Copy)]
pub(crate) enum ChardevBackend {
    Socket,
}

pub(crate) const BACKENDS: &[(&str, ChardevBackend)] = &[("socket", ChardevBackend::Socket)];

#[rustfmt::skip]
const UNSUPPORTED_BACKENDS: &[&str] = &[
    "dbus", "file", "hub", "memory", "msmouse", "mux", "null", "parallel", "pipe", "pty", "ringbuf", "serial", "stdio", "udp", "vc",
];

/// Reads the tree of a `--chardev`, and adds its name.
pub(crate) fn read_and_register_chardev(
    object: Object,
    names: &mut DefinedNames,
) -> Result<ChardevOptions, Problem> {
    let ChardevBackend::Socket = read_kind(&object, "", "backend", BACKENDS, UNSUPPORTED_BACKENDS)?;
    let mut fields = Fields::with_known_keys(
        object,
        "",
        &[CommonChardevOptions::KEYS],
        UNSUPPORTED_CHARDEV_KEYS,
    )?;
    fields.take_raw("backend");
    let settings = CommonChardevOptions::read(&mut fields, None)?;
    let conflict = |reason: &str| {
        Err(Problem::Conflict {
            reason: reason.to_owned(),
        })
    };
    let server_keys = [
        ("wait", settings.wait.is_some()),
        ("users", settings.users.is_some()),
    ];
    if let Some((key, _)) = server_keys
        .iter()
        .find(|(_, is_given)| *is_given && !settings.server)
    {
        return conflict(&format!(
            "'{key}' is for servers; add 'server=on', or remove '{key}'"
        ));
    }
    let fd = take_inherited_socket(&mut fields)?;
    let path = fields.take_typed("path", &AnyTextForm)?;
    let addr = match (path, fd) {
        (Some(_), Some(_)) => return conflict("'path' and 'fd' both name the socket; remove one"),
        (None, None) => {
            return Err(
                fields.missing_key_error("path", "write path=PATH with the path of a Unix socket")
            );
        }
        (None, Some(_)) if !settings.server => {
            return conflict("'fd' is a listening socket; add 'server=on'");
        }
        (None, Some(fd)) => fd,
        (Some(path), None) if !socket::is_socket_path(path.as_bytes()) => {
            return Err(fields.bad_value_error("path", &path, socket::SOCKET_EXPECTED));
        }
        (Some(path), None) => SocketAddr::Unix {
            path: PathBuf::from(path),
        },
    };
    fields.debug_assert_all_taken();
    names.add_chardev_and_socket(&settings.id, settings.server.then_some(&addr))?;
    Ok(ChardevOptions { addr, settings })
}

/// Takes `fd`. In JSON a number may be written with quotes or without.
fn take_inherited_socket(fields: &mut Fields) -> Result<Option<SocketAddr>, Problem> {
    let Some(value) = fields.take_raw("fd") else {
        return Ok(None);
    };
    let text = match &value {
        Value::Text(text) | Value::String(text) | Value::Number(text) => text,
        _ => "",
    };
    let socket = socket::parse_fd_number_or_name(text);
    let bad_fd = || fields.bad_value_error("fd", &value.excerpt(), socket::FD_EXPECTED);
    socket.map(Some).ok_or_else(bad_fd)
}

/// Reads the tree of a `--monitor`, and reserves its chardev.
pub(crate) fn read_monitor_and_reserve_chardev(
    object: Object,
    names: &mut DefinedNames,
) -> Result<MonitorOptions, Problem> {
    let mut fields = Fields::with_known_keys(object, "", &[MonitorOptions::KEYS], &[])?;
    let monitor = MonitorOptions::read(&mut fields, None)?;
    fields.debug_assert_all_taken();
    names.reserve_chardev("chardev", &monitor.chardev)?;
    Ok(monitor)
}
