//! Parser for QMP requests on the command line: `object-add qom-type=iothread id=io1 poll-max-ns=0`.
//!
//! A value that is valid JSON is taken as JSON, any other as a string. Dots nest: `cache.direct=true`; numbers from 0
//! on make a list: `iothread.0=a iothread.1=b`.

use serde_json::{Map, Value, json};

use crate::operator::error::{Error, Result};

/// Parses a request, without `id`. A single word that begins with `{` is taken as the JSON of the request.
pub(crate) fn parse_request(words: &[String]) -> Result<Value> {
    match words {
        [json] if json.trim_start().starts_with('{') => parse_json_request(json),
        [command, arguments @ ..] if !command.is_empty() && !command.contains(['=', '{', '"']) => {
            let mut request = json!({"execute": command});
            if !arguments.is_empty() {
                request["arguments"] = self::parse_arguments(arguments)?.into();
            }
            Ok(request)
        }
        [wrong, ..] => Err(Error::InvalidRequest(format!(
            "'{wrong}' is not a command: write a name and its arguments, such as `qom-get path=/objects/io0 \
             property=poll-max-ns`, or a request as {{\"execute\": …}} in one word; --list shows what there is"
        ))),
        [] => Err(Error::InvalidRequest("a command is missing".to_owned())),
    }
}

/// How to write an argument that was taken as JSON where the daemon expects a string, such as a serial number of
/// digits. `error` is the daemon's description.
pub(crate) fn string_argument_hint(words: &[String], error: &str) -> Option<String> {
    let key = error
        .strip_prefix("Invalid parameter type for '")?
        .strip_suffix("', expected: string")?;
    let mut arguments = words.iter().skip(1).filter_map(|word| word.split_once('='));
    let (_, value) = arguments.find(|(name, _)| *name == key)?;
    let string = Value::from(value);
    Some(format!(
        "'{value}' is not a string here; write '{key}={string}', including the quotes"
    ))
}

/// Parses a request that is written as JSON, and checks that it names a command.
fn parse_json_request(text: &str) -> Result<Value> {
    let parsed = serde_json::from_str::<Value>(text);
    let request = parsed.map_err(|error| {
        Error::InvalidRequest(format!("'{text}' is not JSON ({error}): a request looks like {{\"execute\": \"query-version\"}}"))
    })?;
    if request.get("execute").is_none() && request.get("exec-oob").is_none() {
        return Err(Error::InvalidRequest(format!(
            "'{text}' has no \"execute\": a request looks like {{\"execute\": \"query-version\"}}"
        )));
    }
    Ok(request)
}

/// Parses words `KEY=VALUE` to the arguments of a command.
fn parse_arguments(words: &[String]) -> Result<Map<String, Value>> {
    let mut arguments = Map::new();
    for word in words {
        let pair = word.split_once('=').filter(|(key, _)| {
            let mut names = key.split('.');
            names.all(|name| !name.is_empty())
        });
        let Some((key, text)) = pair else {
            return Err(Error::InvalidRequest(format!(
                "'{word}' is not an argument: KEY=VALUE is expected, such as id=io0 or cache.direct=true"
            )));
        };
        let value = serde_json::from_str(text).unwrap_or_else(|_| text.into());
        if !insert_nested(&mut arguments, key, value) {
            return Err(Error::InvalidRequest(format!(
                "'{word}': {key} is given twice, or is both a value and a group of values"
            )));
        }
    }
    let lists = arguments
        .into_iter()
        .map(|(key, value)| (key, numbered_groups_to_lists(value)));
    Ok(lists.collect())
}

/// Inserts a value at a dotted key; false if that key is taken.
fn insert_nested(into: &mut Map<String, Value>, key: &str, value: Value) -> bool {
    match key.split_once('.') {
        None => into.insert(key.to_owned(), value).is_none(),
        Some((group, rest)) => {
            let group = into.entry(group).or_insert_with(|| Map::new().into());
            let group = group.as_object_mut();
            group.is_some_and(|group| insert_nested(group, rest, value))
        }
    }
}

/// Turns objects whose keys count from 0 into lists, at any depth.
fn numbered_groups_to_lists(value: Value) -> Value {
    let Value::Object(group) = value else {
        return value;
    };
    let len = group.len();
    let mut numbered: Vec<Option<Value>> = vec![None; len];
    for (key, value) in &group {
        let index = key.parse::<usize>().ok().filter(|index| *index < len);
        if let Some(index) = index {
            numbered[index] = Some(numbered_groups_to_lists(value.clone()));
        }
    }
    match numbered.into_iter().collect::<Option<Vec<Value>>>() {
        Some(list) if len > 0 => list.into(),
        _ => {
            let group = group.into_iter();
            group
                .map(|(key, value)| (key, numbered_groups_to_lists(value)))
                .collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> std::result::Result<Value, String> {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        parse_request(&words).map_err(|error| error.to_string())
    }

    #[test]
    fn valid_json_is_taken_as_json_and_the_rest_as_strings() {
        let words = [
            "c", "n=-1", "b=true", "s=io0", "q=\"1\"", "e=", "p=a=b", "l=[1, 2]",
        ];
        let expected = json!({"execute": "c", "arguments":
            {"n": -1, "b": true, "s": "io0", "q": "1", "e": "", "p": "a=b", "l": [1, 2]}});
        assert_eq!(parsed(&words), Ok(expected));
        assert_eq!(parsed(&["quit"]), Ok(json!({"execute": "quit"})));
    }

    #[test]
    fn dots_nest_and_numbers_make_lists() {
        let words = [
            "c",
            "a.b=unix",
            "a.c=x",
            "i.1=b",
            "i.0=a",
            "m.0.vqs.0=3",
            "x.1=no",
        ];
        let expected = json!({"execute": "c", "arguments": {"a": {"b": "unix", "c": "x"}, "i": ["a", "b"],
            "m": [{"vqs": [3]}], "x": {"1": "no"}}});
        assert_eq!(parsed(&words), Ok(expected));
    }

    #[test]
    fn request_in_json_is_sent_unchanged() {
        let request = json!({"exec-oob": "query-version", "arguments": {}});
        assert_eq!(parsed(&[&request.to_string()]), Ok(request));
    }

    #[test]
    fn hint_quotes_a_number_where_a_string_is_expected() {
        let words = ["export-add", "id=e", "addr.str=5"].map(str::to_owned);
        let error = "Invalid parameter type for 'addr.str', expected: string";
        let hint = string_argument_hint(&words, error).unwrap();
        assert!(
            hint.ends_with("write 'addr.str=\"5\"', including the quotes"),
            "{hint}"
        );
        for other in ["Invalid parameter type for 'id', expected: integer", "no"] {
            assert_eq!(super::string_argument_hint(&words, other), None);
        }
    }

    #[test]
    fn invalid_request_is_rejected_with_the_expected_form() {
        for (words, expected) in [
            (vec!["a=b"], "'a=b' is not a command"),
            (vec!["c", "x"], "KEY=VALUE is expected"),
            (vec!["c", ".x=1"], "KEY=VALUE is expected"),
            (vec!["c", "x=1", "x=2"], "x is given twice"),
            (vec!["c", "x=1", "x.y=2"], "x.y is given twice, or"),
            (vec!["{\"execute\"}"], "is not JSON"),
            (vec!["{}"], "has no \"execute\""),
        ] {
            let error = parsed(&words).unwrap_err();
            assert!(error.contains(expected), "{words:?}: {error}");
        }
    }
}
