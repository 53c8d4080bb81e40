//! A lexer for Rust, as exact as the rules of `tidy` need: identifiers, literals and punctuation, without comments.
//!
//! The ticks of lifetimes and the letters before byte characters are tokens of their own.

/// The kinds of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A name, a keyword or a number.
    Word,
    /// A string or a character.
    Literal,
    /// One character.
    Punctuation,
}

/// A token and its place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'s> {
    pub(crate) kind: Kind,
    pub(crate) text: &'s str,
    /// Its first byte in the source.
    pub(crate) start: usize,
    /// The line of its first byte, from 1.
    pub(crate) line: usize,
}

impl Token<'_> {
    pub(crate) fn is(&self, text: &str) -> bool {
        self.kind != Kind::Literal && self.text == text
    }
}

/// All tokens of a source.
pub(crate) fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let (mut start, mut line) = (0, 1);
    while let Some(first) = source[start..].chars().next() {
        let rest = &source[start..];
        let (kind, len) = if first.is_whitespace() {
            (None, first.len_utf8())
        } else if rest.starts_with("//") {
            (None, rest.find('\n').unwrap_or(rest.len()))
        } else if rest.starts_with("/*") {
            (None, block_comment(rest))
        } else if let Some(len) = string(rest).or_else(|| character(rest)) {
            (Some(Kind::Literal), len)
        } else if is_word(first) {
            let end = rest.find(|c| !is_word(c));
            (Some(Kind::Word), end.unwrap_or(rest.len()))
        } else {
            (Some(Kind::Punctuation), first.len_utf8())
        };
        let text = &rest[..len];
        if let Some(kind) = kind {
            tokens.push(Token {
                kind,
                text,
                start,
                line,
            });
        }
        start += len;
        line += text.bytes().filter(|&byte| byte == b'\n').count();
    }
    tokens
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

/// The length of a comment that may contain others.
fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    loop {
        let Some(next) = rest[at..].find(['/', '*']) else {
            return rest.len();
        };
        at += next;
        match rest.as_bytes().get(at..at + 2) {
            Some(b"/*") => (depth, at) = (depth + 1, at + 2),
            Some(b"*/") if depth == 1 => return at + 2,
            Some(b"*/") => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
}

/// The length of the string that the source begins with, if it does: of text, bytes or C, raw or not.
fn string(rest: &str) -> Option<usize> {
    let letters = rest
        .bytes()
        .take_while(|byte| b"bcr".contains(byte))
        .count();
    let (prefix, text) = rest.split_at(letters);
    if !["", "b", "c", "r", "br", "cr"].contains(&prefix) {
        return None;
    }
    if !prefix.ends_with('r') {
        let inside = text.strip_prefix('"')?;
        return Some(letters + 1 + until_quote(inside, '"'));
    }
    let hashes = text.bytes().take_while(|&byte| byte == b'#').count();
    let inside = text[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", &text[..hashes]);
    let len = inside.find(&end).map_or(inside.len(), |at| at + end.len());
    Some(letters + hashes + 1 + len)
}

/// The length of the character literal that the source begins with; a lifetime is none.
fn character(rest: &str) -> Option<usize> {
    let inside = rest.strip_prefix('\'')?;
    let first = inside.chars().next()?;
    let is_lifetime = first != '\\' && !inside[first.len_utf8()..].starts_with('\'');
    (!is_lifetime).then(|| 1 + until_quote(inside, '\''))
}

/// The length up to and with the quote that ends a literal.
fn until_quote(inside: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in inside.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    inside.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_exclude_comments_and_literals() {
        let source = r####"
a /* b /* c */ d */ e // f
"g \" h" r#"i " j"# b"k" 'l' '\'' 'm r#n 'o'
p"####;
        let found = tokens(source);
        let texts: Vec<&str> = found.iter().map(|token| token.text).collect();
        let literals = ["\"g \\\" h\"", "r#\"i \" j\"#", "b\"k\"", "'l'", "'\\''"];
        let rest = ["'", "m", "r", "#", "n", "'o'", "p"];
        assert_eq!(texts, [&["a", "e"][..], &literals, &rest].concat());
        assert_eq!(found.last().map(|token| token.line), Some(4));
    }
}
