//! Runs a script line by line and prints the answers or digests of them.
//!
//! The state of a running script is a [`Session`]: the allocator, its simulated device, and everything that persists from one
//! operation to the next. The operations themselves are its methods.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use parkade::checkpoint::PoolCheckpoint;
use parkade::device::DeviceBackend;
use parkade::policy::{Policy, PyTorch, Wrapper};
use parkade::profile::{HandleTypes, Profile};
use parkade::settings::{Settings, SettingsError};
use parkade::trace::TraceRing;
use parkade::units::{Bytes, DeviceAddress, PoolId, StreamId};
use parkade::{AllocError, Allocation, Allocator, CheckpointError, FreeError, PoolError, PoolFilter};
use parkade_sim::address::{Ascending, Descending};
use parkade_sim::{CallName, CallSubject, LogLevel, SimDevice, SimOptions};

use super::text::{self, Line, Printed, Seen, Unreadable, Watcher, stat_values};

/// The object that an allocation's name refers to.
#[derive(Debug)]
enum Held {
    /// The null pointer of a request for zero bytes.
    Null,
    /// A block from the allocator.
    Block(Allocation),
    /// Memory directly from the device, allocated while caching was off.
    Direct(DeviceAddress),
}

impl Held {
    fn address(&self) -> Option<DeviceAddress> {
        match self {
            Held::Null => None,
            Held::Block(allocation) => Some(allocation.address()),
            Held::Direct(address) => Some(*address),
        }
    }
}

/// The names, shared with the callback that may free some of these allocations during a request.
#[derive(Debug, Default)]
struct Names {
    live: BTreeMap<String, Held>,
    raw: BTreeMap<String, Held>,
    /// The names of the allocations that the next callback frees.
    freed_on_miss: Vec<String>,
}

/// A handle to the shared names.
#[derive(Clone, Debug, Default)]
struct SharedNames(Arc<Mutex<Names>>);

impl SharedNames {
    /// Locks the names. Do not hold the lock during a request, because its callback locks them too.
    fn lock(&self) -> MutexGuard<'_, Names> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The kind of a failure whose reason is a [`parkade::policy::PolicyFault`].
const POLICY: &str = "policy";

/// The reason why an operation failed, as the harness prints it: the C++ exception that it would have caught, and the
/// message.
struct Failure {
    /// `c10` for `c10::Error`, `oom` for `c10::OutOfMemoryError`, `std` for any other `std::exception`; [`POLICY`] exists only
    /// here.
    kind: &'static str,
    message: String,
}

impl Failure {
    fn c10(message: impl ToString) -> Failure {
        Failure { kind: "c10", message: message.to_string() }
    }

    fn pool(profile: &Profile) -> impl Fn(PoolError) -> Failure {
        |error| Failure::c10(error.message(profile))
    }

    fn alloc(profile: &Profile) -> impl Fn(AllocError) -> Failure {
        |error| {
            let kind = match error {
                AllocError::OutOfMemory(_) | AllocError::Rejected { .. } | AllocError::TooLarge { .. } => "oom",
                AllocError::Policy(_) => POLICY,
                _ => "c10",
            };
            Failure { kind, message: error.message(profile) }
        }
    }

    fn std(message: impl ToString) -> Failure {
        Failure { kind: "std", message: message.to_string() }
    }
}

impl From<Unreadable> for Failure {
    fn from(what: Unreadable) -> Failure {
        Failure::std(what)
    }
}

impl From<FreeError> for Failure {
    fn from(error: FreeError) -> Failure {
        Failure::c10(error)
    }
}

impl From<SettingsError> for Failure {
    fn from(error: SettingsError) -> Failure {
        if error.is_std_exception() { Failure::std(error) } else { Failure::c10(error) }
    }
}

/// The places where the simulated device puts new segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Addresses {
    /// Each segment is placed above the previous one.
    #[default]
    Up,
    /// Each segment is placed below the previous one.
    Down,
}

