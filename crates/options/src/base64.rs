//! Base64 (RFC 4648, section 4), in which Ceph and QEMU write keys. Errors do not show the text: it is a secret.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes bytes, with padding.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let group = byte(0) << 16 | byte(1) << 8 | byte(2);
        for position in 0..4 {
            let digit = (group >> (18 - 6 * position)) & 0x3f;
            text.push(match position <= chunk.len() {
                true => char::from(ALPHABET[digit as usize]),
                false => '=',
            });
        }
    }
    text
}

/// Decodes text with padding; line feeds are skipped, as in QEMU. `None`: it is not base64.
pub(crate) fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let digits: Vec<u8> = text.iter().copied().filter(|byte| *byte != b'\n').collect();
    let padding = digits.iter().rev().take_while(|byte| **byte == b'=');
    let padding = padding.count();
    if !digits.len().is_multiple_of(4) || padding > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3);
    let (mut group, mut bits) = (0_u32, 0);
    for digit in &digits[..digits.len() - padding] {
        let value = ALPHABET.iter().position(|known| known == digit)?;
        group = group << 6 | u32::try_from(value).ok()?;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(group >> bits & 0xff).ok()?);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn examples_of_the_rfc_are_encoded_and_decoded() {
        let texts = [
            "", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy",
        ];
        for (len, text) in texts.into_iter().enumerate() {
            let bytes = &b"foobar"[..len];
            assert_eq!(encode(bytes), text);
            assert_eq!(decode(text.as_bytes()), Some(bytes.into()), "{text}");
        }
        assert_eq!(decode(b"Zm9v\nYmFy\n"), Some(b"foobar".to_vec()));
    }

    #[test]
    fn other_text_is_not_decoded() {
        for text in ["Zg", "Zg=", "Z===", "Zm9v!A==", "Zm 9", "=Zg=", "Zg==Zg=="] {
            assert_eq!(decode(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn bytes_are_decoded_as_they_were_encoded(bytes: Vec<u8>) {
            prop_assert_eq!(decode(encode(&bytes).as_bytes()), Some(bytes));
        }
    }
}
