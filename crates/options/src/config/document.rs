//! From TOML to trees, each value with its place.
//!
//! TOML has types and two ways to nest (tables and dotted keys); the trees are those of the command line. A
//! string may stand for what the command line writes as text: `"1G"`, `"on"`.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

use crate::{
    MetricsAddr,
    directive::Kind,
    key::NotYet,
    metrics, suggest,
    tree::{Object, Value},
};

pub(crate) const SECTIONS: &[(&str, Kind)] = &[
    ("iothread", Kind::Object),
    ("blockdev", Kind::Blockdev),
    ("chardev", Kind::Chardev),
    ("monitor", Kind::Monitor),
    ("export", Kind::Export),
];

/// What is not in a file, and where it is.
const ELSEWHERE: &[NotYet] = &[
    NotYet {
        name: "object",
        instead: "write [iothread.NAME]",
    },
    NotYet {
        name: "pidfile",
        instead: "give --pidfile on the command line",
    },
    NotYet {
        name: "daemonize",
        instead: "give --daemonize on the command line",
    },
    NotYet {
        name: "sandbox",
        instead: "give --sandbox on the command line",
    },
    NotYet {
        name: "user",
        instead: "give --user on the command line",
    },
];

/// Something wrong at a place.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) at: Range<usize>,
    pub(super) message: String,
}

/// One table, such as `[export.e0]`.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) kind: Kind,
    /// The name in the header.
    pub(super) name: String,
    /// Where the name is.
    pub(super) header: Range<usize>,
    /// As on the command line, with the name at its key.
    pub(super) object: Object,
    spans: Spans,
}

/// A document in parts.
#[derive(Debug, Default)]
pub(super) struct Document {
    pub(super) sections: Vec<Section>,
    /// `[metrics]`
    pub(super) metrics: Option<MetricsAddr>,
    pub(super) faults: Vec<Fault>,
}

/// The table of what is no thing with a name.
const METRICS: &str = "metrics";

/// Where the keys of a table are, by their dotted names.
#[derive(Debug, Default)]
struct Spans(Vec<(String, Span)>);

#[derive(Debug, Clone)]
struct Span {
    key: Range<usize>,
    value: Range<usize>,
}

impl Section {
    /// Where a value is; where the key itself is, if `key_only`. What is not there is in the smallest group
    /// that is there.
    pub(super) fn place(&self, path: &str, key_only: bool) -> Range<usize> {
        let mut path = path;
        loop {
            if let Some(span) = self.span(path) {
                return if key_only { &span.key } else { &span.value }.clone();
            }
            match path.rfind('.') {
                Some(dot) => path = &path[..dot],
                None => return self.header.clone(),
            }
        }
    }

    /// Whether the table has this key.
    pub(super) fn has(&self, path: &str) -> bool {
        self.span(path).is_some()
    }

    fn span(&self, path: &str) -> Option<&Span> {
        let found = self.spans.0.iter().find(|(name, _)| name == path);
        found.map(|(_, span)| span)
    }
}

/// Takes a document apart. With an error of TOML's grammar there are no sections: they would not be what was meant.
pub(super) fn read(text: &str) -> Document {
    let (document, errors) = DeTable::parse_recoverable(text);
    let mut faults: Vec<Fault> = errors
        .iter()
        .map(|error| Fault {
            at: error.span().unwrap_or(0..0),
            message: format!("not TOML: {}", error.message()),
        })
        .collect();
    if !faults.is_empty() {
        return Document {
            faults,
            ..Document::default()
        };
    }
    let mut sections = Vec::new();
    let mut metrics = None;
    for (key, value) in document.get_ref() {
        let name: &str = key.get_ref();
        if name == METRICS {
            metrics = metrics_addr(value.get_ref(), key.span(), &mut faults);
            continue;
        }
        let Some((_, kind)) = SECTIONS.iter().find(|(section, _)| *section == name) else {
            faults.push(Fault {
                at: key.span(),
                message: unknown(name),
            });
            continue;
        };
        let DeValue::Table(tables) = value.get_ref() else {
            faults.push(Fault {
                at: key.span(),
                message: format!("'{name}' needs a name: write [{name}.NAME]"),
            });
            continue;
        };
        for (key, value) in tables {
            let (entry, header): (&str, _) = (key.get_ref(), key.span());
            match value.get_ref() {
                DeValue::Table(table) => {
                    sections.push(section(*kind, entry, header, table, &mut faults));
                }
                _ => faults.push(Fault {
                    at: header,
                    message: format!(
                        "'{name}.{entry}' is not a table: write [{name}.NAME], and its keys below"
                    ),
                }),
            }
        }
    }
    sections.sort_by_key(|section| section.header.start);
    Document {
        sections,
        metrics,
        faults,
    }
}