/// The options of a script run.
#[derive(Clone, PartialEq, Debug)]
pub struct OpsOptions {
    /// The settings string, as in `PYTORCH_CUDA_ALLOC_CONF`.
    pub settings: String,
    /// The device's memory.
    pub capacity_bytes: u64,
    /// The places where the device puts new segments.
    pub addresses: Addresses,
    /// The PyTorch release whose rules apply.
    pub profile: &'static Profile,
}

/// The rules that decide.
enum Rules {
    /// PyTorch's rules, whose settings a script may change.
    PyTorch(Box<PyTorch>),
    /// The rules of a different policy.
    Other(Box<dyn Policy + Send>),
}

impl Rules {
    /// Returns the settings that a snapshot states; those of other rules are empty.
    fn settings(&self) -> Settings {
        match self {
            Rules::PyTorch(pytorch) => pytorch.settings.clone(),
            Rules::Other(_) => Settings::default(),
        }
    }
}

impl Wrapper for Rules {
    type Inner = dyn Policy + Send;

    fn inner(&self) -> &Self::Inner {
        match self {
            Rules::PyTorch(pytorch) => &**pytorch,
            Rules::Other(policy) => &**policy,
        }
    }

    fn inner_mut(&mut self) -> &mut Self::Inner {
        match self {
            Rules::PyTorch(pytorch) => &mut **pytorch,
            Rules::Other(policy) => &mut **policy,
        }
    }
}

/// The core on the simulated device, as scripts use it.
type Core = Allocator<SimDevice, Rules, Watcher>;

/// The fields that an operation adds to its answer, or the exception that the harness would have caught.
type Answer = Result<String, Failure>;

/// The maximum number of pages in expandable segments on the fake device. Each driver call for a page appears in an answer,
/// so this bounds the cost of one line of a script. It amounts to half a tebibyte in 2 MiB pages.
const MOST_HANDLES: u64 = 1 << 18;

/// The state of a running script.
struct Session {
    allocator: Core,
    profile: &'static Profile,
    names: SharedNames,
    /// The last address of each name.
    addresses: BTreeMap<String, u64>,
    /// Saved pools, by the names that the script gave them.
    checkpoints: BTreeMap<String, PoolCheckpoint>,
    printed: Printed,
    /// Driver calls with a null pointer, which the real allocator makes while caching is off.
    calls_with_null: Vec<&'static str>,
    /// Whether requests go through the allocator rather than directly to the device.
    caching: bool,
    /// The stream of the last request, which is the current stream.
    current_stream: StreamId,
}

impl Session {
    /// Creates a session on a fresh device, with PyTorch's rules.
    pub(super) fn new(options: &OpsOptions) -> Result<Session, SettingsError> {
        let profile = options.profile;
        let settings = Settings::from_environment_as(&profile.dialect, &options.settings)?;
        let fraction = settings.per_process_memory_fraction;
        let mut session = Session::under(options, Rules::PyTorch(Box::new(PyTorch::of(profile, settings))));
        if fraction < 1.0 {
            // Cannot fail: the parser refuses anything outside 0 to 1.
            let _ = session.allocator.set_memory_fraction(fraction);
        }
        Ok(session)
    }

    /// Creates a session on a fresh device.
    fn under(options: &OpsOptions, rules: Rules) -> Session {
        let profile = options.profile;
        let device = SimOptions::fake_driver(Bytes(options.capacity_bytes))
            .probes_fabric(profile.handle_types == HandleTypes::Tried)
            .most_handles(MOST_HANDLES);
        let device = SimDevice::new(match options.addresses {
            Addresses::Up => device.address_model(Ascending::new()),
            Addresses::Down => device.address_model(Descending::new()),
        });
        let mut allocator = Allocator::new(device, rules, Watcher::default());
        let names = SharedNames::default();
        allocator.register_free_memory_callback(Box::new(free_on_miss(names.clone())));
        allocator.device_mut().set_log_level(LogLevel::Memory);
        Session {
            allocator,
            profile,
            names,
            addresses: BTreeMap::new(),
            checkpoints: BTreeMap::new(),
            printed: Printed::default(),
            calls_with_null: Vec::new(),
            caching: true,
            current_stream: StreamId::DEFAULT,
        }
    }
}

