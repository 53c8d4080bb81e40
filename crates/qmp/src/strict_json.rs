//! A JSON parser that refuses an object with the same key twice, as QEMU does.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Parses one document.
pub(crate) fn parse_with_unique_keys(text: &[u8]) -> Result<Value, String> {
    let document: UniqueKeysDocument =
        serde_json::from_slice(text).map_err(|error| error.to_string())?;
    Ok(document.0)
}

/// A document without duplicate keys.
struct UniqueKeysDocument(Value);

impl<'de> Deserialize<'de> for UniqueKeysDocument {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        UniqueKeysVisitor
            .deserialize(deserializer)
            .map(UniqueKeysDocument)
    }
}

/// Builds values, and refuses objects with duplicate keys.
struct UniqueKeysVisitor;

impl<'de> DeserializeSeed<'de> for UniqueKeysVisitor {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for UniqueKeysVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom("not a number"))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = seq.next_element_seed(UniqueKeysVisitor)? {
            list.push(value);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = map.next_value_seed(UniqueKeysVisitor)?;
            if object.contains_key(&key) {
                return Err(A::Error::custom("duplicate key"));
            }
            object.insert(key, value);
        }
        Ok(object.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_keep_their_types_and_digits() {
        let text = r#"{"a":[1,-2,18446744073709551615,1.5,null,true],"b":{"c":"\u00e4"}}"#;
        let value = json!({"a": [1, -2, u64::MAX, 1.5, null, true], "b": {"c": "ä"}});
        assert_eq!(parse_with_unique_keys(text.as_bytes()), Ok(value));
    }

    #[test]
    fn duplicate_keys_and_malformed_json_are_refused() {
        for (text, reason) in [
            (&br#"{"a":{"b":1,"b":1}}"#[..], "duplicate key"),
            (br#"{"a" "b"}"#, "expected `:`"),
            (br#"{"a":1,}"#, "trailing comma"),
            (b"hello", "expected value"),
            (b"\"\xc3\"", "unicode"),
            (b"01", "number"),
        ] {
            let error = parse_with_unique_keys(text).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
