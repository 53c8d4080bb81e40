//! Adds completion of keys inside of options, and of positional arguments, to the fish script of `clap`.

use clap::Command;

use crate::keys::{self, Candidates};
use crate::names::name_without_program;

const KEY_COMPLETION: &str = r#"
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

/// The script of `clap` for a program with these commands, followed by ours.
pub(crate) fn add_key_completion(script: &str, commands: &[Command]) -> String {
    let names: Vec<String> = commands.iter().map(name_without_program).collect();
    let names = names.join(" ");
    let mut out = script.to_owned();
    out.push_str("\n# Words without a dash.\n");
    push_positional_completion(&mut out, "help", &names);
    for command in commands {
        for positional in command.get_positionals() {
            let values = positional.get_possible_values();
            let values: Vec<_> = values.iter().map(|value| value.get_name()).collect();
            if !values.is_empty() {
                push_positional_completion(
                    &mut out,
                    &name_without_program(command),
                    &values.join(" "),
                );
            }
        }
    }
    out.push_str("\n# Inside of an option: kinds (before the first comma) and keys.\n");
    push_candidate_function(
        &mut out,
        "__blockplane_words",
        &keys::kind_and_key_candidates(),
    );
    out.push_str("\n# What the value of a key may be; PATH: a file.\n");
    push_candidate_function(&mut out, "__blockplane_values", &keys::value_candidates());
    out.push_str(KEY_COMPLETION);
    for option in keys::options_with_keys() {
        // The condition that `clap` uses for commands fails while the value of an option is completed.
        out.push_str(&format!(
            "complete -c blockplane -n \"not __fish_seen_subcommand_from {names}\" -l {option} -x \
             -a '(__blockplane_keys --{option})'\n"
        ));
    }
    out
}

/// Appends the completion of the positional argument of a command, which `clap` leaves out, with one of `words`.
fn push_positional_completion(out: &mut String, command: &str, words: &str) {
    out.push_str(&format!(
        "complete -c blockplane -n \"__fish_blockplane_using_subcommand {command}; \
         and test (count (commandline -opc)) -eq 2\" -f -a \"{words}\"\n"
    ));
}

/// Appends a shell function that prints the words of the first pattern that its argument matches.
fn push_candidate_function(out: &mut String, name: &str, candidates: &[Candidates]) {
    out.push_str(&format!("function {name}\n    switch \"$argv[1]\"\n"));
    for Candidates { pattern, words } in candidates {
        let words = words.join(" ");
        out.push_str(&format!(
            "        case '{pattern}'\n            printf '%s\\n' {words}\n"
        ));
    }
    out.push_str("    end\nend\n");
}