/// Returns the handle of the harness's stream `number`.
fn handle(number: i64) -> StreamId {
    StreamId((number as u64).wrapping_mul(0x1000))
}

/// Returns the pool named by the line's second and third words, or the default pool if they are missing.
fn pool_of(line: &Line<'_>) -> Result<PoolId, Unreadable> {
    if line.len() > 2 { Ok(PoolId(line.number(1)?, line.number(2)?)) } else { Ok(PoolId::DEFAULT) }
}

/// Frees the object that an allocation's name refers to.
fn release(allocator: &mut Core, held: Held) -> Result<(), Failure> {
    match held {
        Held::Null => Ok(()),
        Held::Block(allocation) => Ok(allocator.free(allocation)?),
        Held::Direct(address) => allocator.device_mut().free(address).map_err(Failure::c10),
    }
}

/// Returns a callback that, when no free block serves a request, frees the names passed to `oom_free`, once.
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
                // If the device refused a block's events, the block remains pending, which a later line shows.
                let _ = release(allocator, held);
            }
        }
        allocator.observer_mut().seen.push(Seen::Callback(freed));
        freed
    }
}

/// Runs the line's operation, which is named by its first word.
fn operate(session: &mut Session, line: &Line<'_>) -> Answer {
    match line.name() {
        "alloc" => session.alloc(line),
        "alloc_at" => session.alloc_at(line),
        "free" => session.free(line),
        "rawalloc" => session.raw_alloc(line),
        "rawfree" => session.raw_free(line),
        "record_stream" => session.record_stream(line),
        "empty_cache" => session.empty_cache(line),
        "free_all" => session.free_all(),
        "base" => session.base(line),
        "oom_free" => {
            session.names.lock().freed_on_miss = line.rest(1).iter().map(ToString::to_string).collect();
            Ok(String::new())
        }
        "snapshot" | "trace" | "history" | "stats" | "cache_info" | "meminfo" | "expandable_sizes" | "driver" | "name" => {
            session.query(line)
        }
        "set_fraction" | "limit" | "get_fraction" | "reset_peak" | "reset_accumulated" | "conf" | "enable" => session.set(line),
        "process_events" => session.process_events(),
        name if name.starts_with("pool_") => session.pool(line),
        "ckpt_save" => session.save_checkpoint(line),
        "ckpt_load" => session.load_checkpoint(line),
        _ => session.control_device(line),
    }
}

/// Operations on allocations: request, free, use on another stream, release cached memory.
impl Session {
    fn alloc(&mut self, line: &Line<'_>) -> Answer {
        let stream = handle(line.stream_or_default(3)?);
        let name = self.new_name(line, stream)?;
        let bytes = Bytes(line.number(2)?);
        let held = self.take(bytes, |core| core.allocate(bytes, stream))?;
        if !self.caching && bytes == Bytes::ZERO {
            self.calls_with_null.push("[\"cudaMalloc\",0,0,\"null\"]");
        }
        let answer = self.pointer(&held);
        self.addresses.insert(name.to_owned(), held.address().map_or(0, DeviceAddress::get));
        self.names.lock().live.insert(name.to_owned(), held);
        Ok(answer)
    }

