//! Every page of blockplane.

use std::io;

use clap::Command;
use options::reference::{self, KEYS, KeyGroup};

use crate::page::Page;
use crate::{Protocol, command_pages, completions};

/// Every page with the name of its file.
pub(crate) fn all(commands: &[Command], protocol: &Protocol) -> io::Result<Vec<(String, String)>> {
    let program = completions::program(commands);
    let mut pages = command_pages::with_those_below(&program, "blockplane(1), blockplane.toml(5)")?;
    // Of the program itself, there is more to say than its grammar does.
    pages[0].1 = overview(&program);
    pages.push(("blockplane.toml.5".to_owned(), configuration()));
    pages.push(("blockplane-qmp.7".to_owned(), monitors(protocol)));
    Ok(pages)
}

fn see_also(page: &mut Page, text: &str) {
    page.heading("SEE ALSO");
    page.prose(text);
}

fn overview(program: &Command) -> String {
    let mut page = Page::new("blockplane", "1", "disks for virtual machines");
    page.heading("SYNOPSIS");
    page.verbatim("blockplane COMMAND ...\nblockplane [OPTIONS]");
    page.heading("DESCRIPTION");
    page.prose(
        "blockplane gives virtual machines their disks. The virtual machine monitor connects to a Unix socket and \
         shares the guest's memory; blockplane carries out what the guest asks of its virtio disk, on a file or a block \
         device.\n\n\
         With a command it is for people. Without one it takes the options of qemu-storage-daemon, for scripts.",
    );
    page.heading("COMMANDS");
    for command in program.get_subcommands() {
        let name = command.get_name();
        let about = command.get_about().map(ToString::to_string);
        let about = about.unwrap_or_default();
        page.item(name, &format!("{about}; see blockplane-{name}(1)."));
    }
    page.heading("OPTIONS WITHOUT A COMMAND");
    page.prose("An option can be shortened as long as it stays unambiguous, and written --option=VALUE. Keys follow as KEY=VALUE, with commas between them, or as JSON.");
    for option in reference::options() {
        let short = option
            .short
            .map_or(String::new(), |short| format!("-{short}, "));
        let value = option
            .value
            .map_or(String::new(), |value| format!(" {value}"));
        page.item(&format!("{short}--{}{value}", option.long), option.help);
    }
    for group in KEYS {
        page.subheading(&format!("--{}: {}", group.option, group.title));
        keys(&mut page, group);
    }
    page.heading("ENVIRONMENT");
    page.item(
        "BLOCKPLANE_LOG",
        "How much is logged without a command: error (errors and warnings, the default; also warn), info, debug or trace.",
    );
    page.item(
        "BLOCKPLANE_LOG_FORMAT",
        "In which form: text (the default) or json.",
    );
    page.heading("EXIT STATUS");
    page.prose("0 after an orderly end (SIGTERM, SIGINT, SIGHUP): what a guest saw complete is on stable storage. 1 for any error.");
    let names = program.get_subcommands().map(Command::get_name);
    let mut pages: Vec<String> = names.map(|name| format!("blockplane-{name}(1)")).collect();
    pages.push("blockplane-bench(1)".to_owned());
    pages.push("blockplane.toml(5)".to_owned());
    pages.push("blockplane-qmp(7)".to_owned());
    pages.push("qemu-storage-daemon(1)".to_owned());
    see_also(&mut page, &pages.join(", "));
    page.done()
}

fn keys(page: &mut Page, group: &KeyGroup) {
    for key in group.keys {
        page.item(&format!("{}={}", key.name, key.value), key.help);
    }
}

const RULES: &str = "\
The file is TOML. A table is one thing with its name, such as [export.web] for an export called web. The keys are those of \
the command line, with the same defaults.

What is nested with dots on the command line may be written with dots, or as a table. Lists are lists. Switches are true and \
false, or \"on\" and \"off\". Sizes are bytes, or strings with a suffix: \"1.5G\". The order of tables does not matter.

The command line comes after the file: what it gives a name that the file gives to a thing of the same kind replaces the \
table.

blockplane check FILE says all that is wrong with a file, or what it would run.";

const EXAMPLE: &str = "\
[blockdev.disk0]
driver = \"file\"
filename = \"/srv/disk0.img\"

[export.web]
node-name = \"disk0\"
writable = true
num-queues = 4
addr = { type = \"unix\", path = \"/run/web.sock\" }";

fn configuration() -> String {
    let mut page = Page::new("blockplane.toml", "5", "what blockplane is to run");
    page.heading("SYNOPSIS");
    page.verbatim(
        "blockplane --config FILE\nblockplane serve --config FILE\nblockplane check FILE",
    );
    page.heading("DESCRIPTION");
    page.prose(RULES);
    page.heading("TABLES");
    for group in KEYS {
        page.subheading(&format!("[{}.NAME]: {}", group.table, group.title));
        let in_header = |name: &str| match group.table {
            "blockdev" => name == "node-name",
            "monitor" => name == "chardev",
            _ => name == "id",
        };
        for key in group.keys.iter().filter(|key| !in_header(key.name)) {
            page.item(&format!("{} = {}", key.name, key.value), key.help);
        }
    }
    page.subheading("[metrics]: figures for Prometheus");
    page.item(
        "listen = ADDRESS",
        "as --metrics: unix:PATH, tcp:IP:PORT or fd:FD in quotes",
    );
    page.heading("EXAMPLE");
    page.verbatim(EXAMPLE);
    see_also(&mut page, "blockplane(1)");
    page.done()
}

const ASKING: &str = "\
A daemon listens for monitors where --monitor says, and serve --monitor. What goes over the socket is QMP, the JSON protocol \
of QEMU's monitors: the daemon greets, the client sends {\"execute\": \"qmp_capabilities\"}, and then commands, each of \
which is answered. blockplane qmp SOCKET sends them from a shell.

Names, arguments and answers are those of QEMU where it has them. Below stand the arguments, each with what it may be; \
those in brackets may be left out. Dots stand for an object in an object. query-qmp-schema tells programs the same, and what \
is answered.";

fn monitors(protocol: &Protocol) -> String {
    let mut page = Page::new(
        "blockplane-qmp",
        "7",
        "what the daemon's monitors can be asked",
    );
    page.heading("DESCRIPTION");
    page.prose(ASKING);
    for (heading, lines) in [
        ("COMMANDS", &protocol.commands),
        ("EVENTS", &protocol.events),
    ] {
        page.heading(heading);
        for line in lines {
            let (name, rest) = line.split_once([' ', '\n']).unwrap_or((line, "none"));
            // What depends on an argument's value has paragraphs of its own.
            page.item(name, &rest.replace('\n', "\n\n"));
        }
    }
    see_also(&mut page, "blockplane(1), blockplane-qmp(1)");
    page.done()
}
