//! The chip's registers (manual, chapter 4): their offsets and bits, and the register file that stores their bytes.

/// Bytes of the register file; the memory window repeats it.
pub const COUNT: usize = 256;

pub const SCNTL0: u8 = 0x00;
pub const SCNTL1: u8 = 0x01;
pub const SCNTL2: u8 = 0x02;
pub const SCNTL3: u8 = 0x03;
pub const SCID: u8 = 0x04;
pub const SXFER: u8 = 0x05;
pub const SDID: u8 = 0x06;
pub const GPREG: u8 = 0x07;
pub const SFBR: u8 = 0x08;
pub const SOCL: u8 = 0x09;
pub const SSID: u8 = 0x0a;
pub const SBCL: u8 = 0x0b;
pub const DSTAT: u8 = 0x0c;
pub const SSTAT0: u8 = 0x0d;
pub const SSTAT1: u8 = 0x0e;
pub const SSTAT2: u8 = 0x0f;
pub const DSA: u8 = 0x10;
pub const ISTAT0: u8 = 0x14;
pub const ISTAT1: u8 = 0x15;
pub const CTEST0: u8 = 0x18;
pub const CTEST1: u8 = 0x19;
pub const CTEST2: u8 = 0x1a;
pub const CTEST3: u8 = 0x1b;
pub const TEMP: u8 = 0x1c;
pub const DFIFO: u8 = 0x20;
pub const CTEST5: u8 = 0x22;
pub const CTEST6: u8 = 0x23;
pub const DBC: u8 = 0x24;
pub const DNAD: u8 = 0x28;
pub const DSP: u8 = 0x2c;
pub const DSPS: u8 = 0x30;
pub const SCRATCHA: u8 = 0x34;
pub const DMODE: u8 = 0x38;
pub const DIEN: u8 = 0x39;
pub const DCNTL: u8 = 0x3b;
pub const SIEN0: u8 = 0x40;
pub const SIEN1: u8 = 0x41;
pub const SIST0: u8 = 0x42;
pub const SIST1: u8 = 0x43;
pub const MACNTL: u8 = 0x46;
pub const GPCNTL: u8 = 0x47;
pub const STIME1: u8 = 0x49;
pub const RESPID0: u8 = 0x4a;
pub const STEST0: u8 = 0x4c;
pub const STEST3: u8 = 0x4f;
pub const SIDL: u8 = 0x50;
pub const STEST4: u8 = 0x52;
pub const CCNTL0: u8 = 0x56;
pub const CCNTL1: u8 = 0x57;
pub const SBDL: u8 = 0x58;
pub const SCRATCHB: u8 = 0x5c;
pub const SCRATCHC: u8 = 0x60;
pub const MMRS: u8 = 0xa0;
pub const MMWS: u8 = 0xa4;
pub const SFS: u8 = 0xa8;
pub const DRS: u8 = 0xac;
pub const SBMS: u8 = 0xb0;
pub const DBMS: u8 = 0xb4;
pub const PMJAD1: u8 = 0xc0;
pub const PMJAD2: u8 = 0xc4;
pub const RBC: u8 = 0xc8;
pub const UA: u8 = 0xcc;
pub const ESA: u8 = 0xd0;
pub const IA: u8 = 0xd4;
pub const SBC: u8 = 0xd8;
pub const CSBC: u8 = 0xdc;
/// What the DMA FIFO holds: nothing, ever.
pub const DFBC: u8 = 0xf0;

