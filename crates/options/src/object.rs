//! `--object`: options of iothreads, which exports refer to by their id, and their reader; secrets, throttle groups, and what TLS needs,
//! to which nodes and the NBD server refer, are in modules of their own.
//!
//! The defaults are those of qemu-storage-daemon.

mod authz_list;
mod secret;
mod throttle_group;
mod tls_creds;

pub(crate) use authz_list::{AuthzListKeys, AuthzRuleKeys};
pub use authz_list::{AuthzListOptions, AuthzPolicy, AuthzRule};
pub use secret::{
    MAX_SECRET_BYTES, SecretBytes, SecretError, SecretFormat, SecretOptions, SecretText,
};
pub(crate) use throttle_group::read_throttle_group;
pub use throttle_group::{GroupLimit, ThrottleGroupOptions};
pub use tls_creds::{TlsCredsOptions, TlsEndpoint};

use crate::{
    Problem,
    fields::Fields,
    form::{CpusForm, ID_FORM, number_form},
    key::{KeySpec, UnsupportedName, ValueType, read_kind},
    names::DefinedNames,
    settings::settings,
    tree::Object,
};

/// An object to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectOptions {
    /// An iothread.
    Iothread(IothreadOptions),
    /// A secret.
    Secret(SecretOptions),
    /// A throttle group.
    ThrottleGroup(ThrottleGroupOptions),
    /// Certificates for TLS.
    TlsCreds(TlsCredsOptions),
    /// A list of clients.
    AuthzList(AuthzListOptions),
}

impl ObjectOptions {
    /// Its name, which is unique among objects.
    #[must_use]
    pub fn id(&self) -> &str {
        match self {
            Self::Iothread(iothread) => &iothread.id,
            Self::Secret(secret) => &secret.id,
            Self::ThrottleGroup(group) => &group.id,
            Self::TlsCreds(creds) => &creds.id,
            Self::AuthzList(list) => &list.id,
        }
    }
}

/// Largest number of QAPI's type int, as in QEMU.
const MAX_INT: u64 = i64::MAX.unsigned_abs();

settings! {
    /// `--object iothread,…`
    pub struct IothreadOptions {
        /// its name, for exports
        pub id: String = "id", ID_FORM, required("write id=NAME, such as id=iothread0");
        /// longest busy-polling before blocking, 0 = never (default 200000)
        pub poll_max_ns: u64 = "poll-max-ns", number_form(0, MAX_INT).with_placeholder("NS"), default(DEFAULT_POLL_MAX_NS);
        /// how fast the polling time grows, 0 = automatic (default 0)
        pub poll_grow: u64 = "poll-grow", number_form(0, MAX_INT).with_placeholder("FACTOR"), default(0);
        /// how fast it shrinks, 0 = automatic (default 0)
        pub poll_shrink: u64 = "poll-shrink", number_form(0, MAX_INT).with_placeholder("DIVISOR"), default(0);
        /// share of a CPU that polling may use, 0 to 100 (default 100; blockplane's own)
        pub poll_cpu_max: u32 = "poll-cpu-max",
            number_form(0, 100).with_placeholder("PERCENT"), default(DEFAULT_POLL_CPU_MAX);
        /// most requests per call to the kernel, 0 = automatic (default 0)
        pub aio_max_batch: u32 = "aio-max-batch", number_form(0, u32::MAX), default(0);
        /// most requests in flight, 1 to 65536 (default 1024; blockplane's own)
        pub aio_max_events: u32 = "aio-max-events", number_form(1, MAX_AIO_EVENTS), default(DEFAULT_AIO_MAX_EVENTS);
        /// worker threads kept for blocking calls (default 0)
        pub thread_pool_min: u32 = "thread-pool-min", number_form(0, MAX_THREAD_POOL), default(0);
        /// most worker threads, 1 to 4096 (default 64)
        pub thread_pool_max: u32 = "thread-pool-max", number_form(1, MAX_THREAD_POOL), default(DEFAULT_THREAD_POOL_MAX);
        /// CPUs it may run on: 2, 0-3, or a list cpu-affinity.0=0-3,cpu-affinity.1=8 (default: all; blockplane's own)
        pub cpu_affinity: Vec<u16> = "cpu-affinity", CpusForm, default(Vec::new());
    }
    beside {
        /// the type; its key may be omitted
        "qom-type", "iothread", ValueType::Named("qom-type"), required;
    }
}

