//! `--object`: objects that nodes and exports refer to by their id.
//!
//! Only `iothread` exists. The defaults are those of qemu-storage-daemon.

use crate::{
    Problem, cpus,
    fields::{Fields, Key, NotYet, kind},
    names::{MAX_ID_BYTES, Names},
    tree::{Object, Value},
};

/// An object to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectOptions {
    /// A thread that runs rings and engines.
    Iothread(IothreadOptions),
}

impl ObjectOptions {
    /// The name other options refer to it by; unique among objects.
    #[must_use]
    pub fn id(&self) -> &str {
        match self {
            Self::Iothread(iothread) => &iothread.id,
        }
    }
}

/// `--object iothread,…`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IothreadOptions {
    /// `id`: the name exports refer to it by.
    pub id: String,
    /// `poll-max-ns`: the longest the thread busy-polls before it blocks, in nanoseconds;
    /// 0 to `i64::MAX`, 0 = never poll. Default 200000.
    pub poll_max_ns: u64,
    /// `poll-grow`: factor by which the polling time grows; 0 = the loop's own choice. Default 0.
    pub poll_grow: u64,
    /// `poll-shrink`: divisor by which the polling time shrinks; 0 = the loop's own choice. Default 0.
    pub poll_shrink: u64,
    /// `poll-cpu-max` (blockplane's own): the share of a CPU that polling may use, in percent; 0 to
    /// 100, 0 = never poll. Default 100.
    pub poll_cpu_max: u32,
    /// `aio-max-batch`: most requests handed to the kernel in one call; 0 = the engine's own
    /// choice. Default 0.
    pub aio_max_batch: u32,
    /// `aio-max-events` (blockplane's own): most requests in flight in the thread's kernel AIO
    /// context; 1 to [`MAX_AIO_EVENTS`]. Default 1024.
    pub aio_max_events: u32,
    /// `thread-pool-min`: worker threads kept for blocking calls. Default 0.
    pub thread_pool_min: u32,
    /// `thread-pool-max`: most worker threads; 1 to [`MAX_THREAD_POOL`], not below
    /// `thread_pool_min`. Default 64.
    pub thread_pool_max: u32,
    /// `cpu-affinity` (blockplane's own): the CPUs the thread may run on, ascending, each once and
    /// below [`crate::MAX_CPUS`]; empty = wherever the program may. Worker threads are not bound.
    pub cpu_affinity: Vec<u16>,
}

/// Largest `aio-max-events`: the whole of the kernel's default `fs.aio-max-nr`.
pub const MAX_AIO_EVENTS: u32 = 65536;
/// Default of `aio-max-events`: eight full rings of 128, a fraction of the kernel's `fs.aio-max-nr`.
pub const DEFAULT_AIO_MAX_EVENTS: u32 = 1024;
/// Default of `poll-max-ns`, in nanoseconds.
pub const DEFAULT_POLL_MAX_NS: u64 = 200_000;
/// Default of `poll-cpu-max`, in percent: no limit.
pub const DEFAULT_POLL_CPU_MAX: u32 = 100;
/// Largest `thread-pool-max`: far over what any storage can use.
pub const MAX_THREAD_POOL: u32 = 4096;
/// Default of `thread-pool-max`.
pub const DEFAULT_THREAD_POOL_MAX: u32 = 64;

impl IothreadOptions {
    /// An iothread with every default.
    #[must_use]
    pub fn new(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            poll_max_ns: DEFAULT_POLL_MAX_NS,
            poll_grow: 0,
            poll_shrink: 0,
            poll_cpu_max: DEFAULT_POLL_CPU_MAX,
            aio_max_batch: 0,
            aio_max_events: DEFAULT_AIO_MAX_EVENTS,
            thread_pool_min: 0,
            thread_pool_max: DEFAULT_THREAD_POOL_MAX,
            cpu_affinity: Vec::new(),
        }
    }
}

pub(crate) const IOTHREAD_KEYS: &[Key] = &[
    Key {
        name: "qom-type",
        value: "iothread",
        help: "the type; may be written without its key",
    },
    Key {
        name: "id",
        value: "NAME",
        help: "the name exports refer to it by",
    },
    Key {
        name: "poll-max-ns",
        value: "NS",
        help: "longest busy-polling before blocking, 0 = never (default 200000)",
    },
    Key {
        name: "poll-grow",
        value: "FACTOR",
        help: "how fast the polling time grows, 0 = automatic (default 0)",
    },
    Key {
        name: "poll-shrink",
        value: "DIVISOR",
        help: "how fast it shrinks, 0 = automatic (default 0)",
    },
    Key {
        name: "poll-cpu-max",
        value: "PERCENT",
        help: "share of a CPU that polling may use, 0 to 100 (default 100; blockplane's own)",
    },
    Key {
        name: "aio-max-batch",
        value: "N",
        help: "most requests per call to the kernel, 0 = automatic (default 0)",
    },
    Key {
        name: "aio-max-events",
        value: "N",
        help: "most requests in flight, 1 to 65536 (default 1024; blockplane's own)",
    },
    Key {
        name: "thread-pool-min",
        value: "N",
        help: "worker threads kept for blocking calls (default 0)",
    },
    Key {
        name: "thread-pool-max",
        value: "N",
        help: "most worker threads, 1 to 4096 (default 64)",
    },
    Key {
        name: "cpu-affinity",
        value: "CPUS",
        help: "CPUs it may run on: 2, 0-3, or a list cpu-affinity.0=0-3,cpu-affinity.1=8 (default: all; blockplane's own)",
    },
];