    /// Requests memory at an address: a number of bytes past the last address of a name.
    fn alloc_at(&mut self, line: &Line<'_>) -> Answer {
        let stream = handle(line.stream(3)?);
        let name = self.new_name(line, stream)?;
        let base = *self.addresses.get(line.word(4)?).ok_or_else(|| Failure::std("no such id"))?;
        let bytes = Bytes(line.number(2)?);
        let address = DeviceAddress(base.wrapping_add(line.number(5)?));
        let shown = if address.0 == 0 { "0".to_owned() } else { format!("{:#x}", address.0) };
        if !self.caching {
            return Err(Failure::c10("Exact-address allocation is only supported by the native CUDA caching allocator"));
        }
        let held = if bytes == Bytes::ZERO {
            Held::Null
        } else if !address.0.is_multiple_of(512) {
            let text = "mallocWithAddress: addr must be aligned to kMinBlockSize (512 bytes), got";
            return Err(Failure::c10(format!("{text} {shown}")));
        } else {
            let allocated = self.allocator.allocate_at(bytes, stream, address).map_err(Failure::alloc(self.profile))?;
            let text = "Could not allocate CUDA storage at exact address";
            Held::Block(allocated.ok_or_else(|| Failure::c10(format!("{text} {shown}")))?)
        };
        let answer = self.pointer(&held);
        self.names.lock().live.insert(name.to_owned(), held);
        Ok(answer)
    }

    /// Returns the name of a request for a stream, which becomes the current stream.
    fn new_name<'a>(&mut self, line: &Line<'a>, stream: StreamId) -> Result<&'a str, Failure> {
        self.current_stream = stream;
        self.look_at_capture();
        let name = line.word(1)?;
        if self.names.lock().live.contains_key(name) { Err(Failure::std("id already live")) } else { Ok(name) }
    }

    /// Tells the allocator whether the current stream is being captured.
    fn look_at_capture(&mut self) {
        let is_captured = self.allocator.device().is_captured(self.current_stream);
        self.allocator.set_capturing(is_captured);
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
        let text = held.address().map_or("null".to_owned(), |address| text::pointer(self.allocator.device(), address.0));
        format!(",\"ptr\":{text}")
    }

    fn free(&mut self, line: &Line<'_>) -> Answer {
        let held = self.names.lock().live.remove(line.word(1)?);
        self.give_back(held)
    }

    /// Like PyTorch's `raw_delete`: how a pointer is freed depends on whether caching is on now, not on where the pointer
    /// came from. One defect is not copied: if caching is off when a block is freed, PyTorch passes the block to `cudaFree`.
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

    fn process_events(&mut self) -> Answer {
        self.allocator.process_events().map(|()| String::new()).map_err(Failure::c10)
    }

    fn empty_cache(&mut self, line: &Line<'_>) -> Answer {
        let released = match pool_of(line)? {
            PoolId::DEFAULT => self.allocator.release_cached(),
            pool => self.allocator.release_cached_pool(pool),
        };
        released.map(|()| String::new()).map_err(Failure::alloc(self.profile))
    }

    fn free_all(&mut self) -> Answer {
        // The names are ordered as strings, which is the map's order.
        let live = std::mem::take(&mut self.names.lock().live);
        // An error does not stop the loop; the first one is reported.
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
                Ok(format!(",\"ptr\":{},\"size\":{size}", text::pointer(self.allocator.device(), address.0)))
            }
            Some(held) => {
                Err(Failure::c10(format!("invalid device pointer: {}", held.address().map_or("0".to_owned(), |a| a.to_string()))))
            }
        }
    }
}

/// Operations on private pools and on their checkpoints.
impl Session {
    /// Runs `pool_create`, `pool_set`, `pool_begin`, `pool_end`, `pool_release` or `pool_use_count`.
    fn pool(&mut self, line: &Line<'_>) -> Answer {
        let pool = PoolId(line.number(1)?, line.number(2)?);
        let profile = self.profile;
        let core = &mut self.allocator;
        match line.name() {
            name @ ("pool_create" | "pool_set") => {
                if name == "pool_create" {
                    core.create_pool(pool).map_err(Failure::pool(profile))?;
                }
                for &option in line.rest(3) {
                    match option {
                        "use_on_oom" => core.set_pool_use_on_oom(pool, true),
                        "no_use_on_oom" => core.set_pool_use_on_oom(pool, false),
                        "no_split" => core.set_pool_no_split(pool),
                        _ => {}
                    }
                }
            }
            "pool_begin" => {
                let of_stream = line.len() > 4 && line.word(3)? == "stream";
                let filter = if of_stream { PoolFilter::Stream(handle(line.stream(4)?)) } else { PoolFilter::All };
                core.begin_pool(pool, filter).map_err(Failure::pool(profile))?;
            }
            "pool_end" => core.end_pool(pool).map_err(Failure::pool(profile))?,
            "pool_release" => core.release_pool(pool).map_err(Failure::pool(profile))?,
            "pool_use_count" => return Ok(format!(",\"n\":{}", core.pool_use_count(pool).map_err(Failure::pool(profile))?)),
            name => return Err(Failure::std(format!("unknown op {name}"))),
        }
        Ok(String::new())
    }

