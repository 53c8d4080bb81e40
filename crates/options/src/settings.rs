//! Macros that define the keys of an option once, as fields of a struct, and generate from them its reader, its writer
//! and the entries of help texts and schemas.
//!
//! [`settings!`] is the only definition of a key. From it come the field and its documentation, the key's line in help texts,
//! manual pages and completions, its type in the QMP schema, and the code that reads it (from both notations of the command
//! line, from files and from QMP) and writes it for a live upgrade.

/// Defines settings. A field is written as
///
/// ```text
/// /// its purpose, unit and default: the text of the help
/// pub field: Type = "key", FORM, PRESENCE;
/// ```
///
/// where `FORM` is a [`ValueForm`](crate::form::ValueForm) and `PRESENCE` is one of
/// - `default(VALUE)`: the value if the key is not given;
/// - `optional`: the field is an `Option`, and `None` if the key is not given;
/// - `required("write key=…")`: an error if the key is not given.
///
/// After the struct, `accepts { … }` may list keys that are read and have no field, and `beside { … }` keys whose values are read
/// by other code, which come first in help texts. A required one of these ends with `required`.
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
            /// The keys, in the order of help texts.
            pub(crate) const KEYS: &'static [$crate::key::KeySpec] = &[
                $($(
                    $crate::key::KeySpec::new($beside, $shown, concat!($($beside_help),+), $value_type)
                        $(.$beside_presence())?,
                )*)?
                $(settings!(@key $presence ($form).define_key($key, concat!($($help),+))),)*
                $($(($accepted_form).define_key($accepted, concat!($($accepted_help),+)),)*)?
            ];

            /// All defaults; required values are empty.
            #[must_use]
            pub fn defaults() -> Self {
                Self {
                    $($field: settings!(@default $presence $(($argument))?),)*
                }
            }

            /// Takes the keys of these settings. A key that is not given has its value in `base`, or else its default.
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
                $($(fields.take_typed($accepted, &$accepted_form)?;)*)?
                Ok(settings)
            }

            /// Writes all keys with a value.
            #[allow(dead_code, reason = "settings of faults are never written")]
            pub(crate) fn write_to(
                &self,
                to: &mut $crate::tree::Object,
            ) -> Result<(), $crate::form::NonUtf8Path> {
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
        $fields.take_typed($key, &$form)?.unwrap_or($old)
    };
    (@read optional $fields:ident, $key:literal, $form:expr, $old:expr, $base:ident) => {
        $fields.take_typed($key, &$form)?.or($old)
    };
    (@read required($hint:expr) $fields:ident, $key:literal, $form:expr, $old:expr, $base:ident) => {
        match $fields.take_typed($key, &$form)? {
            None if $base.is_none() => return Err($fields.missing_key_error($key, $hint)),
            found => found.unwrap_or($old),
        }
    };
    (@write optional $field:expr, $key:literal, $form:expr, $to:ident) => {
        if let Some(value) = &$field {
            $to.push_dotted_key($key, $crate::form::ValueForm::to_value(&$form, value)?);
        }
    };
    (@write $presence:ident $field:expr, $key:literal, $form:expr, $to:ident) => {
        $to.push_dotted_key($key, $crate::form::ValueForm::to_value(&$form, &$field)?);
    };
}

pub(crate) use settings;

/// Defines an enum whose variants are the words of a [`ChoiceForm`](crate::form::ChoiceForm), named `FORM`.
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
            pub(crate) const FORM: $crate::form::ChoiceForm<Self> = $crate::form::ChoiceForm {
                words: &[
                    ($first_word, Self::$first),
                    $(($word, Self::$variant),)*
                    $($(($alias, Self::$meaning),)+)?
                ],
                unsupported: &[],
                placeholder: concat!($first_word $(, "|", $word)*),
            };
        }
    };
}

pub(crate) use words;
