//! `driver=blkdebug`: faults on purpose, in front of another node.
//!
//! Keys are QEMU's where it has them. What QEMU's driver cannot do (wait, hang, transfer less than it says, a range, by
//! chance) are keys of our own beside them.

use crate::{
    Problem,
    fields::{Fields, Key, NotYet},
    tree::{Object, Value},
};

/// The keys of the driver.
pub(crate) const KEYS: &[Key] = &[
    Key {
        name: "image",
        value: "NODE",
        help: "the node that requests go to: its node-name, or its own keys as image.driver=…,image.…",
    },
    Key {
        name: "inject-error",
        value: "LIST",
        help: "what goes wrong: inject-error.0.KEY=VALUE,… with the keys below",
    },
    Key {
        name: "seed",
        value: "N",
        help: "what one-in draws from: the same one and the same requests have the same faults (default 0; blockplane's own)",
    },
];

/// The keys of one fault.
pub(crate) const INJECT_KEYS: &[Key] = &[
    Key {
        name: "event",
        value: "none|read_aio|write_aio|flush_to_disk",
        help: "it begins at once, or with the first read, write or flush (default none)",
    },
    Key {
        name: "iotype",
        value: "read|write|write-zeroes|discard|flush",
        help: "only these requests (default all)",
    },
    Key {
        name: "errno",
        value: "N",
        help: "the error, as a number of Linux (default 5, EIO)",
    },
    Key {
        name: "sector",
        value: "N",
        help: "only requests that touch this sector of 512 bytes (default all)",
    },
    Key {
        name: "sectors",
        value: "N",
        help: "so many sectors from there on (default 1; blockplane's own)",
    },
    Key {
        name: "once",
        value: "on|off",
        help: "it happens once (default off)",
    },
    Key {
        name: "times",
        value: "N",
        help: "it happens so often (blockplane's own)",
    },
    Key {
        name: "one-in",
        value: "N",
        help: "it happens to one request in so many, by chance (default 1: each; blockplane's own)",
    },
    Key {
        name: "immediately",
        value: "on|off",
        help: "taken, and no matter: errors arise in the completion phase as all others do",
    },
    Key {
        name: "action",
        value: "error|delay|hang|short|torn",
        help: "the request fails, waits for delay-ns, waits until it is released, fails after some bytes, or stops after some bytes and succeeds (default error; blockplane's own)",
    },
    Key {
        name: "delay-ns",
        value: "NS",
        help: "how long action=delay takes (default 0; blockplane's own)",
    },
    Key {
        name: "bytes",
        value: "SIZE",
        help: "how much is transferred with action=short or torn (default 512; blockplane's own)",
    },
];

pub(super) const NOT_YET: &[NotYet] = &[
    NotYet {
        name: "config",
        instead: "write its rules as inject-error",
    },
    NotYet {
        name: "set-state",
        instead: "event, once and times are what there is of states",
    },
    NotYet {
        name: "align",
        instead: "leave it out: alignment is the image's",
    },
    NotYet {
        name: "max-transfer",
        instead: "leave it out: limits are the image's",
    },
    NotYet {
        name: "opt-write-zero",
        instead: "leave it out: limits are the image's",
    },
    NotYet {
        name: "max-write-zero",
        instead: "leave it out: limits are the image's",
    },
    NotYet {
        name: "opt-discard",
        instead: "leave it out: limits are the image's",
    },
    NotYet {
        name: "max-discard",
        instead: "leave it out: limits are the image's",
    },
    NotYet {
        name: "take-child-perms",
        instead: "leave it out: there are no permissions between nodes",
    },
    NotYet {
        name: "unshare-child-perms",
        instead: "leave it out: there are no permissions between nodes",
    },
];

const INJECT_NOT_YET: &[NotYet] = &[NotYet {
    name: "state",
    instead: "event, once and times are what there is of states",
}];

/// One `inject-error`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InjectError {
    /// `event`: it begins with the first request of this kind; `None` (`none`): at once.
    pub event: Option<IoType>,
    /// `iotype`: only these; `None`: all.
    pub iotype: Option<IoType>,
    /// `sector` and `sectors`: the first, and how many; `None`: everywhere.
    pub sectors: Option<(u64, u64)>,
    /// `times`, or 1 for `once`; `None`: for ever.
    pub times: Option<u64>,
    /// `one-in`, from 1. Default 1.
    pub one_in: u64,
    /// `action`, with what it needs. Default: an error.
    pub action: InjectAction,
}

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoType {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Write-zeroes.
    WriteZeroes,
    /// Discards.
    Discard,
    /// Flushes.
    Flush,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InjectAction {
    /// It fails with this `errno`.
    Error(u16),
    /// It takes `delay-ns` longer.
    Delay(u64),
    /// It waits until it is released.
    Hang,
    /// So many `bytes`, then it fails with this `errno`.
    Short(u64, u16),
    /// So many `bytes`, and it succeeds.
    Torn(u64),
}

/// All faults of a node, whose order counts, and the seed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Injected {
    /// `inject-error`.
    pub errors: Vec<InjectError>,
    /// `seed`. Default 0.
    pub seed: u64,
}

