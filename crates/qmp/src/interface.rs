//! QMP interface of a program: its commands with their handlers, its events, their types, and the commands that every
//! monitor has.

mod schema;

use serde_json::{Map, Value, json};

use crate::check::{self, Definitions};
use crate::request::Request;
use crate::{Error, Member, ObjectType, ReplySender, Type, TypeDefinition};

/// The arguments of a command, checked to be of the types that it declares.
pub type Arguments = Map<String, Value>;

/// A command. `C` is the state of the program that it works on.
pub struct Command<C> {
    /// Its name.
    pub name: &'static str,
    /// Its arguments.
    pub arguments: ObjectType,
    /// The type of its result; `None`: an empty object.
    pub returns: Option<Type>,
    /// The function that runs it.
    pub run: CommandHandler<C>,
}

/// The function of a command, by the thread that runs it.
pub enum CommandHandler<C> {
    /// Runs on a thread of the program's choice, see [`crate::CommandCall`], one after the other.
    InBand(fn(&mut C, &Arguments) -> Result<Value, Error>),
    /// Starts like `InBand`, and replies later. Meanwhile commands of other clients run; further ones of the same client
    /// wait.
    Deferred(fn(&mut C, &Arguments, ReplySender)),
    /// Runs on the server's thread: out of band at once, in band after earlier commands of the same client. It must not block.
    Immediate(fn(&Interface<C>, &Arguments) -> Result<Value, Error>),
}

/// An event, sent to all clients.
pub struct Event {
    /// Its name.
    pub name: &'static str,
    /// Its data.
    pub data: ObjectType,
}

/// Name and version of the program, for `query-version`.
#[derive(Clone, Debug)]
pub struct ProgramVersion {
    /// The program's name and version, for people.
    pub package: String,
    /// Major, minor and micro version.
    pub version: [u64; 3],
}

impl ProgramVersion {
    /// The result of `query-version`.
    pub(crate) fn to_json(&self) -> Value {
        let [major, minor, micro] = self.version;
        json!({
            "qemu": {"micro": micro, "minor": minor, "major": major},
            "package": self.package,
        })
    }
}

/// The commands and events of a program, with their types.
pub struct Interface<C> {
    pub(crate) product: ProgramVersion,
    pub(crate) definitions: Definitions,
    pub(crate) commands: Vec<Command<C>>,
    pub(crate) events: Vec<Event>,
}

/// The command that ends the negotiation of capabilities.
pub(crate) const NEGOTIATE_COMMAND: &str = "qmp_capabilities";

impl<C> Interface<C> {
    /// Joins the definitions, commands and events of a program with those that every monitor has.
    ///
    /// # Panics
    /// A name is defined twice, or used and not defined: a mistake in the program.
    #[must_use]
    pub fn new_with_common_commands(
        product: ProgramVersion,
        definitions: Vec<(&'static str, TypeDefinition)>,
        commands: Vec<Command<C>>,
        events: Vec<Event>,
    ) -> Self {
        let mut interface = Interface {
            product,
            definitions: Definitions::new(),
            commands: common_commands(),
            events,
        };
        interface.commands.extend(commands);
        for (name, definition) in common_type_definitions().into_iter().chain(definitions) {
            let previous = interface.definitions.insert(name, definition);
            assert!(previous.is_none(), "{name} is defined twice");
        }
        schema::assert_type_names_defined(&interface);
        interface
    }

    /// The result of `query-qmp-schema`.
    #[must_use]
    pub fn schema(&self) -> Value {
        schema::describe_interface(self)
    }

    /// The command of this name, if there is one.
    pub(crate) fn find_command(&self, name: &str) -> Option<&Command<C>> {
        self.commands.iter().find(|command| command.name == name)
    }

    /// The command that a request names; an error if there is none, or it may not run like this or with these
    /// arguments.
    pub(crate) fn find_checked_command(&self, request: &Request) -> Result<&Command<C>, Error> {
        let name = &request.command;
        let command = self.find_command(name).ok_or_else(|| {
            Error::command_not_found(format!("The command {name} has not been found"))
        })?;
        if request.oob && !command.allows_oob() {
            let text = format!("The command {name} does not support OOB");
            return Err(Error::generic(text));
        }
        check::check_object(
            &self.definitions,
            &command.arguments,
            &request.arguments,
            "",
        )?;
        Ok(command)
    }
}

impl<C> Command<C> {
    /// Whether it may run out of band, ahead of commands that wait.
    pub(crate) fn allows_oob(&self) -> bool {
        matches!(self.run, CommandHandler::Immediate(_))
    }
}

/// Types of the commands that every monitor has.
fn common_type_definitions() -> Vec<(&'static str, TypeDefinition)> {
    let object_of = |members| TypeDefinition::Object(ObjectType::with_members(members));
    vec![
        ("QMPCapability", TypeDefinition::Enum(vec!["oob"])),
        (
            "VersionTriple",
            object_of(
                ["major", "minor", "micro"]
                    .map(|name| Member::required(name, Type::Int))
                    .into(),
            ),
        ),
        (
            "VersionInfo",
            object_of(vec![
                Member::required("qemu", Type::Named("VersionTriple")),
                Member::required("package", Type::Str),
            ]),
        ),
        (
            "CommandInfo",
            object_of(vec![Member::required("name", Type::Str)]),
        ),
    ]
}

/// Commands that every monitor has.
fn common_commands<C>() -> Vec<Command<C>> {
    let enable = Type::list_of_named("QMPCapability");
    vec![
        Command {
            name: NEGOTIATE_COMMAND,
            arguments: ObjectType::with_members(vec![Member::optional("enable", enable)]),
            returns: None,
            run: CommandHandler::Immediate(|_, _| {
                Err(Error::command_not_found(
                    "Capabilities negotiation is already complete, command ignored",
                ))
            }),
        },
        Command {
            name: "query-version",
            arguments: ObjectType::default(),
            returns: Some(Type::Named("VersionInfo")),
            run: CommandHandler::Immediate(|interface, _| Ok(interface.product.to_json())),
        },
        Command {
            name: "query-commands",
            arguments: ObjectType::default(),
            returns: Some(Type::list_of_named("CommandInfo")),
            run: CommandHandler::Immediate(|interface, _| {
                let names = interface.commands.iter().map(|command| command.name);
                Ok(names.map(|name| json!({"name": name})).collect())
            }),
        },
        Command {
            name: "query-qmp-schema",
            arguments: ObjectType::default(),
            returns: Some(Type::List(Box::new(Type::Any))),
            run: CommandHandler::Immediate(|interface, _| Ok(interface.schema())),
        },
    ]
}
