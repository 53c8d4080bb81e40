//! `driver=blkdebug`: options of fault injection into requests to another node, and their reader.
//!
//! Keys are QEMU's where it has them. Delays, hangs, partial transfers, ranges of sectors and random faults are blockplane's own.

use crate::{
    Problem,
    fields::Fields,
    form::{ChoiceForm, SwitchForm, number_form, size_form},
    key::{UnsupportedName, ValueType},
    settings::{settings, words},
    tree::{Object, Value},
};

settings! {
    /// The keys of the driver.
    pub(crate) struct BlkdebugSeedKey {
        /// seed of one-in: the same seed and requests have the same faults (default 0; blockplane's own)
        pub seed: u64 = "seed", number_form(0, u64::MAX), default(0);
    }
    beside {
        /// the node below: its node-name, or its keys as image.driver=…,image.…
        "image", "NODE", ValueType::Named("BlockdevRef"), required;
        /// the faults: inject-error.0.KEY=VALUE,… with the keys below
        "inject-error", "LIST", ValueType::ListOf("BlkdebugInjectErrorOptions");
    }
}

settings! {
    /// The keys of one fault.
    pub(crate) struct InjectErrorKeys {
        /// it begins at once (none), or with the first read, write or flush (default none)
        pub event: Option<IoType> = "event", EVENT_FORM, default(None);
        /// only these requests (default all)
        pub iotype: Option<IoType> = "iotype", IoType::FORM, optional;
        /// the error, as a number of Linux (default 5, EIO)
        pub errno: Option<u16> = "errno", number_form(1, MAX_ERRNO), optional;
        /// only requests that touch this sector of 512 bytes (default all)
        pub sector: Option<u64> = "sector", number_form(0, MAX_SECTOR), optional;
        /// number of sectors from there on (default 1; blockplane's own)
        pub sectors: Option<u64> = "sectors", number_form(1, MAX_SECTOR), optional;
        /// it happens once (default off)
        pub once: bool = "once", SwitchForm, default(false);
        /// it happens this many times (blockplane's own)
        pub times: Option<u64> = "times", number_form(1, u64::MAX), optional;
        /// it happens to one request in this many, at random (default 1: each; blockplane's own)
        pub one_in: u64 = "one-in", number_form(1, u64::MAX), default(1);
        /// the request fails, waits for delay-ns, waits until it is released, fails after some bytes, or stops after some bytes
        /// and succeeds (default error; blockplane's own)
        pub action: InjectActionKind = "action", InjectActionKind::FORM, default(InjectActionKind::Error);
        /// how long action=delay takes (default 0; blockplane's own)
        pub delay_ns: Option<u64> = "delay-ns", number_form(0, u64::MAX).with_placeholder("NS"), optional;
        /// how much is transferred with action=short or torn (default 512; blockplane's own)
        pub bytes: Option<u64> = "bytes", size_form(0, u64::MAX), optional;
    }
    accepts {
        /// accepted for compatibility; has no effect
        "immediately", SwitchForm;
    }
}

const EVENT_FORM: ChoiceForm<Option<IoType>> = ChoiceForm {
    words: &[
        ("none", None),
        ("read_aio", Some(IoType::Read)),
        ("write_aio", Some(IoType::Write)),
        ("flush_to_disk", Some(IoType::Flush)),
    ],
    unsupported: &[],
    placeholder: "none|read_aio|write_aio|flush_to_disk",
};

