//! Adds completion of keys inside of options to the zsh script of `clap`.

use crate::{bash, keys};

/// `_arguments` has removed the option and its '=' from `PREFIX`.
const KEY_COMPLETION: &str = r#"
_blockplane_keys() {
    local option="$1" word="$PREFIX" words
    compset -P '*,'
    if [[ "$PREFIX" != *=* ]]; then
        words="$(_blockplane_words "$option" "$word")"
        compadd -S '' -- ${=words}
        return
    fi
    words="$(_blockplane_values "$option" "${PREFIX%%=*}")"
    compset -P '[^=]#='
    case "$words" in
        PATH) _files ;;
        ?*) compadd -S '' -- ${=words} ;;
    esac
}

"#;

/// The last part of the script of `clap`, which runs the completion.
const LAST_PART: &str = "if [ \"$funcstack[1]\" = \"_blockplane\" ]; then";

/// The script of `clap` with ours inserted.
pub(crate) fn add_key_completion(script: &str) -> String {
    let mut out = script.to_owned();
    for option in keys::options_with_keys() {
        let line_begin = format!("'*--{option}=[");
        let line = out.lines().find(|line| line.starts_with(&line_begin));
        let Some(line) = line.map(str::to_owned) else {
            continue;
        };
        // With the space before its name it is called without the tag arguments of `_arguments`.
        let action = format!(": : _blockplane_keys --{option}'");
        out = out.replacen(&line, &line.replace(": :_default'", &action), 1);
    }
    let functions = bash::candidate_functions();
    out.replacen(
        LAST_PART,
        &format!("{functions}{KEY_COMPLETION}{LAST_PART}"),
        1,
    )
}
