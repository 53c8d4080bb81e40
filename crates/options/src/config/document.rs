//! Converts a TOML document to trees of values, one for each table of an object, and keeps the location of each key.
//!
//! TOML has types and two ways to nest (tables and dotted keys); the trees are those of the command line. A string may hold a value
//! that is text on the command line: `"1G"`, `"on"`.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

use crate::{
    MetricsAddr,
    directive::DirectiveKind,
    key::UnsupportedName,
    metrics, suggest,
    tree::{Object, Value},
};

/// A kind of table.
pub(crate) struct SectionKind {
    /// The first part of its header.
    name: &'static str,
    kind: DirectiveKind,
    /// The value of the key that says which type or driver it is, if that may be left out.
    implied: Option<&'static str>,
}

const fn section_kind(
    name: &'static str,
    kind: DirectiveKind,
    implied: Option<&'static str>,
) -> SectionKind {
    SectionKind {
        name,
        kind,
        implied,
    }
}

pub(crate) const SECTIONS: &[SectionKind] = &[
    section_kind("iothread", DirectiveKind::Object, Some("iothread")),
    section_kind("secret", DirectiveKind::Object, Some("secret")),
    section_kind(
        "throttle-group",
        DirectiveKind::Object,
        Some("throttle-group"),
    ),
    section_kind(
        "tls-creds-x509",
        DirectiveKind::Object,
        Some("tls-creds-x509"),
    ),
    section_kind("authz-list", DirectiveKind::Object, Some("authz-list")),
    section_kind("blockdev", DirectiveKind::Blockdev, None),
    section_kind("chardev", DirectiveKind::Chardev, Some("socket")),
    section_kind("monitor", DirectiveKind::Monitor, None),
    section_kind("nbd-server", DirectiveKind::NbdServer, None),
    section_kind("export", DirectiveKind::Export, Some("vhost-user-blk")),
];

/// Options that a file does not have, and what to write instead.
const COMMAND_LINE_ONLY: &[UnsupportedName] = &[
    UnsupportedName {
        name: "object",
        instead: "write [iothread.NAME], [secret.NAME], [throttle-group.NAME], [tls-creds-x509.NAME] or [authz-list.NAME]",
    },
    UnsupportedName {
        name: "pidfile",
        instead: "give --pidfile on the command line",
    },
    UnsupportedName {
        name: "daemonize",
        instead: "give --daemonize on the command line",
    },
    UnsupportedName {
        name: "sandbox",
        instead: "give --sandbox on the command line",
    },
    UnsupportedName {
        name: "user",
        instead: "give --user on the command line",
    },
];

/// An error at a location.
#[derive(Debug)]
pub(super) struct DocumentError {
    pub(super) range: Range<usize>,
    pub(super) message: String,
}

/// One table, such as `[export.e0]`.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) kind: DirectiveKind,
    /// The name in the header.
    pub(super) name: String,
    /// The location of the name.
    pub(super) header: Range<usize>,
    /// The keys as on the command line, with the name.
    pub(super) object: Object,
    spans: KeyValueSpans,
}

/// The parts of a document.
#[derive(Debug, Default)]
pub(super) struct Document {
    pub(super) sections: Vec<Section>,
    /// `[metrics]`
    pub(super) metrics: Option<MetricsAddr>,
    pub(super) errors: Vec<DocumentError>,
}

/// The table of metrics, which has no name.
const METRICS_TABLE: &str = "metrics";

/// Locations of the keys of a table, by their dotted names.
#[derive(Debug, Default)]
struct KeyValueSpans(Vec<(String, KeyValueSpan)>);

#[derive(Debug, Clone)]
struct KeyValueSpan {
    key: Range<usize>,
    value: Range<usize>,
}

impl Section {
    /// The location of a value, or of its key if `key_only`. For a missing key it is that of the innermost existing group.
    pub(super) fn range_of_key_or_value(&self, path: &str, key_only: bool) -> Range<usize> {
        let mut path = path;
        loop {
            if let Some(span) = self.find_span(path) {
                return if key_only { &span.key } else { &span.value }.clone();
            }
            match path.rfind('.') {
                Some(dot) => path = &path[..dot],
                None => return self.header.clone(),
            }
        }
    }

