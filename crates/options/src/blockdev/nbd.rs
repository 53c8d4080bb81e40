//! `driver=nbd`: options of an export of an NBD server, and their reader.
//!
//! Keys are QEMU's (`BlockdevOptionsNbd`).

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::CommonNodeOptions;
use super::rbd::PortForm;
use crate::{
    IpVersions, Problem,
    fields::Fields,
    form::{FilePathForm, ID_FORM, NBD_NAME_FORM, SwitchForm, number_form},
    key::UnsupportedName,
    names::DefinedNames,
    object::TLS_CREDS,
    settings::{settings, words},
    socket,
    tree::Object,
};

settings! {
    /// Options of `nbd`. The server has a host and a port, or a path.
    pub struct NbdOptions {
        /// how to reach the server
        pub server_type: NbdServerType = "server.type", NbdServerType::FORM, required("write server.type=inet or server.type=unix");
        /// name or address of its host, for inet
        pub host: Option<String> = "server.host", NBD_NAME_FORM, optional;
        /// its TCP port, for inet; usually 10809
        pub port: Option<u16> = "server.port", PortForm, optional;
        /// use its IPv4 addresses, for inet (default: unless server.ipv6=on)
        pub ipv4: Option<bool> = "server.ipv4", SwitchForm, optional;
        /// use its IPv6 addresses, for inet (default: unless server.ipv4=on)
        pub ipv6: Option<bool> = "server.ipv6", SwitchForm, optional;
        /// its Unix socket, for unix
        pub path: Option<PathBuf> = "server.path", FilePathForm, optional;
        /// name of the export (default: the server's default export)
        pub export: Option<String> = "export", NBD_NAME_FORM, optional;
        /// encrypt connections with the certificates of this tls-creds-x509 object, whose endpoint is client
        pub tls_creds: Option<String> = "tls-creds", ID_FORM, optional;
        /// name that the server's certificate has to have (default: server.host)
        pub tls_hostname: Option<String> = "tls-hostname", NBD_NAME_FORM, optional;
        /// seconds that requests wait for a new connection after one has broken (default 0: they fail at once)
        pub reconnect_delay: u32 = "reconnect-delay", number_form(0, u32::MAX).with_placeholder("SECONDS"), default(0);
        /// seconds for which opening tries to reach the server (default 0: once)
        pub open_timeout: u32 = "open-timeout", number_form(0, u32::MAX).with_placeholder("SECONDS"), default(0);
        /// seconds that a device that stops, or a job that is cancelled, waits for a silent server (default 10; blockplane's own)
        pub stop_timeout: u32 = "stop-timeout", number_form(1, u32::MAX).with_placeholder("SECONDS"), default(10);
    }
}

words! {
    /// How a server is reached.
    pub enum NbdServerType {
        /// By TCP.
        Inet = "inet",
        /// By a Unix socket.
        Unix = "unix",
    }
}

impl Default for NbdServerType {
    /// The type before the options are read.
    fn default() -> Self {
        NbdServerType::Unix
    }
}

impl NbdOptions {
    /// Reads the options from a tree that has no others.
    pub(crate) fn from_object(object: Object) -> Result<Self, Problem> {
        let mut fields = Fields::with_known_keys(object, "", &[Self::KEYS], &[])?;
        let nbd = Self::read_and_check(&mut fields)?;
        fields.debug_assert_all_taken();
        Ok(nbd)
    }

    /// Reads the options, and checks that the server has an address of its type.
    fn read_and_check(fields: &mut Fields) -> Result<Self, Problem> {
        let nbd = Self::read(fields, None)?;
        if let Some(path) = &nbd.path
            && !socket::is_socket_path(path.as_os_str().as_bytes())
        {
            let path = path.display().to_string();
            return Err(fields.bad_value_error("server.path", &path, socket::SOCKET_EXPECTED));
        }
        let given = [
            ("server.host", nbd.host.is_some()),
            ("server.port", nbd.port.is_some()),
            ("server.ipv4", nbd.ipv4.is_some()),
            ("server.ipv6", nbd.ipv6.is_some()),
            ("server.path", nbd.path.is_some()),
        ];
        let (r#type, needed, optional): (_, &[&str], &[&str]) = match nbd.server_type {
            NbdServerType::Inet => (
                "inet",
                &["server.host", "server.port"],
                &["server.ipv4", "server.ipv6"],
            ),
            NbdServerType::Unix => ("unix", &["server.path"], &[]),
        };
        for (key, is_given) in given {
            let is_needed = needed.contains(&key);
            if is_needed && !is_given {
                let expected = format!("server.type={type} needs it");
                return Err(fields.missing_key_error(key, &expected));
            }
            if is_given && !is_needed && !optional.contains(&key) {
                let reason = format!(
                    "'{}' does not go with '{}={type}'; leave it out",
                    fields.full_key(key),
                    fields.full_key("server.type")
                );
                return Err(Problem::Conflict { reason });
            }
        }
        nbd.ip_versions().check()?;
        nbd.check_tls(fields)?;
        Ok(nbd)
    }