/// What `[metrics]` says: `listen`, and nothing else.
fn metrics_addr(
    value: &DeValue<'_>,
    header: Range<usize>,
    faults: &mut Vec<Fault>,
) -> Option<MetricsAddr> {
    let mut fault = |at, message: String| faults.push(Fault { at, message });
    let DeValue::Table(table) = value else {
        fault(
            header,
            "'metrics' is a table: write [metrics], and listen = \"…\" below".to_owned(),
        );
        return None;
    };
    let mut addr = None;
    for (key, value) in table {
        let name: &str = key.get_ref();
        let text = match value.get_ref() {
            DeValue::String(text) => Some(text),
            _ => None,
        };
        if name != "listen" {
            let name = crate::error::shown(name);
            fault(
                key.span(),
                format!("unknown option '{name}'. Known: listen"),
            );
            return None;
        }
        addr = text.and_then(|text| MetricsAddr::read(text));
        if addr.is_none() {
            let expected = metrics::EXPECTED;
            fault(
                value.span(),
                format!("'listen' is not an address: expected {expected}"),
            );
            return None;
        }
    }
    if addr.is_none() {
        let expected = metrics::EXPECTED;
        fault(header, format!("'listen' is missing: expected {expected}"));
    }
    addr
}

fn unknown(name: &str) -> String {
    if let Some(elsewhere) = ELSEWHERE.iter().find(|elsewhere| elsewhere.name == name) {
        return format!("'{name}' is not in a file: {}", elsewhere.instead);
    }
    let known = || SECTIONS.iter().map(|(section, _)| *section);
    let words = known().chain([METRICS]);
    let question = match suggest::closest(name, words) {
        Some(section) => format!("; did you mean '{section}'?"),
        None => ".".to_owned(),
    };
    let known = known().map(|section| format!("[{section}.NAME]"));
    let known: Vec<String> = known.chain([format!("[{METRICS}]")]).collect();
    let name = crate::error::shown(name);
    format!(
        "unknown table '{name}'{question} Known: {}",
        known.join(", ")
    )
}

fn section(
    kind: Kind,
    name: &str,
    header: Range<usize>,
    table: &DeTable<'_>,
    faults: &mut Vec<Fault>,
) -> Section {
    let mut spans = Spans::default();
    let mut object = tree(table, "", &mut spans, faults);
    let name_key = kind.name_key();
    if object.get(name_key).is_some() {
        object.entries.retain(|(key, _)| key != name_key);
        let at = spans.0.iter().find(|(path, _)| path == name_key);
        faults.push(Fault {
            at: at.map_or_else(|| header.clone(), |(_, span)| span.key.clone()),
            message: format!("remove '{name_key}': the name is '{name}', in the table's header"),
        });
    }
    object.push(name_key.to_owned(), Value::Text(name.to_owned()));
    let implied = match kind {
        Kind::Object => Some("iothread"),
        Kind::Chardev => Some("socket"),
        Kind::Export => Some("vhost-user-blk"),
        Kind::Blockdev | Kind::Monitor => None,
    };
    if let Some(implied) = implied.filter(|_| object.get(kind.implied_key()).is_none()) {
        let key = kind.implied_key().to_owned();
        object.push(key, Value::Text(implied.to_owned()));
    }
    Section {
        kind,
        name: name.to_owned(),
        header,
        object,
        spans,
    }
}

fn tree(table: &DeTable<'_>, prefix: &str, spans: &mut Spans, faults: &mut Vec<Fault>) -> Object {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    let mut object = Object::default();
    for (key, value) in entries {
        let path = format!("{prefix}{}", key.get_ref());
        let span = Span {
            key: key.span(),
            value: value.span(),
        };
        spans.0.push((path.clone(), span));
        if let Some(value) = value_of(value.get_ref(), &path, value.span(), spans, faults) {
            object.push(key.get_ref().to_string(), value);
        }
    }
    object
}

fn value_of(
    value: &DeValue<'_>,
    path: &str,
    at: Range<usize>,
    spans: &mut Spans,
    faults: &mut Vec<Fault>,
) -> Option<Value> {
    let below = format!("{path}.");
    Some(match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => Value::Number(number.to_string()),
        DeValue::Float(number) => Value::Number(number.to_string()),
        DeValue::Boolean(value) => Value::Bool(*value),
        DeValue::Datetime(_) => {
            let message = format!("'{path}' cannot be a date; put it in quotes");
            faults.push(Fault { at, message });
            return None;
        }
        DeValue::Array(items) => {
            let mut list = Vec::new();
            for (index, item) in items.iter().enumerate() {
                let path = format!("{below}{index}");
                let span = Span {
                    key: item.span(),
                    value: item.span(),
                };
                spans.0.push((path.clone(), span));
                list.extend(value_of(item.get_ref(), &path, item.span(), spans, faults));
            }
            Value::List(list)
        }
        DeValue::Table(table) => Value::Object(tree(table, &below, spans, faults)),
    })
}
