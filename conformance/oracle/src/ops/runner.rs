//! Runs a script, operation by operation.

use std::collections::BTreeMap;

use parkade::checkpoint::PoolCheckpoint;
use parkade::device::DeviceBackend;
use parkade::policy::PyTorch;
use parkade::profile::Profile;
use parkade::settings::{Settings, SettingsError};
use parkade::units::{Bytes, PoolId, StreamId};
use parkade::{AllocError, Allocation, Allocator};
use parkade_sim::address::{Ascending, Descending};
use parkade_sim::{CallName, LogLevel, SimDevice, SimOptions};

use super::failure::Failure;
use super::render;
use super::state::{Captures, Held, Seen, SharedNames, Watcher};
use super::steer::pool_of;
use super::words::Line;

/// Where new segments go.
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
    /// The allocator's settings string, as from the environment.
    pub settings: String,
    /// The device's memory.
    pub capacity_bytes: u64,
    /// Where new segments go.
    pub addresses: Addresses,
    /// The version of PyTorch whose decisions are made.
    pub profile: &'static Profile,
}

type Core = Allocator<SimDevice, PyTorch, Watcher>;

/// Runs scripts on one allocator.
pub struct OpsRunner {
    pub(super) allocator: Core,
    pub(super) profile: &'static Profile,
    pub(super) names: SharedNames,
    /// Saved pools, by the script's names.
    pub(super) checkpoints: BTreeMap<String, PoolCheckpoint>,
    pub(super) printed: render::Printed,
    /// Calls of the device that the real allocator makes without a pointer while caching is off.
    calls_with_null: Vec<&'static str>,
    /// Whether requests go through the allocator, or straight to the device.
    pub(super) caching: bool,
    /// Operations so far.
    count: u64,
    pub(super) captures: Captures,
    /// The next memory handle is made after a look at the device's properties.
    asks_for_handle_types: bool,
}

/// What an operation adds to its line.
pub(super) type Answer = Result<String, Failure>;

impl OpsRunner {
    /// A runner over a fresh device.
    ///
    /// # Errors
    /// If the settings string is wrong.
    pub fn new(options: &OpsOptions) -> Result<OpsRunner, SettingsError> {
        let profile = options.profile;
        let settings = Settings::from_environment_as(&profile.dialect, &options.settings)?;
        let fraction = settings.per_process_memory_fraction;
        let device = SimOptions::fake_driver(Bytes(options.capacity_bytes)).probes_fabric(profile.tries_handle_types);
        let device = SimDevice::new(match options.addresses {
            Addresses::Up => device.address_model(Ascending::new()),
            Addresses::Down => device.address_model(Descending::new()),
        });
        let mut allocator = Allocator::new(device, PyTorch::of(profile, settings), Watcher::default());
        // The parser has refused anything outside 0 to 1.
        let _ = allocator.set_memory_fraction(fraction);
        let names = SharedNames::default();
        allocator.register_free_memory_callback(Box::new(free_on_miss(names.clone())));
        allocator.device_mut().set_log_level(LogLevel::Memory);
        Ok(OpsRunner {
            allocator,
            profile,
            names,
            checkpoints: BTreeMap::new(),
            printed: render::Printed::default(),
            calls_with_null: Vec::new(),
            caching: true,
            count: 0,
            captures: Captures::default(),
            asks_for_handle_types: !profile.tries_handle_types,
        })
    }

    /// Runs one line of a script. Returns its answer, or `None` for a line without an operation.
    pub fn run_line(&mut self, line: &str) -> Option<String> {
        let line = Line::read(line)?;
        self.allocator.observer_mut().seen.clear();
        let answer = self.operate(&line);
        let mut out =
            format!("{{\"i\":{},\"op\":{},\"ok\":{}", self.count, render::quoted(&line.joined()), u8::from(answer.is_ok()));
        match answer {
            Ok(fields) => out.push_str(&fields),
            Err(Failure { kind, message }) => {
                out.push_str(&format!(",\"err\":\"{kind}\",\"msg\":{}", render::quoted(&message)));
            }
        }
        self.append_record(&mut out);
        out.push('}');
        self.count += 1;
        Some(out)
    }

