//! The device on which a workload runs.

use parkade::units::Bytes;
use parkade_sim::address::{Ascending, Descending, ObservedDriver, Reuse};
use parkade_sim::{SimDevice, SimOptions};

/// More memory than any workload needs: 4 TiB.
pub const PLENTY_BYTES: u64 = 1 << 42;

/// Where the device places `cudaMalloc`'s memory, which matters if a policy breaks ties by address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Addresses {
    /// Where NVIDIA's driver was seen to place it ([`ObservedDriver`]), in a process of its own.
    #[default]
    Driver,
    /// Each range above the previous one.
    Ascending,
    /// Each range below the previous one.
    Descending,
    /// In the lowest hole that is large enough.
    LowestHole,
}

impl Addresses {
    /// All address models.
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

    /// Where it places segments, in a few words.
    #[must_use]
    pub const fn says(self) -> &'static str {
        match self {
            Addresses::Driver => "where NVIDIA's driver was seen to place them",
            Addresses::Ascending => "each above the previous one",
            Addresses::Descending => "each below the previous one",
            Addresses::LowestHole => "in the lowest hole that is large enough",
        }
    }

    /// The model of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Addresses> {
        Addresses::ALL.into_iter().find(|model| model.name() == name)
    }
}

/// How to run a workload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunOptions {
    /// The device's memory. Only whole pages of 2 MiB can be used, and no more than [`PLENTY_BYTES`].
    pub capacity_bytes: u64,
    /// The most that the allocator may take from the device (PyTorch's memory fraction); `None` for no limit.
    pub limit_bytes: Option<u64>,
    /// Where segments are placed.
    pub addresses: Addresses,
    /// If not 0, the size of a request on the default stream that is made before the workload and freed at once,
    /// so that memory is taken early.
    pub preallocated_bytes: u64,
    /// Whether a private pool that is dropped gives its cached memory back at once, as a MemPool does. Otherwise only a policy whose
    /// pools are allocators of their own does so, and PyTorch's keep it until the cache is released, as those of graphs do.
    pub destroys_pools: bool,
}

impl RunOptions {
    /// A device with this much memory that places it like the measured driver.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> RunOptions {
        let addresses = Addresses::default();
        RunOptions { capacity_bytes, limit_bytes: None, addresses, preallocated_bytes: 0, destroys_pools: false }
    }

    /// More memory than is needed: [`PLENTY_BYTES`].
    #[must_use]
    pub fn plenty() -> RunOptions {
        RunOptions::new(PLENTY_BYTES)
    }

    /// The same with a different amount of memory.
    #[must_use]
    pub fn with_capacity(self, capacity_bytes: u64) -> RunOptions {
        RunOptions { capacity_bytes, ..self }
    }

    pub(super) fn device(&self) -> SimDevice {
        // Some policies ask for a part of what there is, or size what they keep by it, and no request is served above 1 EB.
        let options = SimOptions::new(Bytes(self.capacity_bytes.min(PLENTY_BYTES)));
        SimDevice::new(match self.addresses {
            Addresses::Driver => options.address_model(ObservedDriver::new()),
            Addresses::Ascending => options.address_model(Ascending::new()),
            Addresses::Descending => options.address_model(Descending::new()),
            Addresses::LowestHole => options.address_model(Reuse::new()),
        })
    }
}
