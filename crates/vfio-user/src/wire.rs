//! Wire format: headers and payloads, in the byte order of the host.
//!
//! Names are those of the "vfio-user Protocol Specification", version 0.0. A message is a [`Header`] and a payload.

/// Takes the first `N` bytes off `bytes`.
fn take_array<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

/// Defines a struct without padding of an asserted size, with functions to decode and encode it.
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

            /// Decodes the first bytes of `bytes`; `None` when there are too few.
            #[must_use]
            pub fn decode(mut bytes: &[u8]) -> Option<Self> {
                Some($name { $($field: <$type>::from_ne_bytes(take_array(&mut bytes)?),)* })
            }

            /// Appends the struct to `out`.
            pub fn encode(&self, out: &mut Vec<u8>) {
                $(out.extend_from_slice(&self.$field.to_ne_bytes());)*
            }
        }
    };
}

wire_struct! {
    /// The header of every message.
    Header: 16 {
        /// Chosen by the sender of a command, and repeated in its reply.
        id: u16,
        /// One of [`command`].
        command: u16,
        /// Bytes of the message, with this header.
        size: u32,
        /// [`TYPE_MASK`], [`NO_REPLY`], [`ERROR`].
        flags: u32,
        /// The errno of a reply with [`ERROR`].
        errno: u32,
    }
}

wire_struct! {
    /// `VFIO_USER_VERSION`, both ways; JSON and a NUL follow.
    Version: 4 {
        /// Must be the same on both sides.
        major: u16,
        /// Both sides use the lower one.
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
        /// Offset in the file of the descriptor.
        offset: u64,
        /// Address for the device.
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
        /// The address of the mapping.
        address: u64,
        /// The size of the mapping.
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
        /// Regions, including those of size 0.
        num_regions: u32,
        /// Kinds of interrupts, including those without any.
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
        /// The region.
        index: u32,
        /// 0: no capabilities follow.
        cap_offset: u32,
        /// Bytes; 0 if there is no such region.
        size: u64,
        /// For regions that can be mapped; ours cannot.
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
        /// The kind: [`IRQ_INTX`] and others.
        index: u32,
        /// Interrupts of that kind.
        count: u32,
    }
}

wire_struct! {
    /// `VFIO_USER_DEVICE_SET_IRQS`; a byte for each interrupt follows with [`IRQ_DATA_BOOL`].
    SetIrqs: 20 {
        /// The size of this struct and of the data that follow.
        argsz: u32,
        /// One of the `IRQ_DATA_…` and one of the `IRQ_ACTION_…`.
        flags: u32,
        /// The kind.
        index: u32,
        /// The first interrupt.
        start: u32,
        /// The number of interrupts.
        count: u32,
    }
}

wire_struct! {
    /// `VFIO_USER_REGION_READ` and `VFIO_USER_REGION_WRITE`, and their replies; data follow a write and the
    /// reply to a read.
    RegionAccess: 16 {
        /// Offset in the region.
        offset: u64,
        /// The region.
        region: u32,
        /// Bytes of data.
        count: u32,
    }
}

wire_struct! {
    /// `VFIO_USER_REGION_WRITE_MULTI`, and its reply; as many [`SmallWrite`] follow the command.
    WriteMulti: 8 {
        /// The number of writes; in the reply, of those that were done.
        count: u64,
    }
}

wire_struct! {
    /// One write of `VFIO_USER_REGION_WRITE_MULTI`.
    SmallWrite: 24 {
        /// Offset in the region.
        offset: u64,
        /// The region.
        region: u32,
        /// Bytes of `data` to write, from its start in memory: 8 at most.
        count: u32,
        /// The data.
        data: u64,
    }
}

wire_struct! {
    /// `VFIO_USER_DMA_READ` and `VFIO_USER_DMA_WRITE`, which we send; data follow a write and the reply to a read.
    DmaAccess: 16 {
        /// Address for the device.
        address: u64,
        /// Bytes of data.
        count: u64,
    }
}

