//! Parses `key=value,key=value`, the text notation of qemu-storage-daemon's options.
//!
//! - Dots in a key nest: `cache.direct=on` is `direct` in the group `cache`.
//! - Whole numbers as parts of a key make a list: `iothread.0=a,iothread.1=b`.
//! - `,,` in a value is one comma. A comma at the end is ignored.
//! - The first value may omit its key if the option has an implied one: `--blockdev file,…`.
//! - Of a repeated key the last value counts, as in qemu-storage-daemon, so that scripts can append settings to a common set.
//!   (In JSON, a duplicate key is an error in both programs.)
//! - `help` alone requests the list of keys.

use crate::{
    Problem,
    error::excerpt,
    tree::{Object, Value},
};

/// Longest key in bytes, as in qemu-storage-daemon. It also bounds how deep a tree can get.
const MAX_KEY_BYTES: usize = 127;

/// The parsed text of an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ParsedKeyval {
    pub(crate) object: Object,
    /// Whether `help` was among the keys.
    pub(crate) wants_help: bool,
}

/// Parses `text`; a first word without `=` is the value of the key `implied`.
pub(crate) fn parse(text: &str, implied: &str) -> Result<ParsedKeyval, Problem> {
    let mut root = Object::default();
    let mut wants_help = false;
    let mut rest = text;
    let mut is_first = true;
    while !rest.is_empty() {
        let end = rest.find(['=', ',']).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        if let Some(value_text) = after.strip_prefix('=') {
            let (value, next) = split_off_value(value_text);
            insert_or_replace_key(&mut root, word, value)?;
            rest = next;
        } else if matches!(word, "help" | "?") {
            wants_help = true;
            rest = after.strip_prefix(',').unwrap_or(after);
        } else if is_first && !word.is_empty() {
            let (value, next) = split_off_value(rest);
            insert_or_replace_key(&mut root, implied, value)?;
            rest = next;
        } else {
            return Err(missing_equals_error(word));
        }
        is_first = false;
    }
    let mut object = root;
    for (key, value) in &mut object.entries {
        convert_indexed_groups_to_lists(key, value)?;
    }
    Ok(ParsedKeyval { object, wants_help })
}

/// The error for a word that is not `key=value`.
fn missing_equals_error(word: &str) -> Problem {
    let reason = if word.is_empty() {
        "a key is missing before ','; write key=value,key=value, and ',,' for a comma inside a value".to_owned()
    } else {
        format!(
            "expected '=' and a value after '{}' (a comma inside a value is written ',,')",
            excerpt(word)
        )
    };
    Problem::Syntax { reason }
}

/// Splits off a value, which ends at a single comma. Returns it and the rest after the comma.
fn split_off_value(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut rest = text;
    loop {
        let Some(comma) = rest.find(',') else {
            value.push_str(rest);
            return (value, "");
        };
        value.push_str(&rest[..comma]);
        rest = &rest[comma + 1..];
        match rest.strip_prefix(',') {
            Some(after) => {
                value.push(',');
                rest = after;
            }
            None => return (value, rest),
        }
    }
}

/// Inserts a value at a dotted key, and the groups that its dots name.
fn insert_or_replace_key(root: &mut Object, key: &str, value: String) -> Result<(), Problem> {
    if key.len() > MAX_KEY_BYTES {
        let reason = format!(
            "key '{}' is longer than {MAX_KEY_BYTES} bytes",
            excerpt(key)
        );
        return Err(Problem::Syntax { reason });
    }
    let mut parts = key.split('.').enumerate().peekable();
    let mut object = root;
    while let Some((position, part)) = parts.next() {
        if !(is_key_component_word(part) || position > 0 && is_list_index(part)) {
            let reason = format!(
                "'{}' is not a valid key: its parts are words of letters, digits, '-' and '_'",
                excerpt(key)
            );
            return Err(Problem::Syntax { reason });
        }
        if parts.peek().is_none() {
            match object.get_mut(part) {
                None => object.push(part.to_owned(), Value::Text(value)),
                Some(Value::Object(_)) => return Err(value_and_group_error(key)),
                Some(old) => *old = Value::Text(value),
            }
            return Ok(());
        }
        if object.get(part).is_none() {
            object.push(part.to_owned(), Value::Object(Object::default()));
        }
        object = match object.get_mut(part) {
            Some(Value::Object(group)) => group,
            _ => {
                let group_key = key
                    .split('.')
                    .take(position + 1)
                    .collect::<Vec<_>>()
                    .join(".");
                return Err(value_and_group_error(&group_key));
            }
        };
    }
    Ok(())
}

/// The error for a key that is used as a group as well.
fn value_and_group_error(key: &str) -> Problem {
    let reason = format!(
        "'{key}' has a value of its own and is also used as a group ('{key}.…'); one of them is wrong"
    );
    Problem::Syntax { reason }
}

/// Whether it is a word: a letter, then letters, digits, `-` and `_`.
fn is_key_component_word(part: &str) -> bool {
    part.starts_with(|c: char| c.is_ascii_alphabetic())
        && part
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

fn is_list_index(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit())
}