    /// Adds what happened: trace entries, driver calls, changed statistics.
    fn append_record(&mut self, out: &mut String) {
        let device = self.allocator.device();
        let seen = &self.allocator.observer().seen;
        if !seen.is_empty() {
            out.push_str(&format!(",\"ev\":[{}]", render::seen(device, seen)));
        }
        // The real allocator reads the device's properties when it is made, which its first line shows, and before it reserves
        // addresses.
        let properties = format!("[\"cudaGetDeviceProperties\",0,{},{}]", device.index(), device.total_memory());
        let mut calls: Vec<String> = Vec::new();
        if self.count == 0 {
            calls.push(properties.clone());
        }
        for call in self.allocator.device_mut().take_log() {
            let asks = call.name == CallName::MemCreate && std::mem::take(&mut self.asks_for_handle_types);
            if asks || call.name == CallName::AddressReserve {
                calls.push(properties.clone());
            }
            calls.push(call.render());
        }
        calls.extend(self.calls_with_null.drain(..).map(str::to_owned));
        if !calls.is_empty() {
            out.push_str(&format!(",\"drv\":[{}]", calls.join(",")));
        }
        let changes = self.printed.changes(self.allocator.stats(), self.profile);
        if !changes.is_empty() {
            out.push_str(&format!(",\"st\":{{{changes}}}"));
        }
    }

    fn operate(&mut self, line: &Line<'_>) -> Answer {
        match line.name() {
            "alloc" => self.alloc(line),
            "free" => self.free(line),
            "rawalloc" => self.raw_alloc(line),
            "rawfree" => self.raw_free(line),
            "record_stream" => self.record_stream(line),
            "empty_cache" => self.empty_cache(line),
            "free_all" => self.free_all(),
            "base" => self.base(line),
            "oom_free" => {
                self.names.lock().freed_on_miss = line.rest(1).iter().map(ToString::to_string).collect();
                Ok(String::new())
            }
            "snapshot" | "trace" | "history" | "stats" | "cache_info" | "meminfo" | "expandable_sizes" | "driver" | "name" => {
                self.look(line)
            }
            "set_fraction" | "get_fraction" | "reset_peak" | "reset_accumulated" | "conf" | "enable" => self.tune(line),
            name if name.starts_with("pool_") => self.pool(line),
            "ckpt_save" => self.save_checkpoint(line),
            "ckpt_load" => self.load_checkpoint(line),
            _ => self.steer(line),
        }
    }

    fn alloc(&mut self, line: &Line<'_>) -> Answer {
        let number = line.stream_or_default(3)?;
        let stream = handle(number);
        self.captures.current_stream = number;
        self.allocator.set_capturing(self.captures.is_capturing());
        let name = line.word(1)?;
        if self.names.lock().live.contains_key(name) {
            return Err(Failure::std("id already live"));
        }
        let bytes = Bytes(line.number(2)?);
        let held = self.take(bytes, |core| core.allocate(bytes, stream))?;
        if !self.caching && bytes == Bytes::ZERO {
            self.calls_with_null.push("[\"cudaMalloc\",0,0,\"null\"]");
        }
        let answer = self.pointer(&held);
        self.names.lock().live.insert(name.to_owned(), held);
        Ok(answer)
    }

    fn raw_alloc(&mut self, line: &Line<'_>) -> Answer {
        let bytes = Bytes(line.number(2)?);
        let stream = handle(line.stream_or_default(3)?);
        let held = self.take(bytes, |core| core.raw_allocate(bytes, stream))?;
        let answer = self.pointer(&held);
        self.names.lock().raw.insert(line.word(1)?.to_owned(), held);
        Ok(answer)
    }

    fn take(&mut self, bytes: Bytes, allocate: impl Fn(&mut Core) -> Result<Allocation, AllocError>) -> Result<Held, Failure> {
        if bytes == Bytes::ZERO {
            return Ok(Held::Null);
        }
        if self.caching {
            return Ok(Held::Block(allocate(&mut self.allocator).map_err(Failure::alloc(self.profile))?));
        }
        match self.allocator.device_mut().malloc(bytes) {
            Ok(address) => Ok(Held::Direct(address)),
            Err(error) => Err(Failure::c10(error)),
        }
    }

