//! `--nbd-server`: the options of the server whose clients see the exports of type `nbd`, with qemu-storage-daemon's keys and defaults.

use std::net::{self, IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{
    IpVersions, Problem, SocketAddr,
    fields::Fields,
    form::{ChoiceForm, ID_FORM, NonUtf8Path, SwitchForm, number_form, path_value},
    key::{UnsupportedName, ValueType},
    names::DefinedNames,
    object::{AUTHZ_LIST, TLS_CREDS},
    settings::settings,
    socket,
    tree::{Object, Value},
};

/// `--nbd-server …`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NbdServerOptions {
    /// `addr`: where clients connect.
    pub addr: NbdServerAddr,
    /// All other keys.
    pub settings: NbdServerSettings,
}

/// Where clients of an NBD server connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NbdServerAddr {
    /// A Unix socket.
    Socket(SocketAddr),
    /// A TCP port.
    Inet {
        /// An IP address of this host, or `localhost`. Names are not resolved.
        host: String,
        /// The port; 0 is any free one.
        port: u16,
        /// Of `localhost`, the addresses that are used.
        ip_versions: IpVersions,
    },
}

impl NbdServerAddr {
    /// The addresses to listen on, if it is a TCP port; none if the host is not valid.
    #[must_use]
    pub fn tcp_addresses(&self) -> Vec<net::SocketAddr> {
        let NbdServerAddr::Inet {
            host,
            port,
            ip_versions,
        } = self
        else {
            return Vec::new();
        };
        let loopback = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        let hosts: Vec<IpAddr> = match host.as_str() {
            "localhost" => loopback.into(),
            host => host.parse().into_iter().collect(),
        };
        let addresses = hosts.into_iter();
        addresses
            .filter(|host| ip_versions.allow(host))
            .map(|host| net::SocketAddr::new(host, *port))
            .collect()
    }

    /// Whether only processes of this host can connect.
    fn is_local(&self) -> bool {
        self.tcp_addresses()
            .iter()
            .all(|addr| addr.ip().is_loopback())
    }
}

settings! {
    /// Options of the NBD server beside its address.
    pub struct NbdServerSettings {
        /// most clients at a time; further ones wait; 0 = any number (default 100)
        pub max_connections: u32 = "max-connections", number_form(0, u32::MAX), default(DEFAULT_MAX_CONNECTIONS);
        /// time for the handshake, then a client is disconnected; 0 = any time (default 10)
        pub handshake_max_seconds: u32 = "handshake-max-seconds",
            number_form(0, u32::MAX).with_placeholder("SECONDS"), default(DEFAULT_HANDSHAKE_SECONDS);
        /// encrypt all connections with the certificates of this tls-creds-x509 object, whose endpoint is server
        pub tls_creds: Option<String> = "tls-creds", ID_FORM, optional;
        /// let in clients that this authz-list object allows, by the name in their certificate
        pub tls_authz: Option<String> = "tls-authz", ID_FORM, optional;
        /// serve an address other than loopback without encryption: everyone in the network can read and change the data
        /// (default off; blockplane's own)
        pub allow_plaintext: bool = "allow-plaintext", SwitchForm, default(false);
    }
    beside {
        /// the kind of address: TCP, a Unix socket at a path, or an inherited one
        "addr.type", "inet|unix|fd", ValueType::Words, required;
        /// with addr.type=inet: IP address of this host, or localhost
        "addr.host", "HOST", ValueType::Str;
        /// with addr.type=inet: the port, usually 10809
        "addr.port", "PORT", ValueType::Str;
        /// with addr.type=inet: listen on IPv4 addresses (default: unless addr.ipv6=on)
        "addr.ipv4", "on|off", ValueType::Bool;
        /// with addr.type=inet: listen on IPv6 addresses (default: unless addr.ipv4=on)
        "addr.ipv6", "on|off", ValueType::Bool;
        /// with addr.type=unix: path of the socket
        "addr.path", "PATH", ValueType::Str;
        /// with addr.type=fd: number, or name, of a listening Unix socket
        "addr.str", "FD", ValueType::Str;
    }
}

