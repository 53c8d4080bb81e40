//! Text in XML, for pictures.

/// For text and attributes (XML 1.0, section 2.4).
#[must_use]
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // Section 2.2: no other control character may stand in a document.
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn nothing_in_a_text_is_taken_for_markup() {
        let escaped = super::escaped("a<b> & \"c\"\u{7}é");
        assert_eq!(escaped, "a&lt;b&gt; &amp; &quot;c&quot; é");
    }
}