    /// Whether the table has this key.
    pub(super) fn has_key(&self, path: &str) -> bool {
        self.find_span(path).is_some()
    }

    fn find_span(&self, path: &str) -> Option<&KeyValueSpan> {
        let found = self.spans.0.iter().find(|(name, _)| name == path);
        found.map(|(_, span)| span)
    }
}

/// Parses a document. After a syntax error of TOML there are no sections, since they might not be as intended.
pub(super) fn parse_document(text: &str) -> Document {
    let (document, errors) = DeTable::parse_recoverable(text);
    let mut errors: Vec<DocumentError> = errors
        .iter()
        .map(|error| DocumentError {
            range: error.span().unwrap_or(0..0),
            message: format!("not TOML: {}", error.message()),
        })
        .collect();
    if !errors.is_empty() {
        return Document {
            errors,
            ..Document::default()
        };
    }
    let mut sections = Vec::new();
    let mut metrics = None;
    for (key, value) in document.get_ref() {
        let name: &str = key.get_ref();
        if name == METRICS_TABLE {
            metrics = read_metrics_table(value.get_ref(), key.span(), &mut errors);
            continue;
        }
        let Some(section) = SECTIONS.iter().find(|section| section.name == name) else {
            errors.push(DocumentError {
                range: key.span(),
                message: unknown_table_message(name),
            });
            continue;
        };
        let DeValue::Table(tables) = value.get_ref() else {
            errors.push(DocumentError {
                range: key.span(),
                message: format!("'{name}' needs a name: write [{name}.NAME]"),
            });
            continue;
        };
        if section.kind.name_key().is_none() {
            sections.push(read_section(section, "", key.span(), tables, &mut errors));
            continue;
        }
        for (key, value) in tables {
            let (entry, header): (&str, _) = (key.get_ref(), key.span());
            match value.get_ref() {
                DeValue::Table(table) => {
                    sections.push(read_section(section, entry, header, table, &mut errors));
                }
                _ => errors.push(DocumentError {
                    range: header,
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
        errors,
    }
}

/// Reads `[metrics]`, whose only key is `listen`.
fn read_metrics_table(
    value: &DeValue<'_>,
    header: Range<usize>,
    errors: &mut Vec<DocumentError>,
) -> Option<MetricsAddr> {
    let mut report = |at, message: String| errors.push(DocumentError { range: at, message });
    let DeValue::Table(table) = value else {
        report(
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
            let name = crate::error::excerpt(name);
            report(
                key.span(),
                format!("unknown option '{name}'. Known: listen"),
            );
            return None;
        }
        addr = text.and_then(|text| MetricsAddr::from_text(text));
        if addr.is_none() {
            let expected = metrics::ADDR_EXPECTED;
            report(
                value.span(),
                format!("'listen' is not an address: expected {expected}"),
            );
            return None;
        }
    }
    if addr.is_none() {
        let expected = metrics::ADDR_EXPECTED;
        report(header, format!("'listen' is missing: expected {expected}"));
    }
    addr
}

/// The message for a table of this name, which does not exist.
fn unknown_table_message(name: &str) -> String {
    if let Some(known) = COMMAND_LINE_ONLY.iter().find(|known| known.name == name) {
        return format!("'{name}' is not in a file: {}", known.instead);
    }
    let known = || SECTIONS.iter().map(|section| section.name);
    let words = known().chain([METRICS_TABLE]);
    let question = match suggest::closest_if_similar(name, words) {
        Some(section) => format!("; did you mean '{section}'?"),
        None => ".".to_owned(),
    };
    let header = |section: &SectionKind| match section.kind.name_key() {
        Some(_) => format!("[{}.NAME]", section.name),
        None => format!("[{}]", section.name),
    };
    let known = SECTIONS.iter().map(header);
    let known: Vec<String> = known.chain([format!("[{METRICS_TABLE}]")]).collect();
    let name = crate::error::excerpt(name);
    format!(
        "unknown table '{name}'{question} Known: {}",
        known.join(", ")
    )
}

/// Reads the table of one object. Adds its name, from the header, and its kind if that is left out.
fn read_section(
    section: &SectionKind,
    name: &str,
    header: Range<usize>,
    table: &DeTable<'_>,
    errors: &mut Vec<DocumentError>,
) -> Section {
    let mut spans = KeyValueSpans::default();
    let mut object = read_table_keys(table, "", &mut spans, errors);
    let kind = section.kind;
    if let Some(name_key) = kind.name_key() {
        if object.get(name_key).is_some() {
            object.entries.retain(|(key, _)| key != name_key);
            let at = spans.0.iter().find(|(path, _)| path == name_key);
            errors.push(DocumentError {
                range: at.map_or_else(|| header.clone(), |(_, span)| span.key.clone()),
                message: format!(
                    "remove '{name_key}': the name is '{name}', in the table's header"
                ),
            });
        }
        object.push(name_key.to_owned(), Value::Text(name.to_owned()));
    }
    let type_key = kind.implied_key();
    match (section.implied, object.get(type_key)) {
        (Some(implied), None) => {
            object.push(type_key.to_owned(), Value::Text(implied.to_owned()));
        }
        // The header is the type of an object.
        (Some(implied), Some(found))
            if kind == DirectiveKind::Object && *found != Value::Text(implied.to_owned()) =>
        {
            let at = spans.0.iter().find(|(path, _)| path == type_key);
            errors.push(DocumentError {
                range: at.map_or_else(|| header.clone(), |(_, span)| span.value.clone()),
                message: format!(
                    "remove '{type_key}': the table's header has the type, '{implied}'"
                ),
            });
        }
        _ => {}
    }
    Section {
        kind,
        name: name.to_owned(),
        header,
        object,
        spans,
    }
}

/// Reads the keys of a table in the order of the file. `prefix` precedes their names in `spans`, with its dot.
fn read_table_keys(
    table: &DeTable<'_>,
    prefix: &str,
    spans: &mut KeyValueSpans,
    errors: &mut Vec<DocumentError>,
) -> Object {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    let mut object = Object::default();
    for (key, value) in entries {
        let path = format!("{prefix}{}", key.get_ref());
        let span = KeyValueSpan {
            key: key.span(),
            value: value.span(),
        };
        spans.0.push((path.clone(), span));
        if let Some(value) = read_toml_value(value.get_ref(), &path, value.span(), spans, errors) {
            object.push(key.get_ref().to_string(), value);
        }
    }
    object
}

/// Reads a value. `path` is the dotted name of its key, `at` its location.
fn read_toml_value(
    value: &DeValue<'_>,
    path: &str,
    at: Range<usize>,
    spans: &mut KeyValueSpans,
    errors: &mut Vec<DocumentError>,
) -> Option<Value> {
    let below = format!("{path}.");
    Some(match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => Value::Number(number.to_string()),
        DeValue::Float(number) => Value::Number(number.to_string()),
        DeValue::Boolean(value) => Value::Bool(*value),
        DeValue::Datetime(_) => {
            let message = format!("'{path}' cannot be a date; put it in quotes");
            errors.push(DocumentError { range: at, message });
            return None;
        }
        DeValue::Array(items) => {
            let mut list = Vec::new();
            for (index, item) in items.iter().enumerate() {
                let path = format!("{below}{index}");
                let span = KeyValueSpan {
                    key: item.span(),
                    value: item.span(),
                };
                spans.0.push((path.clone(), span));
                list.extend(read_toml_value(
                    item.get_ref(),
                    &path,
                    item.span(),
                    spans,
                    errors,
                ));
            }
            Value::List(list)
        }
        DeValue::Table(table) => Value::Object(read_table_keys(table, &below, spans, errors)),
    })
}