    /// Runs `ckpt_save KEY A B`: saves the live blocks of pool (A, B) as KEY. If that fails, KEY keeps its previous
    /// checkpoint.
    fn save_checkpoint(&mut self, line: &Line<'_>) -> Answer {
        let pool = PoolId(line.number(2)?, line.number(3)?);
        let checkpoint = self.allocator.checkpoint_pool(pool)?;
        self.checkpoints.insert(line.word(1)?.to_owned(), checkpoint);
        Ok(String::new())
    }

    /// Runs `ckpt_load KEY`: restores the pool. Freed blocks lose their names; restored ones are called `ck_KEY_POINTER`.
    fn load_checkpoint(&mut self, line: &Line<'_>) -> Answer {
        let key = line.word(1)?;
        let checkpoint = self.checkpoints.get(key).ok_or_else(|| Failure::std("map::at"))?;
        let restored = self.allocator.restore_pool(checkpoint)?;
        let names = self.names.clone();
        let mut freed = Vec::new();
        for address in restored.freed {
            let live = &mut names.lock().live;
            let name = live.iter().find(|(_, held)| held.address() == Some(address)).map(|(name, _)| name.clone());
            name.and_then(|name| live.remove(&name));
            freed.push(text::pointer(self.allocator.device(), address.0));
        }
        let mut allocated = Vec::new();
        for allocation in restored.allocations {
            let name = format!("ck_{key}_{}", self.allocator.device().name_address(allocation.address()));
            allocated.push(text::quoted(&name));
            let before = names.lock().live.insert(name, Held::Block(allocation));
            if let Some(before) = before {
                release(&mut self.allocator, before)?;
            }
        }
        Ok(format!(",\"freed\":[{}],\"allocd\":[{}]", freed.join(","), allocated.join(",")))
    }
}

impl From<CheckpointError> for Failure {
    fn from(error: CheckpointError) -> Failure {
        Failure::c10(error)
    }
}

/// Operations that set something: the allocator's settings and counters, and the state of the simulated device.
impl Session {
    /// Runs an operation on the allocator's settings and counters.
    fn set(&mut self, line: &Line<'_>) -> Answer {
        match line.name() {
            "set_fraction" => {
                let set = self.allocator.set_memory_fraction(line.float(1)?);
                set.map_err(|error| Failure::c10(error.message(self.profile)))?;
            }
            // The harness sets limits only as fractions.
            "limit" => {
                let is_none = line.word(1)? == "none";
                let bytes = if is_none { None } else { Some(Bytes(line.number(1)?)) };
                self.allocator.set_limit(bytes);
            }
            "get_fraction" => {
                if self.profile.asks_for_total && self.allocator.heap().limit().is_some() {
                    // This call is visible only in the log.
                    let _ = self.allocator.device_mut().memory_info();
                }
                return Ok(format!(",\"fraction\":{}", text::number(self.allocator.memory_fraction(), 17)));
            }
            "reset_peak" => self.allocator.reset_peak_stats(),
            "reset_accumulated" => self.allocator.reset_accumulated_stats(),
            "conf" => match self.allocator.policy_mut() {
                Rules::PyTorch(pytorch) => pytorch.settings.apply_as(&self.profile.dialect, line.tail())?,
                Rules::Other(policy) => {
                    let name = Policy::name(&**policy);
                    return Err(Failure::std(format!("conf changes PyTorch's settings, which the policy {name} does not have")));
                }
            },
            _ => self.caching = line.word(1)? == "1",
        }
        Ok(String::new())
    }

