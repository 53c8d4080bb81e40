//! `driver=rbd`: options of an image of a Ceph cluster, and their reader.
//!
//! Keys are QEMU's (`BlockdevOptionsRbd`), except `images-per-connection` and `locking`, which are blockplane's own. A snapshot
//! makes its node read-only; QEMU asks for `read-only` or `auto-read-only` beside it.

use std::fmt;
use std::path::PathBuf;

use super::{CommonNodeOptions, Locking};
use crate::{
    Problem,
    fields::Fields,
    form::{
        AnyTextForm, FilePathForm, ID_FORM, NonUtf8Path, ValueForm, bad_value_error, number_form,
    },
    key::{KeySpec, UnsupportedName, ValueType},
    names::DefinedNames,
    settings::{settings, words},
    tree::{Object, Value},
};

settings! {
    /// Options of `rbd`.
    pub struct RbdOptions {
        /// the pool
        pub pool: String = "pool", CephNameForm, required("write pool=NAME, such as pool=rbd");
        /// the namespace in the pool (default: none)
        pub namespace: Option<String> = "namespace", CephNameForm, optional;
        /// the image
        pub image: String = "image", CephNameForm, required("write image=NAME");
        /// a snapshot of the image, which is read-only (default: the image itself)
        pub snapshot: Option<String> = "snapshot", CephNameForm, optional;
        /// Ceph's configuration file (default: where librados looks for it, such as /etc/ceph/ceph.conf)
        pub conf: Option<PathBuf> = "conf", FilePathForm, optional;
        /// the user, without "client." (default: admin)
        pub user: Option<String> = "user", CephUserForm, optional;
        /// ways to authenticate, auth-client-required.0=cephx|none,… (default: as conf says)
        pub auth_client_required: Vec<RbdAuthMode> = "auth-client-required", RbdAuthModesForm, default(Vec::new());
        /// id of the secret with the user's key; Ceph writes keys in base64: format=base64 (default: the key in a keyring of conf)
        pub key_secret: Option<String> = "key-secret", ID_FORM, optional;
        /// the monitors: server.0.host=HOST,server.0.port=PORT,… (default: as conf says)
        pub server: Vec<RbdServer> = "server", RbdServersForm, default(Vec::new());
        /// most images that share a connection to the cluster (default 32; blockplane's own)
        pub images_per_connection: u32 = "images-per-connection", number_form(1, 1024), default(32);
        /// lock it against other writers (default auto; blockplane's own)
        pub locking: Locking = "locking", Locking::FORM, default(Locking::Auto);
    }
}

words! {
    /// A way to authenticate.
    pub enum RbdAuthMode {
        /// With a key.
        Cephx = "cephx",
        /// Not at all.
        None = "none",
    }
}

settings! {
    /// A monitor of a cluster.
    pub struct RbdServer {
        /// its host name or address
        pub host: String = "host", CephNameForm, required("write the name or the address of a monitor");
        /// its TCP port, usually 3300, or 6789 for the older protocol
        pub port: u16 = "port", PortForm, required("write the port of the monitor, such as 3300");
    }
}

/// `host:port`, an IPv6 address in brackets.
impl fmt::Display for RbdServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') && !self.host.starts_with('[') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl RbdOptions {
    /// Reads the options from a tree that has no others.
    pub(crate) fn from_object(object: Object) -> Result<Self, Problem> {
        let mut fields = Fields::with_known_keys(object, "", &[Self::KEYS], &[])?;
        let rbd = Self::read(&mut fields, None)?;
        fields.debug_assert_all_taken();
        Ok(rbd)
    }

    /// The image as `rbd` writes it: `POOL/[NAMESPACE/]IMAGE[@SNAPSHOT]`.
    #[must_use]
    pub fn image_spec(&self) -> String {
        let mut spec = format!("{}/", self.pool);
        if let Some(namespace) = &self.namespace {
            spec += &format!("{namespace}/");
        }
        spec += &self.image;
        if let Some(snapshot) = &self.snapshot {
            spec += &format!("@{snapshot}");
        }
        spec
    }

    /// A name of the image that differs between clusters, as far as the options say which one it is in.
    fn image_and_cluster_name(&self) -> String {
        let servers: Vec<String> = self.server.iter().map(RbdServer::to_string).collect();
        format!("{} {servers:?} {:?}", self.image_spec(), self.conf)
    }
}

