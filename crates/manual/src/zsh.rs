//! Keys inside of options for zsh.

use crate::{bash, keys};

/// `_arguments` has taken the option and its '=' off what it calls `PREFIX`.
const FUNCTION: &str = r#"
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

/// What ends the script that `clap` makes: there the completion begins.
const END: &str = "if [ \"$funcstack[1]\" = \"_blockplane\" ]; then";

/// The script that `clap` makes, with ours in it.
pub(crate) fn with_keys(script: &str) -> String {
    let mut out = script.to_owned();
    for option in keys::options() {
        let begins = format!("'*--{option}=[");
        let line = out.lines().find(|line| line.starts_with(&begins));
        let Some(line) = line.map(str::to_owned) else {
            continue;
        };
        // The blank before it: it is called without what `_arguments` would say of the tag.
        let action = format!(": : _blockplane_keys --{option}'");
        out = out.replacen(&line, &line.replace(": :_default'", &action), 1);
    }
    let tables = bash::tables();
    out.replacen(END, &format!("{tables}{FUNCTION}{END}"), 1)
}