/// Default of `max-connections`.
const DEFAULT_MAX_CONNECTIONS: u32 = 100;
/// Default of `handshake-max-seconds`.
const DEFAULT_HANDSHAKE_SECONDS: u32 = 10;

macro_rules! unsupported {
    ($($instead:ident: $($name:literal)*;)*) => {
        &[$($(UnsupportedName { name: $name, instead: $instead },)*)*]
    };
}

const OMIT: &str = "leave it out";

const UNSUPPORTED_KEYS: &[UnsupportedName] = unsupported![
    OMIT: "addr.abstract" "addr.keep-alive" "addr.mptcp" "addr.numeric" "addr.tight" "addr.to";
];

/// The words of `addr.type`.
#[derive(Clone, Copy, PartialEq)]
enum AddrType {
    Inet,
    Unix,
    Fd,
}

const ADDR_TYPE_FORM: ChoiceForm<AddrType> = ChoiceForm {
    words: &[
        ("inet", AddrType::Inet),
        ("unix", AddrType::Unix),
        ("fd", AddrType::Fd),
    ],
    unsupported: &[UnsupportedName {
        name: "vsock",
        instead: "write inet, unix or fd",
    }],
    placeholder: "inet|unix|fd",
};

/// Reads the tree of an `--nbd-server`, and adds its socket.
pub(crate) fn read_and_register_nbd_server(
    object: Object,
    names: &mut DefinedNames,
) -> Result<NbdServerOptions, Problem> {
    let keys = [NbdServerSettings::KEYS];
    let mut fields = Fields::with_known_keys(object, "", &keys, UNSUPPORTED_KEYS)?;
    let settings = NbdServerSettings::read(&mut fields, None)?;
    let addr = read_addr(&mut fields)?;
    fields.debug_assert_all_taken();
    check_encryption(&addr, &settings, names)?;
    let socket = match &addr {
        NbdServerAddr::Socket(addr) => Some(addr),
        NbdServerAddr::Inet { .. } => None,
    };
    names.add_nbd_server(socket)?;
    Ok(NbdServerOptions { addr, settings })
}

/// Checks that objects for TLS are there, and that nothing is sent unencrypted through a network unless that is allowed.
fn check_encryption(
    addr: &NbdServerAddr,
    settings: &NbdServerSettings,
    names: &DefinedNames,
) -> Result<(), Problem> {
    let conflict = |reason: &str| {
        let reason = reason.to_owned();
        Err(Problem::Conflict { reason })
    };
    if let Some(creds) = &settings.tls_creds {
        names.check_object_defined("tls-creds", TLS_CREDS, creds)?;
    }
    if let Some(list) = &settings.tls_authz {
        names.check_object_defined("tls-authz", AUTHZ_LIST, list)?;
        if settings.tls_creds.is_none() {
            return conflict("'tls-authz' needs 'tls-creds', which encrypts connections");
        }
    }
    if settings.tls_creds.is_some() && settings.allow_plaintext {
        return conflict("'allow-plaintext' has no effect with 'tls-creds'; leave one of them out");
    }
    if !addr.is_local() && settings.tls_creds.is_none() && !settings.allow_plaintext {
        return conflict(
            "'addr.host' is an address other than loopback, and nothing is encrypted: add 'tls-creds', use a Unix socket or \
             loopback with a tunnel, or add 'allow-plaintext=on' if the network is trusted",
        );
    }
    Ok(())
}

