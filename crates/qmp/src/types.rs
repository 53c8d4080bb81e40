//! Types of the QMP schema, with which commands declare their arguments and results, and events their data.

/// The type of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    /// A string.
    Str,
    /// A whole number, of 64 bits with or without a sign.
    Int,
    /// A whole number without a sign; a negative one stands for a number near 2^64, as in QEMU.
    Unsigned,
    /// `true` or `false`.
    Bool,
    /// Anything.
    Any,
    /// A list of values of one type.
    List(Box<Type>),
    /// A type that the interface defines by this name.
    Named(&'static str),
}

impl Type {
    /// A list of values of a named type.
    #[must_use]
    pub fn list_of_named(name: &'static str) -> Self {
        Type::List(Box::new(Type::Named(name)))
    }
}

/// The definition of a named type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TypeDefinition {
    /// One of these words.
    Enum(Vec<&'static str>),
    /// An enumeration of one word, where other programs have more: the error for another word names it.
    OneWord(&'static str),
    /// A group of members.
    Object(ObjectType),
    /// A value of any of these types, which differ in their JSON types.
    Alternate(Vec<Type>),
}

/// A group of members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectType {
    /// The members that it has in any case.
    pub members: Vec<Member>,
    /// Further members, which depend on the value of one of `members`.
    pub variants: Option<Variants>,
}

impl ObjectType {
    /// An object without variants.
    #[must_use]
    pub fn with_members(members: Vec<Member>) -> Self {
        ObjectType {
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
    /// A required member.
    #[must_use]
    pub fn required(name: &'static str, r#type: Type) -> Self {
        Member {
            name,
            r#type,
            required: true,
        }
    }

    /// An optional member.
    #[must_use]
    pub fn optional(name: &'static str, r#type: Type) -> Self {
        Member {
            name,
            r#type,
            required: false,
        }
    }
}

/// Members that an object has only for some values of another member, which has an enumerated type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variants {
    /// The member that decides.
    pub tag: &'static str,
    /// Values of the tag that add members, each with the name of the object type that has them.
    pub cases: Vec<(&'static str, &'static str)>,
}