    /// Checks that the keys for TLS go with each other.
    fn check_tls(&self, fields: &Fields) -> Result<(), Problem> {
        let (creds, hostname) = (
            fields.full_key("tls-creds"),
            fields.full_key("tls-hostname"),
        );
        match (&self.tls_creds, &self.tls_hostname, &self.host) {
            (None, Some(_), _) => {
                let reason = format!("'{hostname}' needs '{creds}', which encrypts connections");
                Err(Problem::Conflict { reason })
            }
            (Some(_), None, None) => {
                let expected =
                    "server.type=unix with tls-creds needs the name in the server's certificate";
                Err(fields.missing_key_error("tls-hostname", expected))
            }
            _ => Ok(()),
        }
    }

    /// The name that the server's certificate has to have.
    #[must_use]
    pub fn tls_server_name(&self) -> Option<&str> {
        self.tls_hostname.as_deref().or(self.host.as_deref())
    }

    /// The versions of IP by which the server is reached.
    #[must_use]
    pub fn ip_versions(&self) -> IpVersions {
        IpVersions {
            v4: self.ipv4,
            v6: self.ipv6,
        }
    }

    /// The export as a URI, as `serve` takes it: without a slash for the default export, as QEMU writes it.
    #[must_use]
    pub fn uri(&self) -> String {
        let export = self.export.as_deref().unwrap_or_default();
        let export = match export {
            "" => String::new(),
            name => format!("/{}", encode_percent(name)),
        };
        match (&self.path, &self.host) {
            (Some(path), _) => {
                let path = encode_percent(&path.to_string_lossy());
                format!("nbd+unix://{export}?socket={path}")
            }
            (None, host) => {
                let host = host.as_deref().unwrap_or_default();
                let host = match host.contains(':') {
                    true => format!("[{host}]"),
                    false => host.to_owned(),
                };
                let port = self.port.unwrap_or(NBD_PORT);
                format!("nbd://{host}:{port}{export}")
            }
        }
    }
}

/// Writes characters that have a meaning in URIs as `%` and two hexadecimal digits.
fn encode_percent(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                out.push(char::from(byte));
            }
            _ => out += &format!("%{byte:02X}"),
        }
    }
    out
}

/// The port of NBD.
pub(crate) const NBD_PORT: u16 = 10809;

const FLAT_ADDRESS: &str =
    "write server.type=inet,server.host=HOST,server.port=PORT or server.type=unix,server.path=PATH";

const FIXED_ADDRESS: &str = "leave it out";

/// Keys of the driver, and of other drivers, that are refused with a reason.
pub(super) const UNSUPPORTED_KEYS: &[UnsupportedName] = &[
    UnsupportedName {
        name: "x-dirty-bitmap",
        instead: "leave it out: bitmaps of the server are not read",
    },
    UnsupportedName {
        name: "host",
        instead: FLAT_ADDRESS,
    },
    UnsupportedName {
        name: "port",
        instead: FLAT_ADDRESS,
    },
    UnsupportedName {
        name: "path",
        instead: FLAT_ADDRESS,
    },
    UnsupportedName {
        name: "filename",
        instead: FLAT_ADDRESS,
    },
    UnsupportedName {
        name: "server.numeric",
        instead: FIXED_ADDRESS,
    },
    UnsupportedName {
        name: "server.to",
        instead: FIXED_ADDRESS,
    },
    UnsupportedName {
        name: "server.keep-alive",
        instead: "leave it out: idle connections over TCP are always checked",
    },
    UnsupportedName {
        name: "server.mptcp",
        instead: FIXED_ADDRESS,
    },
    UnsupportedName {
        name: "server.str",
        instead: "passed connections are not used: a client has to connect again",
    },
    UnsupportedName {
        name: "aio",
        instead: "leave it out: it is for files",
    },
    UnsupportedName {
        name: "aio-max-batch",
        instead: "leave it out: it is for files",
    },
    UnsupportedName {
        name: "locking",
        instead: "leave it out: servers have no locks",
    },
];

/// Reads the options, and checks them with the settings of the node. `cache_direct_is_given`: the node has that setting itself, and
/// did not inherit it.
pub(super) fn read_nbd_options(
    fields: &mut Fields,
    settings: &mut CommonNodeOptions,
    cache_direct_is_given: bool,
    names: &DefinedNames,
) -> Result<NbdOptions, Problem> {
    let nbd = NbdOptions::read_and_check(fields)?;
    if let Some(creds) = &nbd.tls_creds {
        names.check_object_defined(&fields.full_key("tls-creds"), TLS_CREDS, creds)?;
    }
    if settings.cache_direct == Some(false) {
        if cache_direct_is_given {
            return Err(Problem::Unsupported {
                what: format!("'{}=off'", fields.full_key("cache.direct")),
                instead: "leave it out: driver nbd does not use the page cache".to_owned(),
            });
        }
        settings.cache_direct = None;
    }
    Ok(nbd)
}
