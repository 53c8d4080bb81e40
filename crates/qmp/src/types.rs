//! Types of arguments, results and events.

/// The type of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    /// A string.
    Str,
    /// A whole number, of 64 bits with or without a sign.
    Int,
    /// The same, taken without a sign: what is negative stands for a number near 2^64.
    Unsigned,
    /// `true` or `false`.
    Bool,
    /// Anything.
    Any,
    /// A list of values of one type.
    List(Box<Type>),
    /// What the interface defines under this name.
    Named(&'static str),
}

impl Type {
    /// A list of what is defined under a name.
    #[must_use]
    pub fn list_of(name: &'static str) -> Self {
        Type::List(Box::new(Type::Named(name)))
    }
}

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Definition {
    /// One of these words.
    Enum(Vec<&'static str>),
    /// A group of members.
    Object(Object),
    /// A value of any of these types, which are told apart by their form in JSON.
    Alternate(Vec<Type>),
}

/// A group of members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Object {
    /// Those that are always known.
    pub members: Vec<Member>,
    /// Those that depend on one of them.
    pub variants: Option<Variants>,
}

impl Object {
    /// Only members.
    #[must_use]
    pub fn of(members: Vec<Member>) -> Self {
        Object {
            members,
            variants: None,
        }
    }
}

/// A member of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub r#type: Type,
    /// Whether it has to be there.
    pub required: bool,
}

impl Member {
    /// One that has to be there.
    #[must_use]
    pub fn required(name: &'static str, r#type: Type) -> Self {
        Member {
            name,
            r#type,
            required: true,
        }
    }

    /// One that may be there.
    #[must_use]
    pub fn optional(name: &'static str, r#type: Type) -> Self {
        Member {
            name,
            r#type,
            required: false,
        }
    }
}

/// Members that are known according to the value of another, which has an enumerated type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variants {
    /// That member.
    pub tag: &'static str,
    /// Each value that adds members, with the name of the object that has them.
    pub cases: Vec<(&'static str, &'static str)>,
}