/// Turns every group whose keys are 0, 1, 2, … into a list.
fn convert_indexed_groups_to_lists(path: &str, value: &mut Value) -> Result<(), Problem> {
    let Value::Object(object) = value else {
        return Ok(());
    };
    for (key, child) in &mut object.entries {
        convert_indexed_groups_to_lists(&format!("{path}.{key}"), child)?;
    }
    let indices = object
        .entries
        .iter()
        .filter(|(key, _)| is_list_index(key))
        .count();
    if indices == 0 {
        return Ok(());
    }
    if indices < object.entries.len() {
        let reason = format!("'{path}.…' mixes list positions (such as '{path}.0') and names");
        return Err(Problem::Syntax { reason });
    }
    let mut list = Vec::with_capacity(indices);
    for position in 0..indices {
        let key = position.to_string();
        match object.get_mut(&key) {
            Some(item) => list.push(std::mem::replace(item, Value::Null)),
            None => {
                let reason =
                    format!("'{path}.{key}' is missing: a list is numbered from 0 without gaps");
                return Err(Problem::Syntax { reason });
            }
        }
    }
    *value = Value::List(list);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::tests::to_serde_json;
    use proptest::prelude::*;
    use serde_json::json;

    /// The inverse of [`parse`] for trees of text without empty groups.
    fn print(object: &Object) -> String {
        let mut out = Vec::new();
        for (key, value) in &object.entries {
            print_value(key, value, &mut out);
        }
        out.join(",")
    }

    fn print_value(path: &str, value: &Value, out: &mut Vec<String>) {
        match value {
            Value::Text(text) => out.push(format!("{path}={}", text.replace(',', ",,"))),
            Value::List(items) => {
                for (i, item) in items.iter().enumerate() {
                    print_value(&format!("{path}.{i}"), item, out);
                }
            }
            Value::Object(object) => {
                for (key, value) in &object.entries {
                    print_value(&format!("{path}.{key}"), value, out);
                }
            }
            other => unreachable!("key=value has no {other:?}"),
        }
    }

    #[test]
    fn trees_are_read() {
        let file = json!({"driver": "file", "filename": "a=b"});
        for (input, expected) in [
            ("file,filename=a=b", file.clone()),
            ("driver=file,filename=a=b,", file),
            ("", json!({})),
            ("a=", json!({"a": ""})),
            ("a=x,,y,b=,,", json!({"a": "x,y", "b": ","})),
            ("x,,y", json!({"driver": "x,y"})),
            ("a=,,,b=1", json!({"a": ",", "b": "1"})),
            (
                "c.d=on,x=1,c.e=off",
                json!({"c": {"d": "on", "e": "off"}, "x": "1"}),
            ),
            ("io.1=b,io.0=a", json!({"io": ["a", "b"]})),
            ("a=1,b=2,a=3", json!({"a": "3", "b": "2"})),
        ] {
            let parsed = parse(input, "driver").unwrap();
            assert!(!parsed.wants_help);
            assert_eq!(
                to_serde_json(&Value::Object(parsed.object)),
                expected,
                "{input}"
            );
        }
        for input in ["help", "iothread,help"] {
            assert!(parse(input, "driver").unwrap().wants_help);
        }
    }

    #[test]
    fn errors_name_the_cause() {
        for (input, part) in [
            ("null-co,size", "after 'size'"),
            (",a=b", "a key is missing"),
            ("a=1,,,b", "after 'b'"),
            ("cache=on,cache.direct=on", "'cache' has a value of its own"),
            ("cache.direct=on,cache=on", "'cache' has a value of its own"),
            ("a.b.c=1,a.b=2", "'a.b' has a value of its own"),
            ("a.0=1,a.b=2", "mixes"),
            ("a.1=1", "'a.0' is missing"),
            ("a.0=1,a.2=1", "'a.1' is missing"),
        ] {
            let error = parse(input, "driver").unwrap_err().to_string();
            assert!(error.contains(part), "{input}: {error}");
        }
        let longest = "k".repeat(MAX_KEY_BYTES);
        assert!(parse(&format!("{longest}=v"), "driver").is_ok());
        let malformed = "| .| .x| x.| x..y| a b| 1| 0.a| x.01| -x| é".split('|');
        for key in malformed.map(str::trim).chain([&*format!("{longest}k")]) {
            assert!(parse(&format!("{key}=v"), "driver").is_err(), "{key:?}");
        }
    }

    fn tree() -> impl Strategy<Value = Object> {
        let name = "[a-z][a-z0-9_-]{0,6}";
        let leaf = "[a-z=.,/ é0-9]{0,9}".prop_map(Value::Text);
        let value = leaf.prop_recursive(3, 24, 4, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 1..4).prop_map(Value::List),
                prop::collection::btree_map(name, inner, 1..4).prop_map(|map| Value::Object(
                    Object {
                        entries: map.into_iter().collect()
                    }
                )),
            ]
        });
        prop::collection::btree_map(name, value, 0..5).prop_map(|map| Object {
            entries: map.into_iter().collect(),
        })
    }

    proptest! {
        #[test]
        fn a_printed_tree_parses_to_itself(tree in tree()) {
            let parsed = parse(&print(&tree), "driver").unwrap();
            prop_assert!(!parsed.wants_help);
            prop_assert_eq!(parsed.object, tree);
        }
    }
}
