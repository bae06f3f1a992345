//! What a script runs on: the allocator, its simulated device, and everything that lives from one operation to the next.
//!
//! The operations themselves are methods of [`Session`] in the modules beside this one.

use std::collections::BTreeMap;

use parkade::Allocator;
use parkade::checkpoint::PoolCheckpoint;
use parkade::device::DeviceBackend;
use parkade::policy::PyTorch;
use parkade::profile::{HandleTypes, Profile};
use parkade::settings::{Settings, SettingsError};
use parkade::units::{Bytes, PoolId, StreamId};
use parkade_sim::address::{Ascending, Descending};
use parkade_sim::{LogLevel, SimDevice, SimOptions};

use super::failure::Failure;
use super::line::{Line, Unreadable};
use super::printed;
use super::state::{Held, Seen, SharedNames, Watcher};

/// Where the simulated device places new segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Addresses {
    /// Each above the one before.
    #[default]
    Up,
    /// Each below the one before.
    Down,
}

/// What a script runs on.
#[derive(Clone, PartialEq, Debug)]
pub struct OpsOptions {
    /// The settings string, as in `PYTORCH_CUDA_ALLOC_CONF`.
    pub settings: String,
    /// The device's memory.
    pub capacity_bytes: u64,
    /// Where the device places new segments.
    pub addresses: Addresses,
    /// The PyTorch release whose rules decide.
    pub profile: &'static Profile,
}

/// The core on the simulated device, as scripts use it.
pub(super) type Core = Allocator<SimDevice, PyTorch, Watcher>;

/// The fields that an operation adds to its answer, or the exception that the harness would have caught.
pub(super) type Answer = Result<String, Failure>;

/// The most pages of expandable segments on the fake device: each call about one is an answer of its own, so they
/// bound what one line of a script can cost. They are half a tebibyte in pages of 2 MiB.
const MOST_HANDLES: u64 = 1 << 18;

/// The state of a running script.
pub(super) struct Session {
    pub(super) allocator: Core,
    pub(super) profile: &'static Profile,
    pub(super) names: SharedNames,
    /// Where each name was allocated last.
    pub(super) addresses: BTreeMap<String, u64>,
    /// Saved pools, by the script's names.
    pub(super) checkpoints: BTreeMap<String, PoolCheckpoint>,
    pub(super) printed: printed::Printed,
    /// Driver calls with a null pointer, which the real allocator makes while caching is off.
    pub(super) calls_with_null: Vec<&'static str>,
    /// Whether requests go through the allocator or straight to the device.
    pub(super) caching: bool,
    /// The stream of the last request: requests are for the current stream.
    pub(super) current_stream: StreamId,
}

impl Session {
    /// A session on a fresh device.
    pub(super) fn new(options: &OpsOptions) -> Result<Session, SettingsError> {
        let profile = options.profile;
        let settings = Settings::from_environment_as(&profile.dialect, &options.settings)?;
        let fraction = settings.per_process_memory_fraction;
        let device = SimOptions::fake_driver(Bytes(options.capacity_bytes))
            .probes_fabric(profile.handle_types == HandleTypes::Tried)
            .most_handles(MOST_HANDLES);
        let device = SimDevice::new(match options.addresses {
            Addresses::Up => device.address_model(Ascending::new()),
            Addresses::Down => device.address_model(Descending::new()),
        });
        let mut allocator = Allocator::new(device, PyTorch::of(profile, settings), Watcher::default());
        if fraction < 1.0 {
            // Cannot fail: the parser has refused anything outside 0 to 1.
            let _ = allocator.set_memory_fraction(fraction);
        }
        let names = SharedNames::default();
        allocator.register_free_memory_callback(Box::new(free_on_miss(names.clone())));
        allocator.device_mut().set_log_level(LogLevel::Memory);
        Ok(Session {
            allocator,
            profile,
            names,
            addresses: BTreeMap::new(),
            checkpoints: BTreeMap::new(),
            printed: printed::Printed::default(),
            calls_with_null: Vec::new(),
            caching: true,
            current_stream: StreamId::DEFAULT,
        })
    }
}

/// The handle of the harness's stream `number`.
pub(super) fn handle(number: i64) -> StreamId {
    StreamId((number as u64).wrapping_mul(0x1000))
}

/// The pool that the line's second and third words name; without them, the default pool.
pub(super) fn pool_of(line: &Line<'_>) -> Result<PoolId, Unreadable> {
    if line.len() > 2 { Ok(PoolId(line.number(1)?, line.number(2)?)) } else { Ok(PoolId::DEFAULT) }
}

/// Frees what an allocation's name stands for.
pub(super) fn release(allocator: &mut Core, held: Held) -> Result<(), Failure> {
    match held {
        Held::Null => Ok(()),
        Held::Block(allocation) => Ok(allocator.free(allocation)?),
        Held::Direct(address) => allocator.device_mut().free(address).map_err(Failure::c10),
    }
}

/// A callback that frees the names given to `oom_free` when no free block serves a request, once.
fn free_on_miss(names: SharedNames) -> impl FnMut(&mut Core) -> bool + Send {
    move |allocator| {
        let chosen = std::mem::take(&mut names.lock().freed_on_miss);
        if chosen.is_empty() {
            return false;
        }
        let mut freed = false;
        for name in &chosen {
            let held = names.lock().live.remove(name);
            if let Some(held) = held {
                freed = true;
                // If the device refused the events of a block, the block stays pending, which a later line shows.
                let _ = release(allocator, held);
            }
        }
        allocator.observer_mut().seen.push(Seen::Callback(freed));
        freed
    }
}