    /// Runs an operation on the simulated device rather than on the allocator.
    fn control_device(&mut self, line: &Line<'_>) -> Answer {
        let device = self.allocator.device_mut();
        match line.name() {
            "complete" if line.word(1)? == "all" => device.complete_all(),
            "complete" => device.complete(handle(line.stream(1)?)),
            "complete_one" => return Ok(format!(",\"n\":{}", device.complete_one(handle(line.stream(1)?)))),
            "sync" => device.synchronize(),
            "capacity" => device.set_capacity(Bytes(line.number(1)?)),
            "external" => device.set_external_bytes(Bytes(line.number(1)?)),
            "fail_next" => device.fail_next(line.number(1)?),
            "capture_begin" => {
                let number = device.begin_capture(handle(line.stream(1)?));
                self.look_at_capture();
                return Ok(format!(",\"capture\":{number}"));
            }
            "capture_end" => {
                device.end_capture(handle(line.stream(1)?));
                self.look_at_capture();
            }
            "capture_work" => {
                let number = line.stream(1)?;
                let node = device.capture_work(handle(number));
                let node = node.ok_or_else(|| Failure::std(format!("stream {number} is not captured")))?;
                return Ok(format!(",\"node\":{}", node.0));
            }
            "capture_wait" => {
                let (number, other) = (line.stream(1)?, line.stream(2)?);
                if !device.capture_wait(handle(number), handle(other)) {
                    return Err(Failure::std(format!("stream {number} cannot wait for stream {other} in its capture")));
                }
                self.look_at_capture();
            }
            "device" if line.number(1)? == 0 => self.printed = Printed::default(),
            name if KNOWN_ELSEWHERE.contains(&name) => return Err(unsupported(line)),
            name => return Err(Failure::std(format!("unknown op {name}"))),
        }
        Ok(String::new())
    }
}

/// Operations that the harness has but the simulated device does not.
const KNOWN_ELSEWHERE: [&str; 2] = ["device", "reserve_class"];

fn unsupported(line: &Line<'_>) -> Failure {
    Failure::std(format!("{} needs several devices or a newer PyTorch, but neither is simulated", line.name()))
}

/// Read-only operations: snapshots, stats, free memory, the driver's totals.
impl Session {
    fn query(&mut self, line: &Line<'_>) -> Answer {
        Ok(match line.name() {
            "snapshot" | "trace" => self.snapshot(line)?,
            "history" => {
                let capacity = if line.len() > 2 { usize::try_from(line.number(2)?).unwrap_or(usize::MAX) } else { 1_000_000 };
                self.allocator.observer_mut().history = (line.word(1)? == "on").then(|| TraceRing::new(capacity));
                String::new()
            }
            "stats" => format!(",\"stats\":{}", self.printed.all(self.allocator.stats(), self.profile)),
            "cache_info" => {
                let free = self.allocator.device_mut().memory_info().map_err(Failure::c10)?.free;
                format!(",\"largest\":{}", free.max(self.allocator.heap().largest_free()))
            }
            "meminfo" => {
                let info = self.allocator.device_mut().memory_info().map_err(Failure::c10)?;
                format!(",\"free\":{},\"total\":{}", info.free, info.total)
            }
            "expandable_sizes" => {
                // PyTorch leaves out the default stream.
                let segments =
                    self.allocator.expandable_segments().into_iter().filter(|(stream, _, _)| *stream != StreamId::DEFAULT);
                let sizes: Vec<String> = segments
                    .map(|(stream, page, mapped)| {
                        let class = if page == Bytes::mib(2) { "small" } else { "large" };
                        format!("[{},\"{class}\",{mapped}]", text::stream_number(stream))
                    })
                    .collect();
                format!(",\"sizes\":[{}]", sizes.join(","))
            }
            "driver" => {
                let device = self.allocator.device();
                format!(
                    ",\"used\":{},\"peak\":{},\"events\":{}",
                    device.used_bytes(),
                    device.peak_used_bytes(),
                    device.live_events()
                )
            }
            _ => ",\"name\":\"native\"".to_owned(),
        })
    }

