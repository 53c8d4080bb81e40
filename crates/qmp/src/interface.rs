//! The interface of a program: commands, events, and the types they use.

mod schema;

use serde_json::{Map, Value, json};

use crate::check::{self, Definitions};
use crate::request::Request;
use crate::{Definition, Error, Member, Object, Reply, Type};

/// The arguments of a command; they are of the types that it declares.
pub type Arguments = Map<String, Value>;

/// A command. `C` is what the program gives it to work on.
pub struct Command<C> {
    /// Its name.
    pub name: &'static str,
    /// What it takes.
    pub arguments: Object,
    /// What it answers; `None`: that it is done.
    pub returns: Option<Type>,
    /// What it does.
    pub run: Run<C>,
}

/// Where a command runs.
pub enum Run<C> {
    /// One after the other where the program wants it, see [`crate::Call`].
    InBand(fn(&mut C, &Arguments) -> Result<Value, Error>),
    /// It begins there, and is answered when it is done. Meanwhile those of other clients run; those of its own
    /// wait.
    Deferred(fn(&mut C, &Arguments, Reply)),
    /// At once on the server's thread, since it never waits: also out of band.
    Immediate(fn(&Interface<C>, &Arguments) -> Result<Value, Error>),
}

/// Something that clients are told unasked.
pub struct Event {
    /// Its name.
    pub name: &'static str,
    /// What it carries.
    pub data: Object,
}

/// Who answers.
#[derive(Clone, Debug)]
pub struct Product {
    /// Name and version for people.
    pub package: String,
    /// Major, minor, micro.
    pub version: [u64; 3],
}

impl Product {
    pub(crate) fn to_json(&self) -> Value {
        let [major, minor, micro] = self.version;
        json!({
            "qemu": {"micro": micro, "minor": minor, "major": major},
            "package": self.package,
        })
    }
}

/// Everything that a program can be asked.
pub struct Interface<C> {
    pub(crate) product: Product,
    pub(crate) definitions: Definitions,
    pub(crate) commands: Vec<Command<C>>,
    pub(crate) events: Vec<Event>,
}

/// The command that begins a session.
pub(crate) const NEGOTIATE: &str = "qmp_capabilities";

impl<C> Interface<C> {
    /// Of a program's own definitions, commands and events; what every monitor has is added.
    ///
    /// # Panics
    /// When a name is defined twice, or used and not defined: a mistake in the program.
    #[must_use]
    pub fn new(
        product: Product,
        definitions: Vec<(&'static str, Definition)>,
        commands: Vec<Command<C>>,
        events: Vec<Event>,
    ) -> Self {
        let mut interface = Interface {
            product,
            definitions: Definitions::new(),
            commands: own_commands(),
            events,
        };
        interface.commands.extend(commands);
        for (name, definition) in own_definitions().into_iter().chain(definitions) {
            let before = interface.definitions.insert(name, definition);
            assert!(before.is_none(), "{name} is defined twice");
        }
        schema::check_names(&interface);
        interface
    }

    /// What `query-qmp-schema` answers.
    #[must_use]
    pub fn schema(&self) -> Value {
        schema::describe(self)
    }

    pub(crate) fn command(&self, name: &str) -> Option<&Command<C>> {
        self.commands.iter().find(|command| command.name == name)
    }

    /// The command that a request names, if it can be carried out so.
    pub(crate) fn find(&self, request: &Request) -> Result<&Command<C>, Error> {
        let name = &request.command;
        let command = self
            .command(name)
            .ok_or_else(|| Error::no_command(format!("The command {name} has not been found")))?;
        if request.oob && !command.is_oob() {
            let text = format!("The command {name} does not support OOB");
            return Err(Error::generic(text));
        }
        check::object(
            &self.definitions,
            &command.arguments,
            &request.arguments,
            "",
        )?;
        Ok(command)
    }
}

impl<C> Command<C> {
    pub(crate) fn is_oob(&self) -> bool {
        matches!(self.run, Run::Immediate(_))
    }
}

fn own_definitions() -> Vec<(&'static str, Definition)> {
    let object = |members| Definition::Object(Object::of(members));
    vec![
        ("QMPCapability", Definition::Enum(vec!["oob"])),
        (
            "VersionTriple",
            object(
                ["major", "minor", "micro"]
                    .map(|name| Member::required(name, Type::Int))
                    .into(),
            ),
        ),
        (
            "VersionInfo",
            object(vec![
                Member::required("qemu", Type::Named("VersionTriple")),
                Member::required("package", Type::Str),
            ]),
        ),
        (
            "CommandInfo",
            object(vec![Member::required("name", Type::Str)]),
        ),
    ]
}

fn own_commands<C>() -> Vec<Command<C>> {
    let enable = Type::list_of("QMPCapability");
    vec![
        Command {
            name: NEGOTIATE,
            arguments: Object::of(vec![Member::optional("enable", enable)]),
            returns: None,
            run: Run::Immediate(|_, _| {
                Err(Error::no_command(
                    "Capabilities negotiation is already complete, command ignored",
                ))
            }),
        },
        Command {
            name: "query-version",
            arguments: Object::default(),
            returns: Some(Type::Named("VersionInfo")),
            run: Run::Immediate(|interface, _| Ok(interface.product.to_json())),
        },
        Command {
            name: "query-commands",
            arguments: Object::default(),
            returns: Some(Type::list_of("CommandInfo")),
            run: Run::Immediate(|interface, _| {
                let names = interface.commands.iter().map(|command| command.name);
                Ok(names.map(|name| json!({"name": name})).collect())
            }),
        },
        Command {
            name: "query-qmp-schema",
            arguments: Object::default(),
            returns: Some(Type::List(Box::new(Type::Any))),
            run: Run::Immediate(|interface, _| Ok(interface.schema())),
        },
    ]
}