/// Keys of the driver, and of other drivers, that are refused with a reason.
pub(super) const UNSUPPORTED_KEYS: &[UnsupportedName] = &[
    UnsupportedName {
        name: "encrypt",
        instead: "leave it out: images encrypted by librbd are not opened",
    },
    UnsupportedName {
        name: "size",
        instead: "leave it out: an image has a size, which 'rbd resize' or block_resize changes",
    },
    UnsupportedName {
        name: "filename",
        instead: "write pool=POOL,image=IMAGE",
    },
    UnsupportedName {
        name: "aio",
        instead: "leave it out: librbd has threads of its own",
    },
    UnsupportedName {
        name: "aio-max-batch",
        instead: "leave it out: librbd has threads of its own",
    },
];

/// The settings that a node of this driver was given itself, and did not inherit.
pub(super) struct GivenSettings {
    read_only: bool,
    pub(super) cache_direct: bool,
}

impl GivenSettings {
    /// Those of `fields`, from which nothing was taken.
    pub(super) fn of(fields: &Fields) -> Self {
        Self {
            read_only: fields.contains_key("read-only"),
            cache_direct: fields.contains_key("cache.direct"),
        }
    }
}

/// Reads the options, and checks them with the settings of the node, which becomes read-only with a snapshot.
pub(super) fn read_rbd_options(
    fields: &mut Fields,
    settings: &mut CommonNodeOptions,
    given: &GivenSettings,
    names: &DefinedNames,
) -> Result<RbdOptions, Problem> {
    let rbd = RbdOptions::read(fields, None)?;
    if let Some(secret) = &rbd.key_secret {
        names.check_object_defined(&fields.full_key("key-secret"), "secret", secret)?;
    }
    if settings.cache_direct == Some(false) {
        if given.cache_direct {
            return Err(Problem::Unsupported {
                what: format!("'{}=off'", fields.full_key("cache.direct")),
                instead: "leave it out: driver rbd uses neither the page cache nor librbd's cache"
                    .to_owned(),
            });
        }
        settings.cache_direct = None;
    }
    if rbd.snapshot.is_some() && !settings.read_only {
        if given.read_only && !settings.auto_read_only {
            let reason = format!(
                "'{}=off' contradicts '{}': a snapshot is read-only; leave one of them out",
                fields.full_key("read-only"),
                fields.full_key("snapshot")
            );
            return Err(Problem::Conflict { reason });
        }
        settings.read_only = true;
    }
    Ok(rbd)
}

/// Adds the image to those that nodes lock. A snapshot is not locked.
pub(super) fn register_locked_image(
    rbd: &RbdOptions,
    prefix: &str,
    node: &str,
    settings: &CommonNodeOptions,
    names: &mut DefinedNames,
) -> Result<(), Problem> {
    if rbd.locking == Locking::Off || rbd.snapshot.is_some() || !settings.active {
        return Ok(());
    }
    let writes = !settings.read_only && !settings.auto_read_only;
    let image = rbd.image_and_cluster_name();
    names.add_remote_image(&format!("{prefix}image"), image, node, writes)
}

/// A name that Ceph has: any text without control characters.
struct CephNameForm;

impl CephNameForm {
    /// A key whose values have this form.
    const fn define_key(&self, name: &'static str, help: &'static str) -> KeySpec {
        KeySpec::new(name, "NAME", help, ValueType::Str)
    }
}

impl ValueForm for CephNameForm {
    type Value = String;

    fn read(&self, key: &str, value: Value) -> Result<String, Problem> {
        let name = AnyTextForm.read(key, value)?;
        if name.is_empty() || name.contains(char::is_control) {
            let expected = "a name: not empty, without control characters";
            return Err(bad_value_error(key, &Value::Text(name), expected));
        }
        Ok(name)
    }

    fn to_value(&self, value: &String) -> Result<Value, NonUtf8Path> {
        AnyTextForm.to_value(value)
    }
}

/// The name of a user. Ceph's tools show it after `client.`, which librados adds.
struct CephUserForm;

impl CephUserForm {
    /// A key whose values have this form.
    const fn define_key(&self, name: &'static str, help: &'static str) -> KeySpec {
        CephNameForm.define_key(name, help)
    }
}

impl ValueForm for CephUserForm {
    type Value = String;