    fn snapshot(&mut self, line: &Line<'_>) -> Answer {
        let with_traces = line.name() == "trace";
        let pool = if with_traces { PoolId::DEFAULT } else { pool_of(line)? };
        let history = self.allocator.observer().history.as_ref();
        let traces = with_traces.then(|| history.map_or(Vec::new(), |ring| ring.entries().copied().collect()));
        let segments = match pool {
            PoolId::DEFAULT => self.allocator.snapshot(),
            pool => self.allocator.snapshot_pool(pool),
        };
        let settings = self.allocator.policy().settings();
        Ok(format!(",\"snapshot\":{}", text::snapshot(self.allocator.device(), &segments, &settings, traces, self.profile)))
    }
}

/// Runs a script on one allocator.
pub struct OpsRunner {
    session: Session,
    /// The number of operations so far.
    count: u64,
    /// The first operation that failed because of an answer of the policy, and the reason.
    fault: Option<String>,
    /// Whether the allocator reads the device's properties before it creates the next memory handle.
    asks_for_handle_types: bool,
}

impl OpsRunner {
    /// Creates a runner on a fresh device.
    ///
    /// # Errors
    /// Returns PyTorch's error if it refuses the settings string.
    pub fn new(options: &OpsOptions) -> Result<OpsRunner, SettingsError> {
        let asks_for_handle_types = options.profile.handle_types == HandleTypes::Asked;
        Ok(OpsRunner { session: Session::new(options)?, count: 0, fault: None, asks_for_handle_types })
    }

    /// Creates a runner on a fresh device that a different policy decides on. The settings of the options have no effect; messages
    /// are those of the options' release.
    #[must_use]
    pub fn under(options: &OpsOptions, policy: Box<dyn Policy + Send>) -> OpsRunner {
        let asks_for_handle_types = options.profile.handle_types == HandleTypes::Asked;
        OpsRunner { session: Session::under(options, Rules::Other(policy)), count: 0, fault: None, asks_for_handle_types }
    }

    /// Returns the first operation that failed because the policy gave an answer that it must not give, and the reason; `None` if
    /// there was none. The answer of such an operation has `"err":"policy"`.
    #[must_use]
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Runs one line of the script. Returns its answer, a JSON object, or `None` for a line without an operation.
    ///
    /// If an operation fails or cannot be read, the answer has `"ok":0` and the exception that the harness would have
    /// caught.
    pub fn run_line(&mut self, line: &str) -> Option<String> {
        let out = self.answer(line)?;
        let Session { allocator, printed, profile, .. } = &mut self.session;
        Some(finished(out, &printed.changes(allocator.stats(), profile)))
    }

    /// Runs one line of the script, like [`OpsRunner::run_line`]. Returns a digest of its answer, as 16 hexadecimal digits.
    ///
    /// Two runs with equal digests produced the same answers and have the same statistics. A digest takes a third of the
    /// time.
    pub fn run_line_to_digest(&mut self, line: &str) -> Option<String> {
        let out = self.answer(line)?;
        let Session { allocator, printed, profile, .. } = &mut self.session;
        let out = finished(out, &printed.changes_of_pools(allocator.stats(), profile));
        Some(format!("{:016x}", digest(&out, &stat_values(allocator.stats(), profile))))
    }

    /// Runs one line. Returns its answer up to, but not including, the statistics.
    fn answer(&mut self, line: &str) -> Option<String> {
        let line = Line::read(line)?;
        self.session.allocator.observer_mut().seen.clear();
        let answer = operate(&mut self.session, &line);
        let mut out =
            format!("{{\"i\":{},\"op\":{},\"ok\":{}", self.count, text::quoted(&line.joined()), u8::from(answer.is_ok()));
        match answer {
            Ok(fields) => out.push_str(&fields),
            Err(Failure { kind, message }) => {
                out.push_str(&format!(",\"err\":\"{kind}\",\"msg\":{}", text::quoted(&message)));
                if kind == POLICY && self.fault.is_none() {
                    self.fault = Some(format!("{}: {message}", line.joined()));
                }
            }
        }
        self.append_record(&mut out);
        self.count += 1;
        Some(out)
    }

