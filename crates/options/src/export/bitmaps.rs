//! `bitmaps` of an NBD export: names of dirty bitmaps, or groups of a node and a name.

use crate::{
    Problem,
    form::{NonUtf8Path, ValueForm, bad_value_error},
    key::{KeySpec, ValueType},
    tree::{Object, Value},
};

/// A dirty bitmap that an export shows to its clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportedBitmap {
    /// The node that has the bitmap; `None`: the exported node, or the first one below its filters that has it.
    pub node: Option<String>,
    /// Its name.
    pub name: String,
}

/// A list of bitmaps.
pub(crate) struct BitmapsForm;

impl BitmapsForm {
    /// A key whose values have this form.
    pub(crate) const fn define_key(&self, name: &'static str, help: &'static str) -> KeySpec {
        KeySpec::new(
            name,
            "LIST",
            help,
            ValueType::ListOf("BlockDirtyBitmapOrStr"),
        )
    }
}

const EXPECTED: &str =
    "a list of names, such as bitmaps.0=NAME, or of groups with the keys node and name";

impl ValueForm for BitmapsForm {
    type Value = Vec<ExportedBitmap>;

    fn read(&self, key: &str, value: Value) -> Result<Vec<ExportedBitmap>, Problem> {
        let Value::List(items) = value else {
            return Err(bad_value_error(key, &value, EXPECTED));
        };
        let items = items.into_iter().enumerate();
        items
            .map(|(index, item)| read_bitmap(&format!("{key}.{index}"), item))
            .collect()
    }

    fn to_value(&self, bitmaps: &Vec<ExportedBitmap>) -> Result<Value, NonUtf8Path> {
        let text = |text: &String| Value::String(text.clone());
        let items = bitmaps.iter().map(|bitmap| match &bitmap.node {
            None => text(&bitmap.name),
            Some(node) => {
                let mut object = Object::default();
                object.push_dotted_key("node", text(node));
                object.push_dotted_key("name", text(&bitmap.name));
                Value::Object(object)
            }
        });
        Ok(Value::List(items.collect()))
    }
}

fn read_bitmap(key: &str, item: Value) -> Result<ExportedBitmap, Problem> {
    let object = match item {
        Value::Text(name) | Value::String(name) => return Ok(ExportedBitmap { node: None, name }),
        Value::Object(object) => object,
        other => return Err(bad_value_error(key, &other, EXPECTED)),
    };
    let (mut node, mut name) = (None, None);
    for (member, value) in object.entries {
        let place = match member.as_str() {
            "node" => &mut node,
            "name" => &mut name,
            _ => {
                let reason =
                    format!("'{key}.{member}' is not known: a bitmap has the keys node and name");
                return Err(Problem::Conflict { reason });
            }
        };
        let (Value::Text(text) | Value::String(text)) = value else {
            return Err(bad_value_error(&format!("{key}.{member}"), &value, "text"));
        };
        *place = Some(text);
    }
    match (node, name) {
        (node @ Some(_), Some(name)) => Ok(ExportedBitmap { node, name }),
        (node, _) => Err(Problem::Missing {
            key: format!("{key}.{}", if node.is_none() { "node" } else { "name" }),
            expected: EXPECTED.to_owned(),
        }),
    }
}