const KEYS_NOT_YET: &[NotYet] = &[NotYet {
    name: "poll-weight",
    instead: "leave it out",
}];

#[derive(Clone, Copy)]
pub(crate) enum Type {
    Iothread,
}

pub(crate) const TYPES: &[(&str, Type)] = &[("iothread", Type::Iothread)];

#[rustfmt::skip]
const TYPES_NOT_YET: &[&str] = &[
    "authz-list", "authz-list-file", "authz-pam", "authz-simple", "main-loop", "secret", "secret_keyring", "throttle-group",
    "tls-cipher-suites", "tls-creds-anon", "tls-creds-psk", "tls-creds-x509",
];

/// Reads the tree of one `--object`.
pub(crate) fn parse(object: Object, names: &mut Names) -> Result<ObjectOptions, Problem> {
    match kind(&object, "", "qom-type", TYPES, TYPES_NOT_YET)? {
        Type::Iothread => iothread(object, names).map(ObjectOptions::Iothread),
    }
}

fn iothread(object: Object, names: &mut Names) -> Result<IothreadOptions, Problem> {
    // QAPI's int: what its other implementation stores these numbers in.
    const MAX_INT: u64 = i64::MAX.unsigned_abs();
    let mut fields = Fields::new(object, "", &[IOTHREAD_KEYS], KEYS_NOT_YET)?;
    fields.take("qom-type");
    let Some(id) = fields.identifier("id", MAX_ID_BYTES)? else {
        return Err(Problem::Missing {
            key: "id".to_owned(),
            expected: "write id=NAME, such as id=iothread0".to_owned(),
        });
    };
    let mut iothread = IothreadOptions::new(id);
    let take = |value: &mut u64, found: Option<u64>| *value = found.unwrap_or(*value);
    take(
        &mut iothread.poll_max_ns,
        fields.number("poll-max-ns", 0, MAX_INT)?,
    );
    take(
        &mut iothread.poll_grow,
        fields.number("poll-grow", 0, MAX_INT)?,
    );
    take(
        &mut iothread.poll_shrink,
        fields.number("poll-shrink", 0, MAX_INT)?,
    );
    let take = |value: &mut u32, found: Option<u32>| *value = found.unwrap_or(*value);
    take(
        &mut iothread.poll_cpu_max,
        fields.number_u32("poll-cpu-max", 0, 100)?,
    );
    take(
        &mut iothread.aio_max_batch,
        fields.number_u32("aio-max-batch", 0, u32::MAX)?,
    );
    take(
        &mut iothread.aio_max_events,
        fields.number_u32("aio-max-events", 1, MAX_AIO_EVENTS)?,
    );
    take(
        &mut iothread.thread_pool_min,
        fields.number_u32("thread-pool-min", 0, MAX_THREAD_POOL)?,
    );
    take(
        &mut iothread.thread_pool_max,
        fields.number_u32("thread-pool-max", 1, MAX_THREAD_POOL)?,
    );
    iothread.cpu_affinity = cpu_affinity(&mut fields)?;
    fields.finish();
    if iothread.thread_pool_min > iothread.thread_pool_max {
        let reason = format!(
            "'thread-pool-min' ({}) is above 'thread-pool-max' ({}); raise the latter or lower the former",
            iothread.thread_pool_min, iothread.thread_pool_max
        );
        return Err(Problem::Conflict { reason });
    }
    names.add_iothread(&iothread.id)?;
    Ok(iothread)
}

/// The field's `cpu-affinity` (of its `thread-context`): a list of numbers and ranges.
fn cpu_affinity(fields: &mut Fields) -> Result<Vec<u16>, Problem> {
    let mut cpus = Vec::new();
    for (key, item) in fields.one_or_list("cpu-affinity")? {
        let set = match &item {
            Value::Text(text) | Value::String(text) | Value::Number(text) => cpus::read(text),
            _ => None,
        };
        let Some(set) = set else {
            return Err(Problem::BadValue {
                key,
                value: item.shown(),
                expected: cpus::CPUS_EXPECTED.to_owned(),
            });
        };
        cpus.extend(set);
    }
    Ok(cpus::union(cpus))
}
