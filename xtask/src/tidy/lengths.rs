//! Lengths of lines and of product files.
//!
//! Comments are wrapped near 120 columns; two lines of ten thousand are longer than 140. Documents are wrapped near
//! 150. A line may be longer for a string literal, which is found more easily in one piece, and in a document for a
//! table or a block of code.

use std::collections::BTreeSet;

use super::tokens::{Kind, tokens};
use super::tree::Tree;
use super::{Finding, listed};

const CODE_COLUMNS: usize = 140;
const DOCUMENT_COLUMNS: usize = 150;
const FILE_LINES: usize = 500;

/// Finds files with long lines: sources and documents.
pub(super) fn check_lines(tree: &Tree) -> impl Iterator<Item = Finding> {
    let code = tree.ending_with(".rs");
    let code = code.map(|(path, text)| (path, CODE_COLUMNS, long_code_lines(text)));
    let documents = tree.ending_with(".md");
    let documents =
        documents.map(|(path, text)| (path, DOCUMENT_COLUMNS, long_document_lines(text)));
    code.chain(documents).filter_map(|(path, limit, lines)| {
        Some(Finding {
            rule: "line-length",
            subject: path.to_owned(),
            number: lines.len(),
            path: path.to_owned(),
            line: *lines.first()?,
            text: format!("over {limit} columns: {}; break it up", listed(&lines)),
        })
    })
}

/// Finds long files among those of the product.
pub(super) fn check_files(tree: &Tree, product: &BTreeSet<&str>) -> Vec<Finding> {
    let files = tree
        .ending_with(".rs")
        .filter(|(path, _)| product.contains(path));
    let long = files.map(|(path, text)| (path, text.lines().count()));
    let long = long.filter(|&(_, lines)| lines > FILE_LINES);
    long.map(|(path, lines)| Finding {
        rule: "file-length",
        subject: path.to_owned(),
        number: lines,
        path: path.to_owned(),
        line: FILE_LINES + 1,
        text: format!("the file has {lines} lines, and {FILE_LINES} are enough; move a mechanism to a file of its own"),
    })
    .collect()
}

/// Numbers and texts of lines with more columns than that, each with the place of the first byte that is too much.
fn long_lines(text: &str, limit: usize) -> impl Iterator<Item = (usize, &str, usize)> {
    let numbered = text.split('\n').zip(1..);
    numbered.filter_map(move |(line, number)| {
        let (too_much, _) = line.char_indices().nth(limit)?;
        Some((number, line, too_much))
    })
}

fn long_code_lines(source: &str) -> Vec<usize> {
    let mut lines = long_lines(source, CODE_COLUMNS).peekable();
    if lines.peek().is_none() {
        return Vec::new();
    }
    let tokens = tokens(source);
    let is_literal = |at: usize| {
        let mut literals = tokens.iter().filter(|token| token.kind == Kind::Literal);
        literals.any(|token| (token.start..token.start + token.text.len()).contains(&at))
    };
    let start = |line: &str| line.as_ptr().addr() - source.as_ptr().addr();
    let lines = lines.filter(|(_, line, too_much)| !is_literal(start(line) + too_much));
    lines.map(|(number, ..)| number).collect()
}

fn long_document_lines(document: &str) -> Vec<usize> {
    let fences = document.lines().scan(false, |fenced, line| {
        *fenced ^= line.trim_start().starts_with("```");
        Some(*fenced)
    });
    let fenced: Vec<bool> = fences.collect();
    let lines = long_lines(document, DOCUMENT_COLUMNS).filter(|&(number, line, _)| {
        let is_code = fenced[number - 1] || line.starts_with("    ");
        !is_code && !line.trim_start().starts_with('|')
    });
    lines.map(|(number, ..)| number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_of_code_are_found_unless_a_literal_is_long() {
        let fits = format!("// {}\n", "ä".repeat(CODE_COLUMNS - 3));
        let long = format!("// {}\n", "ä".repeat(CODE_COLUMNS - 2));
        let literal = format!("f(\"{}\");\n", "a".repeat(CODE_COLUMNS));
        let after = format!(
            "f({:?}, \"{}\", bbb);\n",
            "a",
            "a".repeat(CODE_COLUMNS - 12)
        );
        let text = [&fits[..], &long, &literal, &after].concat();
        let tree = Tree::of(&[("a.rs", &text), ("b.rs", &fits)]);
        let found: Vec<Finding> = check_lines(&tree).collect();
        let [finding] = &found[..] else {
            panic!("one finding: {found:?}");
        };
        assert_eq!((finding.number, finding.line), (2, 2));
        let text = "over 140 columns: lines 2, 4; break it up";
        assert_eq!((&finding.path[..], &finding.text[..]), ("a.rs", text));
    }

    #[test]
    fn long_lines_of_documents_are_found_outside_of_tables_and_code() {
        let long = "a ".repeat(DOCUMENT_COLUMNS);
        let text = format!("{long}\n| {long}\n    {long}\n```\n{long}\n```\n{long}\n");
        assert_eq!(long_document_lines(&text), [1, 7]);
    }

    #[test]
    fn long_files_of_the_product_are_found() {
        let (fits, long) = ("\n".repeat(FILE_LINES), "\n".repeat(FILE_LINES + 1));
        let tree = Tree::of(&[("fits.rs", &fits), ("long.rs", &long), ("test.rs", &long)]);
        let found = check_files(&tree, &BTreeSet::from(["fits.rs", "long.rs"]));
        let found: Vec<(&str, usize)> = found
            .iter()
            .map(|one| (&one.path[..], one.number))
            .collect();
        assert_eq!(found, [("long.rs", 501)]);
    }
}
