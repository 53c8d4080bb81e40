//! Lists of a monitor's commands and events with their arguments, one per line, from the reply to `query-qmp-schema`.

use std::collections::HashMap;

use serde_json::Value;

/// Nested objects are written out to this depth.
const MAX_DEPTH: usize = 3;

/// The entries of a schema by their names.
struct SchemaEntries<'a>(HashMap<&'a str, &'a Value>);

/// All commands with their arguments, or those whose names contain `part`; optional ones in brackets.
#[must_use]
pub fn command_lines(schema: &Value, part: &str) -> Vec<String> {
    lines_of_meta_type(schema, "command", part)
}

/// All events with their data.
#[must_use]
pub fn event_lines(schema: &Value) -> Vec<String> {
    lines_of_meta_type(schema, "event", "")
}

/// A line for each command or event (the `meta_type`) whose name contains `name_part`, sorted.
fn lines_of_meta_type(schema: &Value, meta_type: &str, name_part: &str) -> Vec<String> {
    let entries = schema.as_array().map_or(&[] as &[Value], Vec::as_slice);
    let by_name = SchemaEntries(
        entries
            .iter()
            .map(|entry| (string_member(entry, "name"), entry))
            .collect(),
    );
    let found = entries
        .iter()
        .filter(|entry| entry["meta-type"] == meta_type);
    let mut lines: Vec<String> = found
        .filter(|entry| string_member(entry, "name").contains(name_part))
        .map(|entry| {
            let mut line = string_member(entry, "name").to_owned();
            by_name.append_arguments(string_member(entry, "arg-type"), "", MAX_DEPTH, &mut line);
            line
        })
        .collect();
    lines.sort();
    lines
}

impl SchemaEntries<'_> {
    /// Appends ` KEY=TYPE [KEY=TYPE]` for the members of the object type `name`, with `prefix` before each key.
    fn append_arguments(&self, name: &str, prefix: &str, depth: usize, line: &mut String) {
        let Some(object) = self.0.get(name) else {
            return;
        };
        for member in list_member(object, "members") {
            let key = format!("{prefix}{}", string_member(member, "name"));
            let member_type = string_member(member, "type");
            let nested = self
                .0
                .get(member_type)
                .is_some_and(|entry| entry["meta-type"] == "object");
            if nested && depth > 1 {
                self.append_arguments(member_type, &format!("{key}."), depth - 1, line);
                continue;
            }
            let (open, close) = match member.get("default") {
                Some(_) => ("[", "]"),
                None => ("", ""),
            };
            line.push_str(&format!(
                " {open}{key}={}{close}",
                self.type_notation(member_type)
            ));
        }
        for variant in list_member(object, "variants") {
            let mut members = String::new();
            self.append_arguments(string_member(variant, "type"), prefix, depth, &mut members);
            if !members.is_empty() {
                let tag = string_member(object, "tag");
                line.push_str(&format!(
                    "\n    {prefix}{tag}={}:{members}",
                    string_member(variant, "case")
                ));
            }
        }
    }

    /// The notation for values of a type, such as `str`, `[str]` or `on|off`.
    fn type_notation(&self, name: &str) -> String {
        let Some(entry) = self.0.get(name) else {
            return name.to_owned();
        };
        match string_member(entry, "meta-type") {
            "builtin" => string_member(entry, "name").to_owned(),
            "array" => format!(
                "[{}]",
                self.type_notation(string_member(entry, "element-type"))
            ),
            "enum" => {
                let words = list_member(entry, "values")
                    .iter()
                    .filter_map(Value::as_str);
                words.collect::<Vec<_>>().join("|")
            }
            "alternate" => {
                let members = list_member(entry, "members").iter();
                let shown = members.map(|member| self.type_notation(string_member(member, "type")));
                shown.collect::<Vec<_>>().join("|")
            }
            _ => "{…}".to_owned(),
        }
    }
}

/// A string member of an entry; empty if it is missing.
fn string_member<'a>(entry: &'a Value, key: &str) -> &'a str {
    entry.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// A list member of an entry; empty if it is missing.
fn list_member<'a>(entry: &'a Value, key: &str) -> &'a [Value] {
    let list = entry.get(key).and_then(Value::as_array);
    list.map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn commands_are_listed_with_their_arguments() {
        let schema = json!([
            {"name": "quit", "meta-type": "command", "arg-type": "0", "ret-type": "0"},
            {"name": "add", "meta-type": "command", "arg-type": "1", "ret-type": "0"},
            {"name": "GONE", "meta-type": "event", "arg-type": "0"},
            {"name": "0", "meta-type": "object", "members": []},
            {"name": "1", "meta-type": "object", "members": [
                {"name": "id", "type": "str"}, {"name": "kind", "type": "2"},
                {"name": "cache", "type": "3", "default": null}, {"name": "io", "type": "5", "default": null},
            ], "tag": "kind", "variants": [{"case": "file", "type": "4"}, {"case": "null", "type": "0"}]},
            {"name": "2", "meta-type": "enum", "values": ["file", "null"]},
            {"name": "3", "meta-type": "object", "members": [{"name": "direct", "type": "bool", "default": null}]},
            {"name": "4", "meta-type": "object", "members": [{"name": "filename", "type": "str"}]},
            {"name": "5", "meta-type": "alternate", "members": [{"type": "str"}, {"type": "6"}]},
            {"name": "6", "meta-type": "array", "element-type": "str"},
            {"name": "str", "meta-type": "builtin", "json-type": "string"},
            {"name": "bool", "meta-type": "builtin", "json-type": "boolean"},
        ]);
        let add = "add id=str kind=file|null [cache.direct=bool] [io=str|[str]]\n    kind=file: filename=str";
        assert_eq!(command_lines(&schema, ""), [add, "quit"]);
        assert_eq!(command_lines(&schema, "ui"), ["quit"]);
        assert!(command_lines(&json!("nonsense"), "").is_empty());
    }
}