/// Largest `aio-max-events`: the kernel's default of `fs.aio-max-nr`.
pub const MAX_AIO_EVENTS: u32 = 65536;
/// Default of `aio-max-events`: eight full rings of 128, a fraction of the kernel's `fs.aio-max-nr`.
pub const DEFAULT_AIO_MAX_EVENTS: u32 = 1024;
/// Default of `poll-max-ns`, in nanoseconds.
pub const DEFAULT_POLL_MAX_NS: u64 = 200_000;
/// Default of `poll-cpu-max`, in percent: no limit.
pub const DEFAULT_POLL_CPU_MAX: u32 = 100;
/// Largest `thread-pool-max`, more than any storage can use.
pub const MAX_THREAD_POOL: u32 = 4096;
/// Default of `thread-pool-max`.
pub const DEFAULT_THREAD_POOL_MAX: u32 = 64;

impl IothreadOptions {
    /// An iothread with every default.
    #[must_use]
    pub fn new(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            ..Self::defaults()
        }
    }
}

const UNSUPPORTED_KEYS: &[UnsupportedName] = &[UnsupportedName {
    name: "poll-weight",
    instead: "leave it out",
}];

/// Types of objects.
#[derive(Clone, Copy)]
pub(crate) enum ObjectType {
    Iothread,
    Secret,
    ThrottleGroup,
    TlsCreds,
    AuthzList,
}

impl ObjectType {
    /// All of its keys; `qom-type` and `id` are keys of each type.
    pub(crate) fn keys(self) -> &'static [KeySpec] {
        match self {
            Self::Iothread => IothreadOptions::KEYS,
            Self::Secret => SecretOptions::KEYS,
            Self::ThrottleGroup => ThrottleGroupOptions::KEYS,
            Self::TlsCreds => TlsCredsOptions::KEYS,
            Self::AuthzList => AuthzListKeys::KEYS,
        }
    }
}

/// Type of certificates, which references name.
pub(crate) const TLS_CREDS: &str = "tls-creds-x509";
/// Type of lists of clients, which references name.
pub(crate) const AUTHZ_LIST: &str = "authz-list";

pub(crate) const TYPES: &[(&str, ObjectType)] = &[
    ("iothread", ObjectType::Iothread),
    ("secret", ObjectType::Secret),
    ("throttle-group", ObjectType::ThrottleGroup),
    ("tls-creds-x509", ObjectType::TlsCreds),
    ("authz-list", ObjectType::AuthzList),
];

#[rustfmt::skip]
const UNSUPPORTED_TYPES: &[&str] = &[
    "authz-list-file", "authz-pam", "authz-simple", "main-loop", "secret_keyring", "tls-cipher-suites",
    "tls-creds-anon", "tls-creds-psk",
];

/// Reads the tree of an `--object`, and adds its name.
pub(crate) fn read_and_register_object(
    object: Object,
    names: &mut DefinedNames,
) -> Result<ObjectOptions, Problem> {
    let r#type = read_kind(&object, "", "qom-type", TYPES, UNSUPPORTED_TYPES)?;
    let (kind, read) = match r#type {
        ObjectType::Iothread => (
            "iothread",
            ObjectOptions::Iothread(read_iothread(object, None)?),
        ),
        ObjectType::Secret => (
            "secret",
            ObjectOptions::Secret(secret::read_secret(object)?),
        ),
        ObjectType::ThrottleGroup => (
            "throttle-group",
            ObjectOptions::ThrottleGroup(read_throttle_group(object, None)?),
        ),
        ObjectType::TlsCreds => (
            TLS_CREDS,
            ObjectOptions::TlsCreds(tls_creds::read_tls_creds(object)?),
        ),
        ObjectType::AuthzList => (
            AUTHZ_LIST,
            ObjectOptions::AuthzList(authz_list::read_authz_list(object)?),
        ),
    };
    names.add_object(kind, read.id())?;
    Ok(read)
}

/// Reads options of an iothread. Keys that are not given are as in `base`.
pub(crate) fn read_iothread(
    object: Object,
    base: Option<&IothreadOptions>,
) -> Result<IothreadOptions, Problem> {
    let mut fields =
        Fields::with_known_keys(object, "", &[IothreadOptions::KEYS], UNSUPPORTED_KEYS)?;
    fields.take_raw("qom-type");
    let iothread = IothreadOptions::read(&mut fields, base)?;
    fields.debug_assert_all_taken();
    if iothread.thread_pool_min > iothread.thread_pool_max {
        let reason = format!(
            "'thread-pool-min' ({}) is above 'thread-pool-max' ({}); raise the latter or lower the former",
            iothread.thread_pool_min, iothread.thread_pool_max
        );
        return Err(Problem::Conflict { reason });
    }
    Ok(iothread)
}
