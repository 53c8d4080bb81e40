//! The definition of settings: a struct whose fields are keys.
//!
//! [`settings!`] is the one place in which a key is written. From it come the field and its documentation, the key's line in helps,
//! manual pages and completions, its type in the QMP schema, how it is read from either notation of the command line, from a
//! file and from a monitor, and how it is written for a new version of the program that takes over.

/// Defines settings. A field is written as
///
/// ```text
/// /// what it is for, with its unit and default: the help
/// pub field: Type = "key", FORM, PRESENCE;
/// ```
///
/// where `FORM` is a [`Form`](crate::form::Form) and `PRESENCE` is one of
/// - `default(VALUE)`: what it is where the key is not there;
/// - `optional`: the field is an `Option`, and `None` where the key is not there;
/// - `required("write key=…")`: an error where the key is not there.
///
/// After the struct, `accepts { … }` may list keys that are read and have no field, and `beside { … }` keys whose value is read
/// by hand; these stand first in helps. One of those that has to be there ends with `required`.
macro_rules! settings {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $(
                $(#[doc = $help:literal])+
                pub $field:ident: $type:ty = $key:literal, $form:expr, $presence:ident $(($argument:expr))?;
            )*
        }
        $(accepts {$(
            $(#[doc = $accepted_help:literal])+
            $accepted:literal, $accepted_form:expr;
        )*})?
        $(beside {$(
            $(#[doc = $beside_help:literal])+
            $beside:literal, $shown:literal, $value_type:expr $(, $beside_presence:ident)?;
        )*})?
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        $vis struct $name {
            $(
                $(#[doc = $help])+
                pub $field: $type,
            )*
        }

        impl $name {
            /// The keys, in the order of helps.
            pub(crate) const KEYS: &'static [$crate::key::Key] = &[
                $($(
                    $crate::key::Key::new($beside, $shown, concat!($($beside_help),+), $value_type)
                        $(.$beside_presence())?,
                )*)?
                $(settings!(@key $presence ($form).key($key, concat!($($help),+))),)*
                $($(($accepted_form).key($accepted, concat!($($accepted_help),+)),)*)?
            ];

            /// Every default; what is required is empty.
            #[must_use]
            pub fn defaults() -> Self {
                Self {
                    $($field: settings!(@default $presence $(($argument))?),)*
                }
            }

            /// Takes its keys. One that is not there is as in `base`, or else has its default.
            pub(crate) fn read(
                fields: &mut $crate::fields::Fields,
                base: Option<&Self>,
            ) -> Result<Self, $crate::Problem> {
                let old = base.cloned().unwrap_or_else(Self::defaults);
                let settings = Self {
                    $($field: settings!(
                        @read $presence $(($argument))? fields, $key, $form, old.$field, base
                    ),)*
                };
                $($(fields.value($accepted, &$accepted_form)?;)*)?
                Ok(settings)
            }

            /// Writes all keys that have a value.
            #[allow(dead_code, reason = "faults are not written")]
            pub(crate) fn write(
                &self,
                to: &mut $crate::tree::Object,
            ) -> Result<(), $crate::form::Unwritable> {
                $(settings!(@write $presence self.$field, $key, $form, to);)*
                Ok(())
            }
        }
    };
    (@key required $key:expr) => { $key.required() };
    (@key $presence:ident $key:expr) => { $key };
    (@default default($value:expr)) => { $value };
    (@default optional) => { None };
    (@default required($_:expr)) => { Default::default() };
    (@read default($_:expr) $fields:ident, $key:literal, $form:expr, $old:expr, $base:ident) => {
        $fields.value($key, &$form)?.unwrap_or($old)
    };
    (@read optional $fields:ident, $key:literal, $form:expr, $old:expr, $base:ident) => {
        $fields.value($key, &$form)?.or($old)
    };
    (@read required($hint:expr) $fields:ident, $key:literal, $form:expr, $old:expr, $base:ident) => {
        match $fields.value($key, &$form)? {
            None if $base.is_none() => return Err($fields.missing($key, $hint)),
            found => found.unwrap_or($old),
        }
    };
    (@write optional $field:expr, $key:literal, $form:expr, $to:ident) => {
        if let Some(value) = &$field {
            $to.set($key, $crate::form::Form::write(&$form, value)?);
        }
    };
    (@write $presence:ident $field:expr, $key:literal, $form:expr, $to:ident) => {
        $to.set($key, $crate::form::Form::write(&$form, &$field)?);
    };
}

pub(crate) use settings;

/// Defines an enum whose variants are words of a [`Choice`](crate::form::Choice), named `FORM`.
macro_rules! words {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $(#[$first_meta:meta])*
            $first:ident = $first_word:literal
            $(,
                $(#[$variant_meta:meta])*
                $variant:ident = $word:literal
            )*
            $(,)?
        }
        $(also $($alias:literal => $meaning:ident),+;)?
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $(#[$first_meta])*
            $first,
            $($(#[$variant_meta])* $variant,)*
        }

        impl $name {
            pub(crate) const FORM: $crate::form::Choice<Self> = $crate::form::Choice {
                words: &[
                    ($first_word, Self::$first),
                    $(($word, Self::$variant),)*
                    $($(($alias, Self::$meaning),)+)?
                ],
                not_yet: &[],
                shown: concat!($first_word $(, "|", $word)*),
            };
        }
    };
}

pub(crate) use words;
