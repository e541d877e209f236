//! Properties of a controller: its registers, which a host over Fabrics reads and writes by commands.

/// A controller property, by its offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Property {
    /// Controller Capabilities, 00h.
    Cap,
    /// Version, 08h.
    Vs,
    /// Controller Configuration, 14h.
    Cc,
    /// Controller Status, 1Ch.
    Csts,
}

impl Property {
    /// The property's offset.
    pub const fn offset(self) -> u32 {
        match self {
            Property::Cap => 0x00,
            Property::Vs => 0x08,
            Property::Cc => 0x14,
            Property::Csts => 0x1C,
        }
    }

    /// The property's size: 4 or 8 bytes.
    pub const fn len_bytes(self) -> u32 {
        match self {
            Property::Cap => 8,
            _ => 4,
        }
    }

    /// The property at `offset`, if it exists.
    pub fn at(offset: u32) -> Option<Property> {
        use Property::*;
        [Cap, Vs, Cc, Csts].into_iter().find(|property| property.offset() == offset)
    }
}

/// Controller Capabilities (CAP).
///
/// | bits  | field  | meaning                                        |
/// |-------|--------|------------------------------------------------|
/// | 15:0  | MQES   | entries of an I/O queue, 0-based               |
/// | 16    | CQR    | contiguous queues required                     |
/// | 31:24 | TO     | worst time until ready, in 500 ms              |
/// | 35:32 | DSTRD  | doorbells lie 2^(2 + DSTRD) bytes apart        |
/// | 44:37 | CSS    | command sets; bit 0 NVM                        |
/// | 51:48 | MPSMIN | smallest page: 2^(12 + MPSMIN)                 |
/// | 55:52 | MPSMAX | largest page                                   |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cap(pub u64);

impl Cap {
    /// The capabilities of a dlfs target: queues of `max_queue_entries`, 4 KiB pages, the NVM command set, and
    /// TO: `timeout_ms` in units of 500 ms, rounded down, but from 1 to 255.
    pub fn new(max_queue_entries: u16, timeout_ms: u32) -> Cap {
        let to = (timeout_ms / 500).clamp(1, 255);
        Cap(u64::from(max_queue_entries.saturating_sub(1))
            | 1 << 16
            | u64::from(to) << 24
            | 1 << 37)
    }

    /// Maximum entries of an I/O queue, from 1 to 65,536.
    pub fn max_queue_entries(self) -> u32 {
        (self.0 & 0xFFFF) as u32 + 1
    }

    /// Maximum time from CC.EN to CSTS.RDY.
    pub fn timeout_ms(self) -> u32 {
        (self.0 >> 24 & 0xFF) as u32 * 500
    }

    /// Distance of doorbells in bytes; only with queues in memory.
    pub fn doorbell_stride_bytes(self) -> u32 {
        4 << (self.0 >> 32 & 0xF)
    }

    /// Returns whether the controller has the NVM command set.
    pub fn has_nvm_command_set(self) -> bool {
        self.0 >> 37 & 1 != 0
    }

    /// MPSMIN: the smallest memory page is 2^(12 + MPSMIN) bytes, which is the unit of MDTS.
    pub fn mpsmin(self) -> u8 {
        (self.0 >> 48 & 0xF) as u8
    }
}

/// Version (VS) 1.4, which a dlfs target implements: major in 31:16, minor in 15:8, tertiary in 7:0.
pub const VERSION_1_4: u32 = 0x0001_0400;

/// Controller Configuration (CC).
///
/// | bits  | field  | meaning                                              |
/// |-------|--------|------------------------------------------------------|
/// | 0     | EN     | enable                                               |
/// | 6:4   | CSS    | command set: 0 NVM, 6 all, 7 admin only              |
/// | 10:7  | MPS    | page size                                            |
/// | 13:11 | AMS    | arbitration                                          |
/// | 15:14 | SHN    | shutdown: 0 none, 1 normal, 2 abrupt                 |
/// | 19:16 | IOSQES | submission entry: 2^n bytes, 6                       |
/// | 23:20 | IOCQES | completion entry: 2^n bytes, 4                       |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cc(pub u32);

impl Cc {
    /// Enables a controller: EN, entries of 64 and 16 bytes.
    pub const ENABLE: Cc = Cc(0x0046_0001);
    /// Requests a normal shutdown of an enabled controller.
    pub const SHUTDOWN: Cc = Cc(0x0046_4001);

    /// EN.
    pub fn is_enabled(self) -> bool {
        self.0 & 1 != 0
    }

    /// Returns whether a shutdown is requested (SHN is not 00b).
    pub fn wants_shutdown(self) -> bool {
        self.0 >> 14 & 3 != 0
    }
}

/// Controller Status (CSTS).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Csts(pub u32);

impl Csts {
    /// RDY: the controller is ready.
    pub const READY: u32 = 1;
    /// CFS: fatal status.
    pub const FATAL: u32 = 1 << 1;
    /// SHST 10b: shutdown complete.
    pub const SHUTDOWN_COMPLETE: u32 = 2 << 2;

    /// Returns whether the controller is ready.
    pub fn is_ready(self) -> bool {
        self.0 & Csts::READY != 0
    }

    /// Returns whether the controller has failed and needs a reset.
    pub fn is_fatal(self) -> bool {
        self.0 & Csts::FATAL != 0
    }

    /// Returns whether the shutdown is complete.
    pub fn is_shut_down(self) -> bool {
        self.0 & (3 << 2) == Csts::SHUTDOWN_COMPLETE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_read_back_in_natural_units() {
        let cap = Cap::new(128, 5_000);
        assert_eq!((cap.max_queue_entries(), cap.timeout_ms(), cap.mpsmin()), (128, 5_000, 0));
    }

    #[test]
    fn the_enable_and_shutdown_values_have_the_customary_bits() {
        assert!(Cc::ENABLE.is_enabled() && !Cc::ENABLE.wants_shutdown());
        assert!(Cc::SHUTDOWN.is_enabled() && Cc::SHUTDOWN.wants_shutdown());
        assert!(Csts(Csts::SHUTDOWN_COMPLETE).is_shut_down());
        assert!(!Csts(Csts::READY | Csts::FATAL).is_shut_down());
    }
}