/// Numbers of commands.
pub mod command {
    /// Version and capabilities: the first message.
    pub const VERSION: u16 = 1;
    /// Adds memory that the device may use.
    pub const DMA_MAP: u16 = 2;
    /// Removes memory.
    pub const DMA_UNMAP: u16 = 3;
    /// Queries the kind of the device.
    pub const DEVICE_GET_INFO: u16 = 4;
    /// Queries a region.
    pub const DEVICE_GET_REGION_INFO: u16 = 5;
    /// Queries a kind of interrupts.
    pub const DEVICE_GET_IRQ_INFO: u16 = 7;
    /// Connects, masks, unmasks or triggers interrupts.
    pub const DEVICE_SET_IRQS: u16 = 8;
    /// The guest reads a register.
    pub const REGION_READ: u16 = 9;
    /// The guest writes a register.
    pub const REGION_WRITE: u16 = 10;
    /// From us: reads memory that is not mapped.
    pub const DMA_READ: u16 = 11;
    /// From us: writes memory that is not mapped.
    pub const DMA_WRITE: u16 = 12;
    /// Resets the device.
    pub const DEVICE_RESET: u16 = 13;
    /// Several small writes of registers.
    pub const REGION_WRITE_MULTI: u16 = 15;
}

/// Bits of [`Header::flags`]: 0 is a command, 1 is a reply.
pub const TYPE_MASK: u32 = 0xf;
/// See [`TYPE_MASK`].
pub const TYPE_COMMAND: u32 = 0;
/// See [`TYPE_MASK`].
pub const TYPE_REPLY: u32 = 1;
/// A command without a reply.
pub const NO_REPLY: u32 = 1 << 4;
/// A reply to a command that failed.
pub const ERROR: u32 = 1 << 5;

/// The device may read the memory.
pub const DMA_READ_ALLOWED: u32 = 1;
/// The device may write the memory.
pub const DMA_WRITE_ALLOWED: u32 = 2;
/// Unmaps all memory, as in `linux/vfio.h`.
pub const DMA_UNMAP_ALL: u32 = 2;

/// The device supports `VFIO_USER_DEVICE_RESET`.
pub const DEVICE_RESET: u32 = 1;
/// It is a PCI device.
pub const DEVICE_PCI: u32 = 2;

/// The front-end may read a region.
pub const REGION_READ_ALLOWED: u32 = 1;
/// The front-end may write it.
pub const REGION_WRITE_ALLOWED: u32 = 2;

/// The interrupt is signalled by an eventfd.
pub const IRQ_EVENTFD: u32 = 1;
/// The interrupt can be masked and unmasked.
pub const IRQ_MASKABLE: u32 = 2;
/// The interrupt is masked when it is signalled, until it is unmasked.
pub const IRQ_AUTOMASKED: u32 = 4;

/// No data: the action applies to all interrupts of the command.
pub const IRQ_DATA_NONE: u32 = 1;
/// A byte for each interrupt: whether the action applies to it.
pub const IRQ_DATA_BOOL: u32 = 2;
/// An eventfd for each interrupt: it triggers the action, or is signalled by it.
pub const IRQ_DATA_EVENTFD: u32 = 4;
/// Mask interrupts.
pub const IRQ_ACTION_MASK: u32 = 8;
/// Unmask interrupts.
pub const IRQ_ACTION_UNMASK: u32 = 0x10;
/// Trigger interrupts.
pub const IRQ_ACTION_TRIGGER: u32 = 0x20;

/// Interrupt lines, a kind of [`IrqInfo::index`].
pub const IRQ_INTX: u32 = 0;
/// Errors of PCI Express.
pub const IRQ_ERROR: u32 = 3;
/// Kinds of interrupts of a PCI device: INTx, MSI, MSI-X, error, request.
pub const NUM_IRQS: u32 = 5;
/// Regions of a PCI device: six BARs, ROM, configuration space, VGA.
pub const NUM_REGIONS: u32 = 9;
/// The region that is the configuration space.
pub const CONFIG_REGION: u32 = 7;
