//! Adds completion of keys inside of options to the bash script of `clap`, and generates the shell functions that list the
//! candidates, which the zsh script uses as well.

use crate::keys::{self, Candidates};

/// Takes the word from the line, since bash splits words at '=' and ':' (`COMP_WORDBREAKS`).
const KEY_COMPLETION: &str = r#"
_blockplane_keys() {
    local line="${COMP_LINE:0:COMP_POINT}"
    local word="${line##*[[:space:]]}" option
    local before="${line%"$word"}"
    case "$word" in
        --*=*) option="${word%%=*}" word="${word#*=}" ;;
        *) read -ra before <<< "$before"; option="${before[-1]}" ;;
    esac
    local part="${word##*,}" cur="${COMP_WORDS[COMP_CWORD]}" words
    [[ $cur == [=:] ]] && cur=""
    local head="${cur%"${cur##*,}"}"
    case "$part" in
        *=*)
            words="$(_blockplane_values "$option" "${part%%=*}")"
            if [[ $words == PATH ]]; then
                mapfile -t COMPREPLY < <(compgen -f -- "${part#*=}")
                compopt -o filenames -o nospace 2> /dev/null
                return 0
            fi
            part="${part#*=}"
            head=""
            ;;
        *) words="$(_blockplane_words "$option" "$word")" ;;
    esac
    [[ -n $words ]] || return 1
    compopt -o nospace 2> /dev/null
    mapfile -t COMPREPLY < <(compgen -P "$head" -W "$words" -- "$part")
}

_blockplane_or_keys() {
    local word
    # A subcommand has no such options.
    for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
        case "$word" in
            -*) _blockplane_keys && return; break ;;
            *) break ;;
        esac
    done
    _blockplane "$@"
}

complete -F _blockplane_or_keys -o nosort -o bashdefault -o default blockplane
"#;

/// The script of `clap`, followed by ours, which replaces its completion function.
pub(crate) fn add_key_completion(script: &str) -> String {
    format!("{script}{}{KEY_COMPLETION}", candidate_functions())
}

/// Shell functions that print candidates: `_blockplane_words OPTION WORD`, `_blockplane_values OPTION KEY`.
pub(crate) fn candidate_functions() -> String {
    let mut out = String::new();
    out.push_str("\n# Inside of an option: kinds (before the first comma) and keys.\n");
    push_candidate_function(
        &mut out,
        "_blockplane_words",
        &keys::kind_and_key_candidates(),
    );
    out.push_str("\n# What the value of a key may be; PATH: a file.\n");
    push_candidate_function(&mut out, "_blockplane_values", &keys::value_candidates());
    out
}

/// Appends a shell function that prints the words of the first pattern that its arguments match.
fn push_candidate_function(out: &mut String, name: &str, candidates: &[Candidates]) {
    out.push_str(&format!("{name}() {{\n    case \"$1 $2\" in\n"));
    for Candidates { pattern, words } in candidates {
        let pattern = format!("\"{}\"", pattern.replace('*', "\"*\""));
        // A star at the end leaves an empty string.
        let pattern = pattern.trim_end_matches("\"\"");
        let words = words.join(" ");
        out.push_str(&format!("        {pattern}) echo \"{words}\" ;;\n"));
    }
    out.push_str("    esac\n}\n");
}
