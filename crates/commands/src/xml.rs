//! Escapes text for XML, for the SVG images that commands write.

/// Escapes text for elements and attributes (XML 1.0, section 2.4).
#[must_use]
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // Section 2.2: a document has no other control characters.
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn markup_in_a_text_is_escaped() {
        let escaped = super::escape("a<b> & \"c\"\u{7}é");
        assert_eq!(escaped, "a&lt;b&gt; &amp; &quot;c&quot; é");
    }
}