    fn pointer(&self, held: &Held) -> String {
        let text = held.address().map_or("null".to_owned(), |address| render::pointer(self.allocator.device(), address.0));
        format!(",\"ptr\":{text}")
    }

    fn free(&mut self, line: &Line<'_>) -> Answer {
        let held = self.names.lock().live.remove(line.word(1)?);
        self.give_back(held)
    }

    /// As raw_delete: what a pointer is depends on whether requests go through the allocator now, not on where it came from. A block
    /// given back while they do not is a defect that is not copied: the real one hands its address to cudaFree.
    fn raw_free(&mut self, line: &Line<'_>) -> Answer {
        let name = line.word(1)?;
        let mut names = self.names.lock();
        let unknown = match names.raw.get(name) {
            Some(Held::Block(allocation)) if self.allocator.segment_of(allocation).is_none() => Some(allocation.address()),
            Some(Held::Direct(address)) if self.caching => Some(*address),
            _ => None,
        };
        if let Some(address) = unknown {
            return Err(Failure::c10(format!("invalid device pointer: {:#x}", address.0)));
        }
        let held = names.raw.remove(name);
        drop(names);
        if !self.caching && matches!(held, Some(Held::Null)) {
            self.calls_with_null.push("[\"cudaFree\",0,\"null\"]");
        }
        self.give_back(held)
    }

    fn give_back(&mut self, held: Option<Held>) -> Answer {
        match held {
            None => return Ok(",\"noop\":1".to_owned()),
            Some(held) => release(&mut self.allocator, held)?,
        }
        Ok(String::new())
    }

    fn record_stream(&mut self, line: &Line<'_>) -> Answer {
        let names = self.names.clone();
        let names = names.lock();
        let Some(held) = names.live.get(line.word(1)?) else { return Ok(",\"noop\":1".to_owned()) };
        let stream = handle(line.stream(2)?);
        if let Held::Block(allocation) = held {
            self.allocator.record_stream(allocation, stream);
        }
        Ok(String::new())
    }

    fn empty_cache(&mut self, line: &Line<'_>) -> Answer {
        match pool_of(line)? {
            PoolId::DEFAULT => self.allocator.release_cached()?,
            pool => self.allocator.release_cached_pool(pool)?,
        }
        Ok(String::new())
    }

    fn free_all(&mut self) -> Answer {
        // By name, as strings are ordered, which is the map's own order.
        let live = std::mem::take(&mut self.names.lock().live);
        // All of them, whatever goes wrong; the first error is told.
        let released = live.into_values().map(|held| release(&mut self.allocator, held)).collect::<Vec<_>>();
        released.into_iter().collect::<Result<(), Failure>>().map(|()| String::new())
    }

    fn base(&mut self, line: &Line<'_>) -> Answer {
        let names = self.names.lock();
        match names.live.get(line.word(1)?) {
            None => Ok(",\"noop\":1".to_owned()),
            Some(Held::Block(allocation)) => {
                let (address, size) =
                    self.allocator.segment_of(allocation).ok_or_else(|| Failure::c10("invalid device pointer"))?;
                Ok(format!(",\"ptr\":{},\"size\":{size}", render::pointer(self.allocator.device(), address.0)))
            }
            Some(held) => {
                Err(Failure::c10(format!("invalid device pointer: {}", held.address().map_or("0".to_owned(), |a| a.to_string()))))
            }
        }
    }
}

/// The handle of the harness's stream `k`.
pub(super) fn handle(number: i64) -> StreamId {
    StreamId((number as u64).wrapping_mul(0x1000))
}

pub(super) fn release(allocator: &mut Core, held: Held) -> Result<(), Failure> {
    match held {
        Held::Null => Ok(()),
        Held::Block(allocation) => Ok(allocator.free(allocation)?),
        Held::Direct(address) => allocator.device_mut().free(address).map_err(Failure::c10),
    }
}

/// Frees the names given to `oom_free` at the next miss, once.
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
                // A block that could not get its events stays pending, which a later line shows.
                let _ = release(allocator, held);
            }
        }
        allocator.observer_mut().seen.push(Seen::Callback(freed));
        freed
    }
}