pub(super) const UNSUPPORTED_KEYS: &[UnsupportedName] = &[
    UnsupportedName {
        name: "config",
        instead: "write its rules as inject-error",
    },
    UnsupportedName {
        name: "set-state",
        instead: "use event, once and times instead of states",
    },
    UnsupportedName {
        name: "align",
        instead: "leave it out: alignment is the image's",
    },
    UnsupportedName {
        name: "max-transfer",
        instead: "leave it out: limits are the image's",
    },
    UnsupportedName {
        name: "opt-write-zero",
        instead: "leave it out: limits are the image's",
    },
    UnsupportedName {
        name: "max-write-zero",
        instead: "leave it out: limits are the image's",
    },
    UnsupportedName {
        name: "opt-discard",
        instead: "leave it out: limits are the image's",
    },
    UnsupportedName {
        name: "max-discard",
        instead: "leave it out: limits are the image's",
    },
    UnsupportedName {
        name: "take-child-perms",
        instead: "leave it out: there are no permissions between nodes",
    },
    UnsupportedName {
        name: "unshare-child-perms",
        instead: "leave it out: there are no permissions between nodes",
    },
];

const UNSUPPORTED_FAULT_KEYS: &[UnsupportedName] = &[UnsupportedName {
    name: "state",
    instead: "use event, once and times instead of states",
}];

/// One `inject-error`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InjectErrorRule {
    /// `event`: it begins with the first request of this kind; `None` (`none`): at once.
    pub event: Option<IoType>,
    /// `iotype`: only these; `None`: all.
    pub iotype: Option<IoType>,
    /// `sector` and `sectors`: the first sector and their number; `None`: all sectors.
    pub sectors: Option<(u64, u64)>,
    /// `times`, or 1 for `once`; `None`: unlimited.
    pub times: Option<u64>,
    /// `one-in`, from 1. Default 1.
    pub one_in: u64,
    /// `action` with its parameters. Default: an error.
    pub action: InjectAction,
}

words! {
    /// A kind of request.
    pub enum IoType {
        /// Reads.
        Read = "read",
        /// Writes.
        Write = "write",
        /// Write-zeroes.
        WriteZeroes = "write-zeroes",
        /// Discards.
        Discard = "discard",
        /// Flushes.
        Flush = "flush",
    }
}

/// The effect of a fault on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InjectAction {
    /// It fails with this `errno`.
    Error(u16),
    /// It takes `delay-ns` longer.
    Delay(u64),
    /// It waits until it is released.
    Hang,
    /// It transfers this many `bytes` and fails with this `errno`.
    Short(u64, u16),
    /// It transfers this many `bytes` and succeeds.
    Torn(u64),
}

/// Options of `blkdebug`: faults, whose order matters, and the seed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BlkdebugOptions {
    /// `inject-error`.
    pub errors: Vec<InjectErrorRule>,
    /// `seed`. Default 0.
    pub seed: u64,
}

words! {
    /// The effect of a fault, without parameters.
    pub enum InjectActionKind {
        /// See [`InjectAction::Error`].
        Error = "error",
        /// See [`InjectAction::Delay`].
        Delay = "delay",
        /// See [`InjectAction::Hang`].
        Hang = "hang",
        /// See [`InjectAction::Short`].
        Short = "short",
        /// See [`InjectAction::Torn`].
        Torn = "torn",
    }
}

/// Highest error number of Linux.
const MAX_ERRNO: u16 = 133;
const EIO: u16 = 5;
/// Highest sector of 512 bytes in a disk of the largest size.
const MAX_SECTOR: u64 = i64::MAX.unsigned_abs() / 512;

/// Reads `inject-error` and `seed`.
pub(crate) fn read_inject_errors_and_seed(fields: &mut Fields) -> Result<BlkdebugOptions, Problem> {
    let BlkdebugSeedKey { seed } = BlkdebugSeedKey::read(fields, None)?;
    let path = fields.full_key("inject-error");
    let items = match fields.take_raw("inject-error") {
        None => Vec::new(),
        Some(Value::List(items)) => items,
        Some(other) => {
            let expected =
                "a list of faults, such as inject-error.0.iotype=write,inject-error.0.errno=28";
            return Err(Problem::BadValue {
                key: path,
                value: other.excerpt(),
                expected: expected.to_owned(),
            });
        }
    };
    let mut errors = Vec::new();
    for (i, item) in items.into_iter().enumerate() {
        let path = format!("{path}.{i}");
        let Value::Object(object) = item else {
            return Err(Problem::BadValue {
                key: path,
                value: item.excerpt(),
                expected: "a group, as in inject-error.0.iotype=write".to_owned(),
            });
        };
        errors.push(read_inject_error_rule(object, &format!("{path}."))?);
    }
    Ok(BlkdebugOptions { errors, seed })
}