    /// Appends what the operation caused: trace entries and driver calls.
    fn append_record(&mut self, out: &mut String) {
        let Session { allocator, calls_with_null, profile, .. } = &mut self.session;
        let device = allocator.device();
        let seen = &allocator.observer().seen;
        if !seen.is_empty() {
            out.push_str(&format!(",\"ev\":[{}]", text::seen(device, seen, profile)));
        }
        let mut calls: Vec<String> = Vec::new();
        // The real allocator reads the device's properties when it is created, which is visible in the first line, and before
        // it reserves addresses.
        let (index, total) = (device.index(), device.total_memory());
        let properties = || format!("[\"cudaGetDeviceProperties\",0,{index},{total}]");
        // Earlier releases read the properties at different points and any number of times; their answers do not show it.
        let shows_properties = !profile.asks_for_total;
        if self.count == 0 && shows_properties {
            calls.push(properties());
        }
        for mut call in allocator.device_mut().take_log() {
            let asks = call.name == CallName::MemCreate && std::mem::take(&mut self.asks_for_handle_types);
            if shows_properties && (asks || call.name == CallName::AddressReserve) {
                calls.push(properties());
            }
            if let CallSubject::Creation { handle_type, .. } = &mut call.subject
                && profile.handle_types == HandleTypes::Unshared
            {
                *handle_type = 0;
            }
            calls.push(call.render());
        }
        calls.extend(calls_with_null.drain(..).map(str::to_owned));
        if !calls.is_empty() {
            out.push_str(&format!(",\"drv\":[{}]", calls.join(",")));
        }
    }
}

/// Completes the answer: appends the statistics that changed and the closing text.
fn finished(mut answer: String, changes: &str) -> String {
    if !changes.is_empty() {
        answer.push_str(&format!(",\"st\":{{{changes}}}"));
    }
    answer.push('}');
    answer
}

/// Returns the digest of an answer's text and numbers: a few digits that represent the answer so that two runs can be
/// compared without their text.
///
/// The harness has the same function, `put_digest` in `pytorch_harness/src/oracle.cpp`. Text is cheap to compare but
/// expensive to make. Most of it is statistics, which the digest includes as numbers; it includes all of them, not only those
/// that changed. Every step is invertible, so answers that differ in a single word have different digests.
fn digest(text: &str, numbers: &[i64]) -> u64 {
    let words = text.as_bytes().chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words.chain(numbers.iter().map(|&number| number as u64)).fold(text.len() as u64, |digest, word| {
        let mixed = (digest ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 32
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_a_pool_refuses_fails_with_the_message_of_the_release() {
        let error = AllocError::Pool(PoolError::Abandoned(PoolId(0, 1)));
        let of = |profile: &Profile| Failure::alloc(profile)(error.clone()).message;
        assert_eq!(of(&Profile::PYTORCH_2_15), PoolError::Abandoned(PoolId(0, 1)).message(&Profile::PYTORCH_2_15));
        assert_ne!(of(&Profile::PYTORCH_2_15), of(&Profile::PYTORCH_2_11));
    }

    #[test]
    fn each_byte_and_each_number_counts() {
        let text = "{\"i\":0,\"op\":\"free a\",\"ok\":1}";
        let known = digest(text, &[1, 2, 3]);
        for place in 0..text.len() {
            let mut other = text.to_owned();
            other.replace_range(place..=place, "#");
            assert_ne!(digest(&other, &[1, 2, 3]), known, "{other}");
        }
        for other in [&[1, 2, 4][..], &[1, 2], &[2, 1, 3], &[1, 2, 3, 0]] {
            assert_ne!(digest(text, other), known, "{other:?}");
        }
        assert_ne!(digest("a", &[]), digest("a\0", &[]));
    }
}
