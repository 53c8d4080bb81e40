//! Wire format of NBD: headers and constants of both phases, in network byte order.

mod errno;
mod handshake;
mod transmission;

pub use errno::NbdErrno;
pub use handshake::*;
pub use transmission::*;

/// Most bytes of a payload that every peer accepts, and most bytes of a read: 32 MiB.
pub const MAX_PAYLOAD_BYTES: u32 = 1 << 25;

/// Most bytes of a string: names of exports and contexts, descriptions, texts of errors.
pub const MAX_STRING_BYTES: u32 = 4096;

/// Defines a struct of an asserted size on the wire, with functions to decode and encode it.
macro_rules! wire_struct {
    ($(#[$doc:meta])* $name:ident: $size:literal { $($(#[$about:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$about])* pub $field: $type,)* }

        const _: () = assert!($size == 0 $(+ size_of::<$type>())*);

        impl $name {
            /// Bytes on the wire.
            pub const BYTES: usize = $size;

            /// Decodes the struct.
            #[inline]
            #[must_use]
            pub fn decode(bytes: &[u8; $size]) -> Self {
                let rest = &bytes[..];
                $(let (field, rest) = $crate::wire::split_array(rest);
                let $field = <$type>::from_be_bytes(field);)*
                debug_assert!(rest.is_empty(), "the sizes of the fields add up");
                $name { $($field,)* }
            }

            /// Decodes the first bytes of `bytes`; `None` when there are too few.
            #[inline]
            #[must_use]
            pub fn decode_first(bytes: &[u8]) -> Option<Self> {
                bytes.first_chunk().map(Self::decode)
            }

            /// The bytes of the struct.
            #[inline]
            #[must_use]
            pub fn encode(&self) -> [u8; $size] {
                let mut bytes = [0; $size];
                let rest = &mut bytes[..];
                $(let (field, rest) = rest.split_at_mut(size_of::<$type>());
                field.copy_from_slice(&self.$field.to_be_bytes());)*
                debug_assert!(rest.is_empty(), "the sizes of the fields add up");
                bytes
            }
        }
    };
}
use wire_struct;

/// Splits off the first `N` bytes, of at least so many.
#[inline]
fn split_array<const N: usize>(bytes: &[u8]) -> ([u8; N], &[u8]) {
    match bytes.split_first_chunk() {
        Some((first, rest)) => (*first, rest),
        None => unreachable!("the struct has {N} more bytes"),
    }
}

#[cfg(test)]
mod tests;