/// Reads the keys of one fault. `prefix` precedes them in errors.
fn read_inject_error_rule(object: Object, prefix: &str) -> Result<InjectErrorRule, Problem> {
    let mut fields = Fields::with_known_keys(
        object,
        prefix,
        &[InjectErrorKeys::KEYS],
        UNSUPPORTED_FAULT_KEYS,
    )?;
    let keys = InjectErrorKeys::read(&mut fields, None)?;
    let error = InjectErrorRule {
        event: keys.event,
        iotype: keys.iotype,
        sectors: sector_range(&keys, &fields)?,
        times: max_times(&keys, &fields)?,
        one_in: keys.one_in,
        action: read_inject_action(&keys, &fields)?,
    };
    fields.debug_assert_all_taken();
    Ok(error)
}

/// The first sector and the number of sectors; `None`: all sectors.
fn sector_range(keys: &InjectErrorKeys, fields: &Fields) -> Result<Option<(u64, u64)>, Problem> {
    if keys.sector.is_none() && keys.sectors.is_some() {
        return Err(fields.missing_key_error("sector", "write sector=N, the first of them"));
    }
    let count = keys.sectors.unwrap_or(1);
    Ok(keys.sector.map(|first| (first, count)))
}

/// How often the fault happens; `None`: without a limit.
fn max_times(keys: &InjectErrorKeys, fields: &Fields) -> Result<Option<u64>, Problem> {
    match (keys.once, keys.times) {
        (true, Some(_)) => {
            let (once, times) = (fields.full_key("once"), fields.full_key("times"));
            let reason =
                format!("'{once}' and '{times}' both say how often; leave one of them out");
            Err(Problem::Conflict { reason })
        }
        (true, None) => Ok(Some(1)),
        (false, times) => Ok(times),
    }
}

/// The effect of the fault, with its parameters, of which only those that it uses may be given.
fn read_inject_action(keys: &InjectErrorKeys, fields: &Fields) -> Result<InjectAction, Problem> {
    let used_keys: &[&str] = match keys.action {
        InjectActionKind::Error => &["errno"],
        InjectActionKind::Delay => &["delay-ns"],
        InjectActionKind::Hang => &[],
        InjectActionKind::Short => &["errno", "bytes"],
        InjectActionKind::Torn => &["bytes"],
    };
    let given_keys = [
        ("errno", keys.errno.is_some()),
        ("delay-ns", keys.delay_ns.is_some()),
        ("bytes", keys.bytes.is_some()),
    ];
    let mut unused = given_keys
        .iter()
        .filter(|(key, _)| !used_keys.contains(key));
    if let Some((key, _)) = unused.find(|(_, is_given)| *is_given) {
        let (key, action) = (fields.full_key(key), fields.full_key("action"));
        let reason = format!("'{key}' has no effect with this '{action}'; leave one of them out");
        return Err(Problem::Conflict { reason });
    }
    let errno = keys.errno.unwrap_or(EIO);
    let bytes = keys.bytes.unwrap_or(512);
    Ok(match keys.action {
        InjectActionKind::Error => InjectAction::Error(errno),
        InjectActionKind::Delay => InjectAction::Delay(keys.delay_ns.unwrap_or(0)),
        InjectActionKind::Hang => InjectAction::Hang,
        InjectActionKind::Short => InjectAction::Short(bytes, errno),
        InjectActionKind::Torn => InjectAction::Torn(bytes),
    })
}
