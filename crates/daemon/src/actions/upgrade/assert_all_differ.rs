//! For tests of the handover: asserts that two values differ in every field, so that a field that is lost is noticed.

use std::collections::BTreeMap;
use std::fmt::Debug;

/// Each field by its name, with its value as text.
fn field_texts(value: &impl Debug) -> BTreeMap<String, String> {
    let text = format!("{value:#?}");
    let mut fields = BTreeMap::new();
    let mut field = String::new();
    for line in text.lines() {
        // Lines that are indented further belong to the value of the field before.
        let declaration = line
            .strip_prefix("    ")
            .filter(|rest| rest.starts_with(char::is_alphabetic));
        match declaration.and_then(|declaration| declaration.split_once(": ")) {
            Some((name, value)) => {
                field = name.to_owned();
                fields.insert(field.clone(), value.to_owned());
            }
            None => *fields.entry(field.clone()).or_default() += line,
        }
    }
    fields.remove("");
    fields
}

/// Asserts that no field of `one` equals that of `other`.
#[track_caller]
pub(crate) fn assert_all_differ(one: &impl Debug, other: &impl Debug) {
    let (one, other) = (field_texts(one), field_texts(other));
    assert!(one.keys().eq(other.keys()), "of different types");
    assert!(!one.is_empty(), "no struct");
    for (name, value) in one {
        assert_ne!(
            value, other[&name],
            "{name} is the same in both: a test of the handover would not notice that it is lost"
        );
    }
}

#[test]
#[should_panic(expected = "b is the same in both")]
fn a_field_with_equal_values_is_found() {
    #[derive(Debug)]
    #[expect(dead_code, reason = "only its debug text is used")]
    struct TwoFields {
        a: Option<[u8; 2]>,
        b: Option<Vec<u8>>,
    }
    let with_a = |a| TwoFields {
        a,
        b: Some(vec![1, 2]),
    };
    assert_all_differ(&with_a(None), &with_a(Some([1, 2])));
}