    fn read(&self, key: &str, value: Value) -> Result<String, Problem> {
        let user = CephNameForm.read(key, value)?;
        match user.strip_prefix("client.") {
            None => Ok(user),
            Some(name) => {
                let name = crate::error::excerpt(name);
                let expected = format!("the user without 'client.': {key}={name}");
                Err(bad_value_error(key, &Value::Text(user.clone()), expected))
            }
        }
    }

    fn to_value(&self, value: &String) -> Result<Value, NonUtf8Path> {
        AnyTextForm.to_value(value)
    }
}

/// A TCP port: in JSON a string, as in QEMU.
pub(super) struct PortForm;

impl PortForm {
    /// A key whose values have this form.
    pub(super) const fn define_key(&self, name: &'static str, help: &'static str) -> KeySpec {
        KeySpec::new(name, "PORT", help, ValueType::Str)
    }
}

impl ValueForm for PortForm {
    type Value = u16;

    fn read(&self, key: &str, value: Value) -> Result<u16, Problem> {
        let port = match &value {
            Value::Text(text) | Value::String(text) | Value::Number(text) => text.parse().ok(),
            _ => None,
        };
        port.filter(|port| *port != 0)
            .ok_or_else(|| bad_value_error(key, &value, "a TCP port from 1 to 65535"))
    }

    fn to_value(&self, value: &u16) -> Result<Value, NonUtf8Path> {
        Ok(Value::String(value.to_string()))
    }
}

/// A list of ways to authenticate.
struct RbdAuthModesForm;

impl RbdAuthModesForm {
    /// A key whose values have this form.
    const fn define_key(&self, name: &'static str, help: &'static str) -> KeySpec {
        KeySpec::new(name, "LIST", help, ValueType::ListOf("RbdAuthMode"))
    }
}

impl ValueForm for RbdAuthModesForm {
    type Value = Vec<RbdAuthMode>;

    fn read(&self, key: &str, value: Value) -> Result<Vec<RbdAuthMode>, Problem> {
        let items = list_items(key, value, "=cephx")?;
        items
            .into_iter()
            .map(|(key, item)| RbdAuthMode::FORM.read(&key, item))
            .collect()
    }

    fn to_value(&self, value: &Vec<RbdAuthMode>) -> Result<Value, NonUtf8Path> {
        let modes = value.iter().map(|mode| RbdAuthMode::FORM.to_value(mode));
        Ok(Value::List(modes.collect::<Result<_, _>>()?))
    }
}

/// A list of monitors.
struct RbdServersForm;

impl RbdServersForm {
    /// A key whose values have this form.
    const fn define_key(&self, name: &'static str, help: &'static str) -> KeySpec {
        KeySpec::new(
            name,
            "LIST",
            help,
            ValueType::ListOf("InetSocketAddressBase"),
        )
    }
}

impl ValueForm for RbdServersForm {
    type Value = Vec<RbdServer>;

    fn read(&self, key: &str, value: Value) -> Result<Vec<RbdServer>, Problem> {
        let mut servers = Vec::new();
        for (key, item) in list_items(key, value, ".host=HOST")? {
            let Value::Object(object) = item else {
                let expected = format!("a group, as in {key}.host=HOST,{key}.port=3300");
                return Err(bad_value_error(&key, &item, expected));
            };
            let keys = [RbdServer::KEYS];
            let mut fields = Fields::with_known_keys(object, &format!("{key}."), &keys, &[])?;
            servers.push(RbdServer::read(&mut fields, None)?);
            fields.debug_assert_all_taken();
        }
        Ok(servers)
    }

    fn to_value(&self, value: &Vec<RbdServer>) -> Result<Value, NonUtf8Path> {
        let server_to_value = |server: &RbdServer| {
            let mut object = Object::default();
            server.write_to(&mut object)?;
            Ok(Value::Object(object))
        };
        let servers = value.iter().map(server_to_value);
        Ok(Value::List(servers.collect::<Result<_, _>>()?))
    }
}

/// The members of a list, each with its full name. `example` follows the name of the first member in the error.
fn list_items(key: &str, value: Value, example: &str) -> Result<Vec<(String, Value)>, Problem> {
    let Value::List(items) = value else {
        let expected = format!("a list, such as {key}.0{example}");
        return Err(bad_value_error(key, &value, expected));
    };
    let numbered = items.into_iter().enumerate();
    Ok(numbered
        .map(|(index, item)| (format!("{key}.{index}"), item))
        .collect())
}
