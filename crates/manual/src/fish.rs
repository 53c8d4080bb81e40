//! Keys inside of options for fish.

use crate::keys::{self, Offer};

const FUNCTION: &str = r#"
function __blockplane_keys
    set -l word (commandline -ct | string replace -r '^--[^=]*=' '')
    set -l head (string replace -r '[^,]*$' '' -- "$word")
    set -l part (string replace -r '^.*,' '' -- "$word")
    if string match -q '*=*' -- "$part"
        set -l key (string replace -r '=.*' '' -- "$part")
        set -l words (__blockplane_values "$argv[1] $key")
        if test "$words" = PATH
            set words (__fish_complete_path (string replace -r '^[^=]*=' '' -- "$part"))
        end
        printf '%s\n' "$head$key="$words
    else
        printf '%s\n' "$head"(__blockplane_words "$argv[1] $word")
    end
end

"#;

/// The script that `clap` makes for a program with these commands, and ours.
pub(crate) fn with_keys(script: &str, commands: &[String]) -> String {
    let commands = commands.join(" ");
    let mut out = script.to_owned();
    out.push_str("\n# Inside of an option: kinds (before the first comma) and keys.\n");
    function(&mut out, "__blockplane_words", &keys::words());
    out.push_str("\n# What the value of a key may be; PATH: a file.\n");
    function(&mut out, "__blockplane_values", &keys::values());
    out.push_str(FUNCTION);
    for option in keys::options() {
        // What `clap` asks about commands has no answer while an option waits for its value.
        out.push_str(&format!(
            "complete -c blockplane -n \"not __fish_seen_subcommand_from {commands}\" -l {option} -x \
             -a '(__blockplane_keys --{option})'\n"
        ));
    }
    out
}

fn function(out: &mut String, name: &str, offers: &[Offer]) {
    out.push_str(&format!("function {name}\n    switch \"$argv[1]\"\n"));
    for Offer { pattern, words } in offers {
        let words = words.join(" ");
        out.push_str(&format!(
            "        case '{pattern}'\n            printf '%s\\n' {words}\n"
        ));
    }
    out.push_str("    end\nend\n");
}
