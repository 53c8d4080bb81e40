//! What bash completes inside of `--blockdev file,filename=…`: kinds, keys, and the words that a value may be.

use std::collections::BTreeMap;

use options::reference::KEYS;

/// Takes the word apart by the line: bash splits it at '=' and ':', which are in `COMP_WORDBREAKS`.
const FUNCTION: &str = r#"
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

/// The script that `clap` makes, and ours that comes before it.
pub(crate) fn with_keys(script: &str) -> String {
    let mut out = script.to_owned();
    out.push_str("\n# Inside of an option: kinds (before the first comma) and keys.\n_blockplane_words() {\n    case \"$1 $2\" in\n");
    for (option, kinds) in kinds() {
        for kind in &kinds {
            let keys = keys_of(option, Some(kind));
            out.push_str(&format!(
                "        \"--{option} {kind},\"* | \"--{option} \"*\"={kind},\"*) echo \"{keys}\" ;;\n"
            ));
        }
        let all = keys_of(option, None);
        out.push_str(&format!("        \"--{option} \"*,*) echo \"{all}\" ;;\n"));
        let kinds: Vec<String> = kinds.iter().map(|kind| format!("{kind},")).collect();
        out.push_str(&format!(
            "        \"--{option} \"*) echo \"{} {all}\" ;;\n",
            kinds.join(" ")
        ));
    }
    out.push_str("    esac\n}\n\n# What the value of a key may be; PATH: a file.\n_blockplane_values() {\n    case \"$1 $2\" in\n");
    let mut seen = Vec::new();
    for group in KEYS {
        for key in group.keys {
            let fixed = key.value.split('|').all(|word| {
                word.chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c))
            });
            let words = match key.value {
                "PATH" => "PATH".to_owned(),
                value if fixed => value.replace('|', " "),
                _ => continue,
            };
            let pattern = format!("--{} {}", group.option, key.name);
            if !seen.contains(&pattern) {
                out.push_str(&format!("        \"{pattern}\") echo \"{words}\" ;;\n"));
                seen.push(pattern);
            }
        }
    }
    out.push_str("    esac\n}\n");
    out.push_str(FUNCTION);
    out
}

/// The kinds of each option that has keys.
fn kinds() -> BTreeMap<&'static str, Vec<&'static str>> {
    let mut kinds: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for group in KEYS {
        kinds.entry(group.option).or_default().extend(group.kinds);
    }
    kinds
}

fn keys_of(option: &str, kind: Option<&str>) -> String {
    let wanted = KEYS.iter().filter(|group| {
        let kinds = group.kinds;
        group.option == option && kind.is_none_or(|kind| kinds.is_empty() || kinds.contains(&kind))
    });
    let mut keys: Vec<String> = Vec::new();
    for key in wanted.flat_map(|group| group.keys) {
        let key = format!("{}=", key.name);
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys.join(" ")
}
