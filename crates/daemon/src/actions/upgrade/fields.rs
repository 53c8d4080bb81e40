//! For tests: the fields of a struct, to see that a test has thought of each.

use std::collections::BTreeMap;
use std::fmt::Debug;

/// Each field by its name, with its value as text.
fn fields(of: &impl Debug) -> BTreeMap<String, String> {
    let text = format!("{of:#?}");
    let mut fields = BTreeMap::new();
    let mut last = String::new();
    for line in text.lines() {
        let own = line
            .strip_prefix("    ")
            .filter(|rest| rest.starts_with(char::is_alphabetic));
        match own.and_then(|own| own.split_once(": ")) {
            Some((name, value)) => {
                last = name.to_owned();
                fields.insert(last.clone(), value.to_owned());
            }
            None => *fields.entry(last.clone()).or_default() += line,
        }
    }
    fields.remove("");
    fields
}

/// Asserts that `one` and `other` have nothing in common: what would be lost on the way of the one is seen.
#[track_caller]
pub(crate) fn assert_all_differ(one: &impl Debug, other: &impl Debug) {
    let (one, other) = (fields(one), fields(other));
    assert!(one.keys().eq(other.keys()), "of different types");
    assert!(!one.is_empty(), "no struct");
    for (name, value) in one {
        assert_ne!(
            value, other[&name],
            "{name} is the same in both: a test of handing it over would not see that it is lost"
        );
    }
}

#[test]
#[should_panic(expected = "b is the same in both")]
fn a_field_that_is_the_same_is_found() {
    #[derive(Debug)]
    #[expect(dead_code, reason = "only its text is looked at")]
    struct Both {
        a: Option<[u8; 2]>,
        b: Option<Vec<u8>>,
    }
    let both = |a| Both {
        a,
        b: Some(vec![1, 2]),
    };
    assert_all_differ(&both(None), &both(Some([1, 2])));
}
