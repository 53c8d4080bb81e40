//! Generates the completion scripts of a program for bash, zsh and fish from its `clap` grammar. `clap` does not know
//! the keys inside of options; each shell has a function of ours for them.

use clap::{Arg, Command, ValueHint};
use clap_complete::{Shell, generate};
use options::reference;

use crate::names::name_without_program;
use crate::{bash, fish, zsh};

/// The scripts of blockplane, each with the name of its file.
pub(crate) fn blockplane_scripts(commands: &[Command]) -> Vec<(String, String)> {
    let script = |shell: Shell| {
        let mut out = Vec::new();
        generate(
            shell,
            &mut blockplane_grammar(commands),
            "blockplane",
            &mut out,
        );
        String::from_utf8_lossy(&out).into_owned()
    };
    vec![
        (
            "blockplane.bash".to_owned(),
            bash::add_key_completion(&script(Shell::Bash)),
        ),
        (
            "_blockplane".to_owned(),
            zsh::add_key_completion(&script(Shell::Zsh)),
        ),
        (
            "blockplane.fish".to_owned(),
            fish::add_key_completion(&script(Shell::Fish), commands),
        ),
    ]
}

/// The scripts of another program, each with the name of its file.
pub(crate) fn program_scripts(program: &Command) -> Vec<(String, String)> {
    let name = program.get_name();
    let script = |shell: Shell| {
        let mut out = Vec::new();
        generate(shell, &mut program.clone(), name, &mut out);
        String::from_utf8_lossy(&out).into_owned()
    };
    // clap takes a dash in the program's name for one in front of a subcommand, in half of the places.
    let bash = script(Shell::Bash);
    let bash = bash.replace(&name.replace('-', "__subcmd__"), &name.replace('-', "__"));
    vec![
        (format!("{name}.bash"), bash),
        (format!("_{name}"), script(Shell::Zsh)),
        (format!("{name}.fish"), script(Shell::Fish)),
    ]
}

/// The whole command line of blockplane as one grammar: options without a command, and commands.
pub(crate) fn blockplane_grammar(commands: &[Command]) -> Command {
    let mut program = Command::new("blockplane").about("disks for virtual machines");
    // clap adds --help, to the commands as well.
    let options = reference::top_level_options().into_iter();
    for option in options.filter(|option| option.long != "help") {
        let mut arg = Arg::new(option.long).long(option.long).help(option.help);
        arg = match option.short {
            Some(short) => arg.short(short),
            None => arg,
        };
        arg = match option.placeholder {
            None => arg.action(clap::ArgAction::SetTrue),
            Some("PATH" | "FILE") => arg.value_hint(ValueHint::FilePath),
            Some(_) => arg.action(clap::ArgAction::Append),
        };
        program = program.arg(arg);
    }
    let commands = commands.iter();
    program.subcommands(commands.map(|command| command.clone().name(name_without_program(command))))
}