/// Reads `addr.type`, and the keys that belong to it.
fn read_addr(fields: &mut Fields) -> Result<NbdServerAddr, Problem> {
    let Some(addr_type) = fields.take_typed("addr.type", &ADDR_TYPE_FORM)? else {
        let expected =
            "write addr.type=unix,addr.path=PATH, or addr.type=inet,addr.host=HOST,addr.port=PORT";
        return Err(fields.missing_key_error("addr.type", expected));
    };
    let (word, own_keys): (_, &[&str]) = match addr_type {
        AddrType::Inet => (
            "inet",
            &["addr.host", "addr.port", "addr.ipv4", "addr.ipv6"],
        ),
        AddrType::Unix => ("unix", &["addr.path"]),
        AddrType::Fd => ("fd", &["addr.str"]),
    };
    let all_keys = [
        "addr.host",
        "addr.port",
        "addr.ipv4",
        "addr.ipv6",
        "addr.path",
        "addr.str",
    ];
    socket::check_keys_of_addr_type(fields, word, own_keys, &all_keys)?;
    match addr_type {
        AddrType::Inet => {
            let host = fields.take_required_string(
                "addr.host",
                "write addr.host=HOST with an address of this host",
            )?;
            let expected = "write addr.port=PORT with a number, usually 10809";
            let text = fields.take_required_string("addr.port", expected)?;
            let port = text.parse().map_err(|_| {
                fields.bad_value_error("addr.port", &text, "a number from 0 to 65535")
            })?;
            let ip_versions = IpVersions {
                v4: fields.take_typed("addr.ipv4", &SwitchForm)?,
                v6: fields.take_typed("addr.ipv6", &SwitchForm)?,
            };
            let ip_versions = ip_versions.check()?;
            let addr = NbdServerAddr::Inet {
                host,
                port,
                ip_versions,
            };
            if let (NbdServerAddr::Inet { host, .. }, true) =
                (&addr, addr.tcp_addresses().is_empty())
            {
                let expected = match ip_versions == IpVersions::default() {
                    true => "an IP address of this host such as 127.0.0.1 or ::, or localhost",
                    false => "an IP address of this host as 'ipv4' and 'ipv6' say, or localhost",
                };
                return Err(fields.bad_value_error("addr.host", host, expected));
            }
            Ok(addr)
        }
        AddrType::Unix => socket::read_unix_addr(fields).map(NbdServerAddr::Socket),
        AddrType::Fd => socket::read_fd_addr(fields).map(NbdServerAddr::Socket),
    }
}

impl NbdServerOptions {
    /// These options as a tree.
    pub(crate) fn to_object(&self) -> Result<Object, NonUtf8Path> {
        let mut object = Object::default();
        let text = |text: String| Value::String(text);
        let keys = match &self.addr {
            NbdServerAddr::Socket(SocketAddr::Unix { path }) => {
                vec![
                    ("addr.type", text("unix".into())),
                    ("addr.path", path_value(path)?),
                ]
            }
            NbdServerAddr::Socket(SocketAddr::Fd { fd }) => {
                vec![
                    ("addr.type", text("fd".into())),
                    ("addr.str", text(fd.to_string())),
                ]
            }
            NbdServerAddr::Socket(SocketAddr::FdName { name }) => {
                vec![
                    ("addr.type", text("fd".into())),
                    ("addr.str", text(name.clone())),
                ]
            }
            NbdServerAddr::Inet {
                host,
                port,
                ip_versions,
            } => {
                let versions = [("addr.ipv4", ip_versions.v4), ("addr.ipv6", ip_versions.v6)];
                let versions = versions.into_iter();
                let versions = versions.filter_map(|(key, on)| Some((key, Value::Bool(on?))));
                let mut keys = vec![
                    ("addr.type", text("inet".into())),
                    ("addr.host", text(host.clone())),
                    ("addr.port", text(port.to_string())),
                ];
                keys.extend(versions);
                keys
            }
        };
        for (key, value) in keys {
            object.push_dotted_key(key, value);
        }
        self.settings.write_to(&mut object)?;
        Ok(object)
    }
}
