//! On what device a program runs.

use parkade::units::Bytes;

use parkade_sim::address::{Ascending, Descending, ObservedDriver, Reuse};
use parkade_sim::{SimDevice, SimOptions};

/// More memory than any device has: 4 TiB.
pub const PLENTY_BYTES: u64 = 1 << 42;

/// Where the device puts what cudaMalloc asks for. It matters where a policy breaks ties by address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Addresses {
    /// Where NVIDIA's driver was seen to put it ([`ObservedDriver`]), in a process with nobody else in it.
    #[default]
    Driver,
    /// Each range above the one before.
    Ascending,
    /// Each range below the one before.
    Descending,
    /// In the lowest hole that is long enough.
    LowestHole,
}

impl Addresses {
    /// All of them.
    pub const ALL: [Addresses; 4] = [Addresses::Driver, Addresses::Ascending, Addresses::Descending, Addresses::LowestHole];

    /// Its name: lower case, words joined by hyphens.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Addresses::Driver => "driver",
            Addresses::Ascending => "ascending",
            Addresses::Descending => "descending",
            Addresses::LowestHole => "lowest-hole",
        }
    }

    /// Where it puts segments, in some words.
    #[must_use]
    pub const fn says(self) -> &'static str {
        match self {
            Addresses::Driver => "where NVIDIA's driver was seen to put them",
            Addresses::Ascending => "each above the one before",
            Addresses::Descending => "each below the one before",
            Addresses::LowestHole => "in the lowest hole that is long enough",
        }
    }

    /// The model of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Addresses> {
        Addresses::ALL.into_iter().find(|model| model.name() == name)
    }
}

/// How to run a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunOptions {
    /// The device's memory. Whole pages of 2 MiB can be used.
    pub capacity_bytes: u64,
    /// The most that the allocator takes from the device (PyTorch's memory fraction); as much as there is if not given.
    pub limit_bytes: Option<u64>,
    /// Where segments are placed.
    pub addresses: Addresses,
    /// One request of so many bytes is made on the default stream before the program begins, and given back at once: memory is taken
    /// early rather than on the fly. None if it is 0.
    pub preallocated_bytes: u64,
}

impl RunOptions {
    /// A device with so much memory that follows the measured driver.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> RunOptions {
        RunOptions { capacity_bytes, limit_bytes: None, addresses: Addresses::default(), preallocated_bytes: 0 }
    }

    /// More memory than is needed.
    #[must_use]
    pub fn plenty() -> RunOptions {
        RunOptions::new(PLENTY_BYTES)
    }

    /// The same with another memory.
    #[must_use]
    pub fn with_capacity(self, capacity_bytes: u64) -> RunOptions {
        RunOptions { capacity_bytes, ..self }
    }

    pub(super) fn device(&self) -> SimDevice {
        let options = SimOptions::new(Bytes(self.capacity_bytes));
        SimDevice::new(match self.addresses {
            Addresses::Driver => options.address_model(ObservedDriver::new()),
            Addresses::Ascending => options.address_model(Ascending::new()),
            Addresses::Descending => options.address_model(Descending::new()),
            Addresses::LowestHole => options.address_model(Reuse::new()),
        })
    }
}
