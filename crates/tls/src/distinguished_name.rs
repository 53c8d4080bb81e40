//! The name of a certificate's owner as text, as lists of peers have it: `CN=host,O=Example`, in the order of the certificate.
//!
//! The text is that of GnuTLS, which QEMU compares. It is RFC 4514 except for the order of its parts.

use std::fmt::Write;

use webpki::EndEntityCert;

use rustls::pki_types::CertificateDer;

/// Tags of DER.
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;

/// Types of text whose bytes are UTF-8, or a part of it.
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const IA5_STRING: u8 = 0x16;

/// The short names of attributes, by their encoded object identifiers.
const SHORT_NAMES: [(&[u8], &str); 11] = [
    (&[0x55, 4, 3], "CN"),
    (&[0x55, 4, 4], "surName"),
    (&[0x55, 4, 5], "serialNumber"),
    (&[0x55, 4, 6], "C"),
    (&[0x55, 4, 7], "L"),
    (&[0x55, 4, 8], "ST"),
    (&[0x55, 4, 9], "street"),
    (&[0x55, 4, 10], "O"),
    (&[0x55, 4, 11], "OU"),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 1], "EMAIL"),
    (
        &[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25],
        "DC",
    ),
];

/// The name of the owner of a certificate. `None`: the certificate, or its name, has a form that is not supported.
#[must_use]
pub fn distinguished_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    name_to_text(certificate.subject())
}

/// The text of a name, without its outer sequence.
fn name_to_text(mut rest: &[u8]) -> Option<String> {
    let mut text = String::new();
    while !rest.is_empty() {
        let mut set = take(&mut rest, SET)?;
        let mut separator = ',';
        while !set.is_empty() {
            let mut attribute = take(&mut set, SEQUENCE)?;
            let id = take(&mut attribute, OBJECT_IDENTIFIER)?;
            let value = take_text(&mut attribute)?;
            if !text.is_empty() {
                text.push(separator);
            }
            separator = '+';
            match SHORT_NAMES.iter().find(|(known, _)| *known == id) {
                Some((_, name)) => text += name,
                None => push_identifier(&mut text, id),
            }
            text.push('=');
            push_escaped(&mut text, value);
        }
    }
    Some(text)
}

/// Takes the first element, which has this tag, and returns its content.
fn take<'a>(rest: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    let (found, content) = take_any(rest)?;
    (found == tag).then_some(content)
}

/// Takes the first element: its tag, and its content.
fn take_any<'a>(rest: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (tag, after) = rest.split_first()?;
    let (first, mut after) = after.split_first()?;
    let len = match first {
        short @ 0..=0x7f => usize::from(*short),
        0x81 | 0x82 => {
            let (digits, after_digits) = after.split_at_checked(usize::from(first & 0x7f))?;
            after = after_digits;
            let digits = digits.iter();
            digits.fold(0, |len, digit| len << 8 | usize::from(*digit))
        }
        _ => return None,
    };
    let (content, after) = after.split_at_checked(len)?;
    *rest = after;
    Some((*tag, content))
}

fn take_text<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    match take_any(rest)? {
        (UTF8_STRING | PRINTABLE_STRING | IA5_STRING, text) => str::from_utf8(text).ok(),
        _ => None,
    }
}

/// Appends an object identifier as numbers and dots.
fn push_identifier(text: &mut String, id: &[u8]) {
    let mut number = 0_u64;
    let mut is_first = true;
    for byte in id {
        number = number << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 != 0 {
            continue;
        }
        // The first number has two.
        let written = match std::mem::take(&mut is_first) {
            true => write!(
                text,
                "{}.{}",
                (number / 40).min(2),
                number - (number / 40).min(2) * 40
            ),
            false => write!(text, ".{number}"),
        };
        debug_assert!(written.is_ok(), "a string takes everything");
        number = 0;
    }
}

/// Appends a value, with a backslash before characters that have a meaning in names.
fn push_escaped(text: &mut String, value: &str) {
    let last = value.chars().count().saturating_sub(1);
    for (index, c) in value.chars().enumerate() {
        let is_special = matches!(c, ',' | '+' | '"' | '\\' | '<' | '>' | ';')
            || c == '#' && index == 0
            || c == ' ' && (index == 0 || index == last);
        if is_special {
            text.push('\\');
        }
        text.push(c);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(tag: u8, content: &[u8]) -> Vec<u8> {
        let len = u8::try_from(content.len()).expect("it is short");
        [&[tag, len], content].concat()
    }

    fn attribute(id: &[u8], tag: u8, value: &str) -> Vec<u8> {
        let pair = [
            element(OBJECT_IDENTIFIER, id),
            element(tag, value.as_bytes()),
        ];
        element(SET, &element(SEQUENCE, &pair.concat()))
    }

    #[test]
    fn attributes_are_in_the_order_of_the_certificate() {
        let name = [
            attribute(&[0x55, 4, 6], PRINTABLE_STRING, "GB"),
            attribute(&[0x55, 4, 10], UTF8_STRING, "Example, Ltd"),
            attribute(&[0x2a, 3, 4], UTF8_STRING, "x"),
        ];
        let text = name_to_text(&name.concat());
        assert_eq!(text.as_deref(), Some("C=GB,O=Example\\, Ltd,1.2.3.4=x"));
    }

    #[test]
    fn a_name_that_is_cut_off_has_no_text() {
        let name = attribute(&[0x55, 4, 3], UTF8_STRING, "host");
        for end in 1..name.len() {
            assert_eq!(name_to_text(&name[..end]), None, "{end}");
        }
    }
}
