//! Texts of the manual pages of blockplane: blockplane(1), blockplane.toml(5), blockplane-qmp(7), and one for each
//! command.

use std::io;

use clap::Command;
use options::reference::{self, KeyGroup};

use crate::page::Page;
use crate::{QmpSummary, command_pages, completions};

/// All pages, each with the name of its file.
pub(crate) fn blockplane_pages(
    commands: &[Command],
    protocol: &QmpSummary,
) -> io::Result<Vec<(String, String)>> {
    let program = completions::blockplane_grammar(commands);
    let mut pages = command_pages::pages_of_program(&program, "blockplane(1), blockplane.toml(5)")?;
    // The page of the program itself has more than its grammar.
    pages[0].1 = page_of_blockplane(&program);
    pages.push(("blockplane.toml.5".to_owned(), configuration_file_page()));
    pages.push(("blockplane-qmp.7".to_owned(), qmp_page(protocol)));
    Ok(pages)
}

/// Adds the section of references to other pages.
fn push_see_also(page: &mut Page, text: &str) {
    page.add_heading("SEE ALSO");
    page.add_prose(text);
}

/// `blockplane.1`: commands, options without a command, and their keys.
fn page_of_blockplane(program: &Command) -> String {
    let mut page = Page::with_name_section("blockplane", "1", "disks for virtual machines");
    page.add_heading("SYNOPSIS");
    page.add_verbatim("blockplane COMMAND ...\nblockplane [OPTIONS]");
    page.add_heading("DESCRIPTION");
    page.add_prose(
        "blockplane serves disks to virtual machines. The virtual machine monitor connects to a Unix socket and \
         shares the guest's memory; blockplane executes the requests of the guest's virtio disk on a file or a block \
         device.\n\n\
         The commands are for interactive use. Without a command, blockplane takes the options of qemu-storage-daemon, for scripts.",
    );
    page.add_heading("COMMANDS");
    for command in program.get_subcommands() {
        let name = command.get_name();
        let about = command.get_about().map(ToString::to_string);
        let about = about.unwrap_or_default();
        page.add_item(name, &format!("{about}; see blockplane-{name}(1)."));
    }
    page.add_heading("OPTIONS WITHOUT A COMMAND");
    page.add_prose("An option can be shortened as long as it stays unambiguous, and written --option=VALUE. Keys follow as KEY=VALUE, with commas between them, or as JSON.");
    for option in reference::top_level_options() {
        let short = option
            .short
            .map_or(String::new(), |short| format!("-{short}, "));
        let value = option
            .placeholder
            .map_or(String::new(), |value| format!(" {value}"));
        page.add_item(&format!("{short}--{}{value}", option.long), option.help);
    }
    for group in reference::key_groups_with_list_elements() {
        page.add_subheading(&format!("--{}: {}", group.option, group.title));
        push_keys(&mut page, group);
    }
    page.add_heading("ENVIRONMENT");
    page.add_item(
        "BLOCKPLANE_LOG",
        "The log level without a command: error (errors and warnings, the default; also warn), info, debug or trace.",
    );
    page.add_item(
        "BLOCKPLANE_LOG_FORMAT",
        "The log format: text (the default) or json.",
    );
    page.add_heading("EXIT STATUS");
    page.add_prose("0 after an orderly shutdown (SIGTERM, SIGINT, SIGHUP): writes that were completed to guests are on stable storage. 1 for any error.");
    let names = program.get_subcommands().map(Command::get_name);
    let mut pages: Vec<String> = names.map(|name| format!("blockplane-{name}(1)")).collect();
    pages.push("blockplane-bench(1)".to_owned());
    pages.push("blockplane.toml(5)".to_owned());
    pages.push("blockplane-qmp(7)".to_owned());
    pages.push("qemu-storage-daemon(1)".to_owned());
    push_see_also(&mut page, &pages.join(", "));
    page.finish()
}