#[derive(Clone, Copy)]
enum Action {
    Error,
    Delay,
    Hang,
    Short,
    Torn,
}

/// Highest error number that Linux has.
const MAX_ERRNO: u64 = 133;
const EIO: u64 = 5;
/// What Linux counts as a sector, in a disk as large as files get.
const MAX_SECTOR: u64 = i64::MAX.unsigned_abs() / 512;

/// Takes `inject-error` and `seed`.
pub(crate) fn injected(fields: &mut Fields) -> Result<Injected, Problem> {
    let seed = fields.number("seed", 0, u64::MAX)?.unwrap_or(0);
    let path = fields.path("inject-error");
    let items = match fields.take("inject-error") {
        None => Vec::new(),
        Some(Value::List(items)) => items,
        Some(other) => {
            let expected =
                "a list of faults, such as inject-error.0.iotype=write,inject-error.0.errno=28";
            return Err(Problem::BadValue {
                key: path,
                value: other.shown(),
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
                value: item.shown(),
                expected: "a group, as in inject-error.0.iotype=write".to_owned(),
            });
        };
        errors.push(inject_error(object, &format!("{path}."))?);
    }
    Ok(Injected { errors, seed })
}

fn inject_error(object: Object, prefix: &str) -> Result<InjectError, Problem> {
    let mut fields = Fields::new(object, prefix, &[INJECT_KEYS], INJECT_NOT_YET)?;
    let events = [
        ("none", None),
        ("read_aio", Some(IoType::Read)),
        ("write_aio", Some(IoType::Write)),
        ("flush_to_disk", Some(IoType::Flush)),
    ];
    let types = [
        ("read", IoType::Read),
        ("write", IoType::Write),
        ("write-zeroes", IoType::WriteZeroes),
        ("discard", IoType::Discard),
        ("flush", IoType::Flush),
    ];
    let event = fields.choice("event", &events, &[])?.flatten();
    let iotype = fields.choice("iotype", &types, &[])?;
    // It says when an error arises, which has one answer here.
    fields.boolean("immediately")?;
    let error = InjectError {
        event,
        iotype,
        sectors: sectors(&mut fields)?,
        times: times(&mut fields)?,
        one_in: fields.number("one-in", 1, u64::MAX)?.unwrap_or(1),
        action: action(&mut fields)?,
    };
    fields.finish();
    Ok(error)
}

fn sectors(fields: &mut Fields) -> Result<Option<(u64, u64)>, Problem> {
    let first = fields.number("sector", 0, MAX_SECTOR)?;
    let count = fields.number("sectors", 1, MAX_SECTOR)?;
    if first.is_none() && count.is_some() {
        return Err(Problem::Missing {
            key: fields.path("sector"),
            expected: "write sector=N, the first of them".to_owned(),
        });
    }
    Ok(first.map(|first| (first, count.unwrap_or(1))))
}

fn times(fields: &mut Fields) -> Result<Option<u64>, Problem> {
    let once = fields.boolean("once")?.unwrap_or(false);
    let times = fields.number("times", 1, u64::MAX)?;
    match (once, times) {
        (true, Some(_)) => {
            let (once, times) = (fields.path("once"), fields.path("times"));
            let reason =
                format!("'{once}' and '{times}' both say how often; leave one of them out");
            Err(Problem::Conflict { reason })
        }
        (true, None) => Ok(Some(1)),
        (false, times) => Ok(times),
    }
}

fn action(fields: &mut Fields) -> Result<InjectAction, Problem> {
    let actions = [
        ("error", Action::Error),
        ("delay", Action::Delay),
        ("hang", Action::Hang),
        ("short", Action::Short),
        ("torn", Action::Torn),
    ];
    let action = fields.choice("action", &actions, &[])?;
    let action = action.unwrap_or(Action::Error);
    let takes: &[&str] = match action {
        Action::Error => &["errno"],
        Action::Delay => &["delay-ns"],
        Action::Hang => &[],
        Action::Short => &["errno", "bytes"],
        Action::Torn => &["bytes"],
    };
    let others = ["errno", "delay-ns", "bytes"];
    let mut others = others.iter().filter(|key| !takes.contains(key));
    if let Some(key) = others.find(|key| fields.has(key)) {
        let (key, action) = (fields.path(key), fields.path("action"));
        let reason = format!("'{key}' means nothing to this '{action}'; leave one of them out");
        return Err(Problem::Conflict { reason });
    }
    let errno = fields.number("errno", 1, MAX_ERRNO)?.unwrap_or(EIO);
    // The range above fits.
    let errno = u16::try_from(errno).unwrap_or(u16::MAX);
    let delay_ns = fields.number("delay-ns", 0, u64::MAX)?.unwrap_or(0);
    let bytes = fields.size("bytes", 0, u64::MAX)?.unwrap_or(512);
    Ok(match action {
        Action::Error => InjectAction::Error(errno),
        Action::Delay => InjectAction::Delay(delay_ns),
        Action::Hang => InjectAction::Hang,
        Action::Short => InjectAction::Short(bytes, errno),
        Action::Torn => InjectAction::Torn(bytes),
    })
}
