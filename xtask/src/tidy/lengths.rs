//! Lengths of comments, of lines in documents, and of product files. rustfmt breaks code, but no comment.
//!
//! A line of a document may be longer in a table or a block of code.

use std::collections::BTreeSet;

use super::{Files, ending_with};

const COLUMNS: usize = 150;
const FILE_LINES: usize = 500;

/// `product` has the files whose length is limited.
pub(super) fn check(files: &Files, product: &BTreeSet<&str>) -> Vec<String> {
    let mut errors = Vec::new();
    for (path, text) in ending_with(files, ".rs") {
        errors.extend(long_lines(path, text, |line| {
            line.trim_start().starts_with("//")
        }));
        let lines = text.lines().count();
        if product.contains(path) && lines > FILE_LINES {
            errors.push(format!(
                "{path}:1: the file has {lines} lines, and {FILE_LINES} are enough; move a mechanism to a file of its own"
            ));
        }
    }
    for (path, text) in ending_with(files, ".md") {
        let mut is_code = false;
        errors.extend(long_lines(path, text, |line| {
            let unindented = line.trim_start();
            is_code ^= unindented.starts_with("```");
            !is_code && !line.starts_with("    ") && !unindented.starts_with('|')
        }));
    }
    errors
}

/// Finds long lines among those that are text. `is_text` gets each line.
fn long_lines(path: &str, text: &str, mut is_text: impl FnMut(&str) -> bool) -> Vec<String> {
    let mut errors = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        if is_text(line) && line.chars().nth(COLUMNS).is_some() {
            errors.push(format!(
                "{path}:{number}: the line has more than {COLUMNS} columns; break it up"
            ));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::files;

    #[test]
    fn long_comments_lines_of_documents_and_product_files_are_found() {
        let fits = format!("// {}\n", "ä".repeat(COLUMNS - 3));
        let long = "a ".repeat(COLUMNS);
        let source = format!("{fits}let a = \"{long}\";\n    // {long}\n");
        let document = format!("{long}\n| {long}\n    {long}\n```\n{long}\n```\n{long}\n");
        let lines = "\n".repeat(FILE_LINES + 1);
        let files = files(&[
            ("a.rs", &source),
            ("b.md", &document),
            ("product.rs", &lines),
            ("test.rs", &lines),
        ]);
        let found = check(&files, &BTreeSet::from(["a.rs", "product.rs"]));
        let places: Vec<&str> = found
            .iter()
            .filter_map(|error| error.split(": ").next())
            .collect();
        assert_eq!(places, ["a.rs:3", "product.rs:1", "b.md:1", "b.md:7"]);
    }
}