pub mod scntl0 {
    pub const TRG: u8 = 0x01;
    pub const START: u8 = 0x20;
}
pub mod scntl1 {
    pub const SST: u8 = 0x01;
    pub const IARB: u8 = 0x02;
    pub const RST: u8 = 0x08;
    pub const CON: u8 = 0x10;
}
pub mod scntl2 {
    pub const WSR: u8 = 0x01;
    pub const WSS: u8 = 0x08;
}
pub mod scid {
    pub const RRE: u8 = 0x40;
}
/// Bits of SBCL and SOCL, which are the lines of the SCSI bus.
pub mod lines {
    pub const REQ: u8 = 0x80;
    pub const ACK: u8 = 0x40;
    pub const BSY: u8 = 0x20;
    pub const ATN: u8 = 0x08;
}
pub mod dstat {
    pub const IID: u8 = 0x01;
    pub const SIR: u8 = 0x04;
    pub const SSI: u8 = 0x08;
    pub const ABRT: u8 = 0x10;
    pub const BF: u8 = 0x20;
    /// A state and not an interrupt: the DMA FIFO is empty.
    pub const DFE: u8 = 0x80;
}
pub mod istat0 {
    pub const DIP: u8 = 0x01;
    pub const SIP: u8 = 0x02;
    pub const INTF: u8 = 0x04;
    pub const CON: u8 = 0x08;
    pub const SEM: u8 = 0x10;
    pub const SIGP: u8 = 0x20;
    pub const SRST: u8 = 0x40;
    pub const ABRT: u8 = 0x80;
}
pub mod istat1 {
    pub const SYNC_IRQD: u8 = 0x01;
    pub const SRUN: u8 = 0x02;
}
pub mod ctest2 {
    pub const DACK: u8 = 0x01;
    pub const PCICIE: u8 = 0x08;
    pub const CM: u8 = 0x10;
    pub const CIO: u8 = 0x20;
    pub const SIGP: u8 = 0x40;
}
pub mod dmode {
    pub const MAN: u8 = 0x01;
    pub const DIOM: u8 = 0x10;
    pub const SIOM: u8 = 0x20;
}
pub mod dcntl {
    pub const COM: u8 = 0x01;
    pub const IRQD: u8 = 0x02;
    pub const STD: u8 = 0x04;
    pub const SSM: u8 = 0x10;
}
pub mod sist0 {
    pub const RST: u8 = 0x02;
    pub const UDC: u8 = 0x04;
    pub const RSL: u8 = 0x10;
    pub const SEL: u8 = 0x20;
    pub const CMP: u8 = 0x40;
    pub const MA: u8 = 0x80;
}
pub mod sist1 {
    pub const HTH: u8 = 0x01;
    pub const GEN: u8 = 0x02;
    pub const STO: u8 = 0x04;
}
pub mod ccntl0 {
    pub const ENNDJ: u8 = 0x20;
    pub const PMJCTL: u8 = 0x40;
    pub const ENPMJ: u8 = 0x80;
}
pub mod ccntl1 {
    pub const EN64DBMV: u8 = 0x01;
    pub const EN64TIBMV: u8 = 0x02;
    pub const TIMOD64: u8 = 0x04;
}

/// The bytes behind the registers. What reading and writing them does besides is in `register_access.rs`.
pub struct Registers {
    bytes: [u8; COUNT],
}

impl Registers {
    /// The registers as after a reset.
    pub fn new() -> Self {
        let mut registers = Registers { bytes: [0; COUNT] };
        registers.set(SCNTL0, 0xc0);
        registers.set(SCID, 7);
        registers.set(RESPID0, 0x80);
        registers.set(GPREG, 0x7f);
        registers.set(GPCNTL, 0x0f);
        registers.set(MACNTL, 0x0f);
        registers
    }

    /// The stored byte of a register, without side effects.
    pub fn get(&self, at: u8) -> u8 {
        self.bytes[usize::from(at)]
    }

    /// Stores the byte of a register, without side effects.
    pub fn set(&mut self, at: u8, value: u8) {
        self.bytes[usize::from(at)] = value;
    }

    /// Whether all of these bits are set.
    pub fn has_bits(&self, at: u8, bits: u8) -> bool {
        self.get(at) & bits == bits
    }

    /// The four bytes of a register that begins at a multiple of four, as all of that width do.
    pub fn get32(&self, at: u8) -> u32 {
        debug_assert!(at.is_multiple_of(4));
        let bytes = self.bytes[usize::from(at & 0xfc)..].first_chunk();
        u32::from_le_bytes(*bytes.expect("four bytes before the end"))
    }

    /// Stores the four bytes of such a register.
    pub fn set32(&mut self, at: u8, value: u32) {
        debug_assert!(at.is_multiple_of(4));
        let bytes = self.bytes[usize::from(at & 0xfc)..].first_chunk_mut();
        *bytes.expect("four bytes before the end") = value.to_le_bytes();
    }

    /// Stores the low three bytes of a value, for counters.
    pub fn set24(&mut self, at: u8, value: u32) {
        for (i, byte) in (0u8..3).zip(value.to_le_bytes()) {
            self.set(at.wrapping_add(i), byte);
        }
    }
}