/// Adds the keys of a group, each as it is written on the command line.
fn push_keys(page: &mut Page, group: &KeyGroup) {
    for key in group.keys {
        page.add_item(
            &format!("{}{}={}", group.prefix, key.name, key.placeholder),
            key.help,
        );
    }
}

const FILE_RULES: &str = "\
The file is TOML. A table describes one object and has its name, such as [export.web] for an export called web. The keys are \
those of the command line, with the same defaults.

Keys that are nested with dots on the command line may be written with dots, or as a table. Lists are lists. Switches are true and \
false, or \"on\" and \"off\". Sizes are bytes, or strings with a suffix: \"1.5G\". The order of tables does not matter.

An option on the command line replaces the table of an object of the same kind and name.

blockplane check FILE reports all errors of a file, or shows what it would create.";

const FILE_EXAMPLE: &str = "\
[blockdev.disk0]
driver = \"file\"
filename = \"/srv/disk0.img\"

[export.web]
node-name = \"disk0\"
writable = true
num-queues = 4
addr = { type = \"unix\", path = \"/run/web.sock\" }";

/// `blockplane.toml.5`: the tables of a configuration file, and their keys.
fn configuration_file_page() -> String {
    let mut page = Page::with_name_section("blockplane.toml", "5", "configuration of blockplane");
    page.add_heading("SYNOPSIS");
    page.add_verbatim(
        "blockplane --config FILE\nblockplane serve --config FILE\nblockplane check FILE",
    );
    page.add_heading("DESCRIPTION");
    page.add_prose(FILE_RULES);
    page.add_heading("TABLES");
    for group in reference::key_groups_with_list_elements() {
        let header = match group.table {
            "nbd-server" => "[nbd-server]".to_owned(),
            table => format!("[{table}.NAME]"),
        };
        page.add_subheading(&format!("{header}: {}", group.title));
        let is_in_header = |name: &str| match group.table {
            "blockdev" => name == "node-name",
            "monitor" => name == "chardev",
            _ => name == "id",
        };
        for key in group.keys.iter().filter(|key| !is_in_header(key.name)) {
            page.add_item(&format!("{} = {}", key.name, key.placeholder), key.help);
        }
    }
    page.add_subheading("[metrics]: metrics for Prometheus");
    page.add_item(
        "listen = ADDRESS",
        "as --metrics: unix:PATH, tcp:IP:PORT or fd:FD in quotes",
    );
    page.add_heading("EXAMPLE");
    page.add_verbatim(FILE_EXAMPLE);
    push_see_also(&mut page, "blockplane(1)");
    page.finish()
}

const QMP_DESCRIPTION: &str = "\
A daemon listens for monitor clients on the sockets of --monitor, or serve --monitor. The protocol is QMP, the JSON protocol \
of QEMU's monitors: the daemon sends a greeting, the client {\"execute\": \"qmp_capabilities\"}, and then commands, each of \
which gets a response. blockplane qmp SOCKET sends commands from a shell.

Names, arguments and results are those of QEMU where it has them. The arguments below are listed with their types; \
those in brackets are optional. A dot separates an object and its member. query-qmp-schema returns the same for programs, \
with the types of results.";

/// `blockplane-qmp.7`: the commands and events of monitors.
fn qmp_page(protocol: &QmpSummary) -> String {
    let mut page =
        Page::with_name_section("blockplane-qmp", "7", "commands and events of the monitors");
    page.add_heading("DESCRIPTION");
    page.add_prose(QMP_DESCRIPTION);
    for (heading, lines) in [
        ("COMMANDS", &protocol.commands),
        ("EVENTS", &protocol.events),
    ] {
        page.add_heading(heading);
        for line in lines {
            let (name, rest) = line.split_once([' ', '\n']).unwrap_or((line, "none"));
            // Arguments that depend on the value of another one have paragraphs of their own.
            page.add_item(name, &rest.replace('\n', "\n\n"));
        }
    }
    push_see_also(&mut page, "blockplane(1), blockplane-qmp(1)");
    page.finish()
}
