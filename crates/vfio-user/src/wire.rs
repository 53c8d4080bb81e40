//! Wire format: headers and payloads, in the byte order of the host, as the protocol has it.
//!
//! Names are those of the specification, "vfio-user Protocol Specification", version 0.0; sections are
//! its commands. A message is a [`Header`] and a payload.

/// Takes the next `N` bytes off the front.
fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

/// A struct without padding whose size is asserted, with its way from bytes and to bytes.
macro_rules! wire_struct {
    ($(#[$doc:meta])* $name:ident: $size:literal { $($(#[$about:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$about])* pub $field: $type,)* }

        const _: () = assert!(size_of::<$name>() == $size);
        const _: () = assert!($size == 0 $(+ size_of::<$type>())*);

        impl $name {
            /// Bytes on the wire.
            pub const BYTES: usize = $size;
            /// The same, as fields of messages hold it.
            pub const SIZE: u32 = $size;

            /// From the first bytes of `bytes`; `None` when there are too few.
            #[must_use]
            pub fn decode(mut bytes: &[u8]) -> Option<Self> {
                Some($name { $($field: <$type>::from_ne_bytes(take(&mut bytes)?),)* })
            }

            /// Behind what is in `out`.
            pub fn encode(&self, out: &mut Vec<u8>) {
                $(out.extend_from_slice(&self.$field.to_ne_bytes());)*
            }
        }
    };
}

wire_struct! {
    /// "Header": before every message.
    Header: 16 {
        /// Chosen by who asks, repeated by who answers.
        id: u16,
        /// One of [`command`].
        command: u16,
        /// Bytes of the message, with this header.
        size: u32,
        /// [`TYPE_MASK`], [`NO_REPLY`], [`ERROR`].
        flags: u32,
        /// In a reply with [`ERROR`]: why.
        errno: u32,
    }
}

wire_struct! {
    /// `VFIO_USER_VERSION`, both ways; JSON and a NUL follow.
    Version: 4 {
        /// Both sides' must be the same.
        major: u16,
        /// The lower one of both sides is used.
        minor: u16,
    }
}

wire_struct! {
    /// `VFIO_USER_DMA_MAP`.
    DmaMap: 32 {
        /// The size of this struct.
        argsz: u32,
        /// [`DMA_READ_ALLOWED`], [`DMA_WRITE_ALLOWED`].
        flags: u32,
        /// Where in the file of the descriptor it begins.
        offset: u64,
        /// Where the device sees it.
        address: u64,
        /// Bytes.
        size: u64,
    }
}

wire_struct! {
    /// `VFIO_USER_DMA_UNMAP`, and its reply.
    DmaUnmap: 24 {
        /// Room for the reply.
        argsz: u32,
        /// [`DMA_UNMAP_ALL`].
        flags: u32,
        /// As it was mapped.
        address: u64,
        /// As it was mapped.
        size: u64,
    }
}

wire_struct! {
    /// `VFIO_USER_DEVICE_GET_INFO`, and its reply.
    DeviceInfo: 16 {
        /// Room for the reply; in the reply its size.
        argsz: u32,
        /// [`DEVICE_RESET`], [`DEVICE_PCI`].
        flags: u32,
        /// Regions, those of size 0 too.
        num_regions: u32,
        /// Kinds of interrupts, those without any too.
        num_irqs: u32,
    }
}

wire_struct! {
    /// `VFIO_USER_DEVICE_GET_REGION_INFO`, and its reply.
    RegionInfo: 32 {
        /// Room for the reply; in the reply its size.
        argsz: u32,
        /// [`REGION_READ_ALLOWED`], [`REGION_WRITE_ALLOWED`].
        flags: u32,
        /// Which one.
        index: u32,
        /// 0: no capabilities follow.
        cap_offset: u32,
        /// Bytes; 0: there is none.
        size: u64,
        /// For regions that can be mapped, which ours cannot.
        offset: u64,
    }
}

wire_struct! {
    /// `VFIO_USER_DEVICE_GET_IRQ_INFO`, and its reply.
    IrqInfo: 16 {
        /// Room for the reply; in the reply its size.
        argsz: u32,
        /// [`IRQ_EVENTFD`], [`IRQ_MASKABLE`], [`IRQ_AUTOMASKED`].
        flags: u32,
        /// Which kind: [`IRQ_INTX`] and others.
        index: u32,
        /// Interrupts of that kind.
        count: u32,
    }
}

wire_struct! {
    /// `VFIO_USER_DEVICE_SET_IRQS`; a byte for each interrupt follows with [`IRQ_DATA_BOOL`].
    SetIrqs: 20 {
        /// The size of this struct and of what follows.
        argsz: u32,
        /// One of the `IRQ_DATA_…` and one of the `IRQ_ACTION_…`.
        flags: u32,
        /// Which kind.
        index: u32,
        /// The first one.
        start: u32,
        /// How many.
        count: u32,
    }
}

wire_struct! {
    /// `VFIO_USER_REGION_READ` and `VFIO_USER_REGION_WRITE`, and their replies; data follow a write and the
    /// reply to a read.
    RegionAccess: 16 {
        /// Where in the region.
        offset: u64,
        /// Which region.
        region: u32,
        /// Bytes of data.
        count: u32,
    }
}

wire_struct! {
    /// `VFIO_USER_REGION_WRITE_MULTI`, and its reply; as many [`SmallWrite`] follow the command.
    WriteMulti: 8 {
        /// Writes; in the reply those that were done.
        count: u64,
    }
}

wire_struct! {
    /// One write of `VFIO_USER_REGION_WRITE_MULTI`.
    SmallWrite: 24 {
        /// Where in the region.
        offset: u64,
        /// Which region.
        region: u32,
        /// How many bytes of `data` are meant: 8 at most.
        count: u32,
        /// They come first in memory.
        data: u64,
    }
}

wire_struct! {
    /// `VFIO_USER_DMA_READ` and `VFIO_USER_DMA_WRITE`, which we send; data follow a write and the reply to a read.
    DmaAccess: 16 {
        /// Where the device sees the memory.
        address: u64,
        /// Bytes of data.
        count: u64,
    }
}

/// Numbers of commands.
pub mod command {
    /// The first message.
    pub const VERSION: u16 = 1;
    /// Memory that the device may use.
    pub const DMA_MAP: u16 = 2;
    /// Memory that it must not use any more.
    pub const DMA_UNMAP: u16 = 3;
    /// What kind of device it is.
    pub const DEVICE_GET_INFO: u16 = 4;
    /// What a region is.
    pub const DEVICE_GET_REGION_INFO: u16 = 5;
    /// How many interrupts there are of a kind.
    pub const DEVICE_GET_IRQ_INFO: u16 = 7;
    /// Where interrupts go, and what holds them back.
    pub const DEVICE_SET_IRQS: u16 = 8;
    /// The guest reads a register.
    pub const REGION_READ: u16 = 9;
    /// The guest writes a register.
    pub const REGION_WRITE: u16 = 10;
    /// From us: reads memory that is not mapped.
    pub const DMA_READ: u16 = 11;
    /// From us: writes memory that is not mapped.
    pub const DMA_WRITE: u16 = 12;
    /// The device begins anew.
    pub const DEVICE_RESET: u16 = 13;
    /// Many small writes of registers.
    pub const REGION_WRITE_MULTI: u16 = 15;
}

/// Bits of [`Header::flags`]: 0 is a command, 1 is a reply.
pub const TYPE_MASK: u32 = 0xf;
/// See [`TYPE_MASK`].
pub const TYPE_COMMAND: u32 = 0;
/// See [`TYPE_MASK`].
pub const TYPE_REPLY: u32 = 1;
/// A command that is not to be answered.
pub const NO_REPLY: u32 = 1 << 4;
/// A reply to a command that failed.
pub const ERROR: u32 = 1 << 5;

/// The device may read there.
pub const DMA_READ_ALLOWED: u32 = 1;
/// The device may write there.
pub const DMA_WRITE_ALLOWED: u32 = 2;
/// All that is mapped; as in `linux/vfio.h`.
pub const DMA_UNMAP_ALL: u32 = 2;

/// `VFIO_USER_DEVICE_RESET` does something.
pub const DEVICE_RESET: u32 = 1;
/// It is a PCI device.
pub const DEVICE_PCI: u32 = 2;

/// The front-end may read a region.
pub const REGION_READ_ALLOWED: u32 = 1;
/// The front-end may write it.
pub const REGION_WRITE_ALLOWED: u32 = 2;

/// An interrupt is told by an eventfd.
pub const IRQ_EVENTFD: u32 = 1;
/// It can be masked and unmasked.
pub const IRQ_MASKABLE: u32 = 2;
/// It is masked when it was told, until it is unmasked.
pub const IRQ_AUTOMASKED: u32 = 4;

/// No data: the action is carried out.
pub const IRQ_DATA_NONE: u32 = 1;
/// A byte each says whether it is.
pub const IRQ_DATA_BOOL: u32 = 2;
/// A descriptor each is what will carry it out, or tell of it.
pub const IRQ_DATA_EVENTFD: u32 = 4;
/// Hold interrupts back.
pub const IRQ_ACTION_MASK: u32 = 8;
/// Let them through.
pub const IRQ_ACTION_UNMASK: u32 = 0x10;
/// Raise them.
pub const IRQ_ACTION_TRIGGER: u32 = 0x20;

/// Interrupt lines, as [`IrqInfo::index`] counts kinds.
pub const IRQ_INTX: u32 = 0;
/// Errors of PCI Express.
pub const IRQ_ERROR: u32 = 3;
/// Kinds of interrupts of a PCI device: INTx, MSI, MSI-X, error, request.
pub const NUM_IRQS: u32 = 5;
/// Regions of a PCI device: six BARs, ROM, configuration space, VGA.
pub const NUM_REGIONS: u32 = 9;
/// The region that is the configuration space.
pub const CONFIG_REGION: u32 = 7;
