//! An allocator in this interface. This file turns the C options into a policy, and wraps the core for several
//! threads, under PyTorch's policy or any other.
//!
//! In a forked child, the parent's allocators do not serve requests, because CUDA cannot be used there and a lock held
//! by another thread of the parent would never be released.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use parkade::Allocator;
use parkade::policy::{Policy, PyTorch};
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade::units::{Bytes, DeviceAddress, PoolId, StreamId};
use parkade_policies::{NEEDS_EXPANDABLE, Reach, Rescue, Unknown, needs_serial_work, settings_to_rescue};
use parkade_shared::{ByAddress, Error, Shared};

use crate::callbacks::{Told, note_free};
use crate::device::{Device, Lender};
use crate::failure::Failure;
use crate::own::{listed, policies};
use crate::types::parkade_status::{PARKADE_FORKED, PARKADE_INVALID_ARGUMENT, PARKADE_INVALID_SETTINGS};
use crate::types::{PARKADE_CAPTURING, PARKADE_CHOOSES_POOL, PARKADE_RAW, parkade_request};

/// An allocator on one device. Any thread may call it.
pub struct parkade_allocator {
    pub(crate) core: Core,
    pub(crate) profile: &'static Profile,
    /// Distinguishes this allocator from others.
    pub(crate) number: usize,
    /// The [`fork_generation`] in which the allocator was created.
    made_in: u32,
    /// The pools whose memory the program provides, with its functions.
    lenders: Mutex<BTreeMap<PoolId, Lender>>,
    has_lenders: AtomicBool,
}

/// The core. PyTorch's policy is known at compile time, because most programs use it.
#[allow(
    clippy::large_enum_variant,
    reason = "the allocator that has it is already in a box, and a second box would add an indirection to every request"
)]
pub(crate) enum Core {
    PyTorch(Shared<Device, Rescue, Told>),
    Other(Shared<Device, Box<dyn Policy + Send>, Told>),
}

/// Works on the core with either policy, under the lock. Returns a `Result` with a `Failure`.
macro_rules! with_core {
    ($allocator:expr, $core:ident => $work:expr) => {{
        let allocator: &$crate::serve::parkade_allocator = $allocator;
        let outcome = match &allocator.core {
            $crate::serve::Core::PyTorch(shared) => shared.with(|$core| $work),
            $crate::serve::Core::Other(shared) => shared.with(|$core| $work),
        };
        outcome.map_err(|error| $crate::failure::Failure::of_shared(&error, allocator.profile))
    }};
}
pub(crate) use with_core;

/// Like `with_core`, but the caller's current stream counts as captured if the flags of the call say so. Both steps
/// happen under the same lock, so a request that another thread makes at the same time does not count as captured. If
/// there are other flags, the macro returns from the calling function.
macro_rules! with_core_so {
    ($allocator:expr, $flags:expr, $core:ident => $work:expr) => {{
        let is_capturing = $crate::serve::is_capturing($flags)?;
        $crate::serve::with_core!($allocator, $core => {
            $core.allocator_mut().set_capturing(is_capturing);
            let outcome = $work;
            $core.allocator_mut().set_capturing(false);
            outcome
        })
    }};
}
pub(crate) use with_core_so;

/// A policy that can have PyTorch's settings.
pub(crate) trait Tunable: Policy {
    /// Returns a mutable reference to the settings; `None` if the policy has none.
    fn settings_mut(&mut self) -> Option<&mut Settings>;
}

impl Tunable for Rescue {
    fn settings_mut(&mut self) -> Option<&mut Settings> {
        Some(&mut self.pytorch_mut().settings)
    }
}

impl Tunable for Box<dyn Policy + Send> {
    fn settings_mut(&mut self) -> Option<&mut Settings> {
        None
    }
}

impl parkade_allocator {
    pub(crate) fn new(device: Device, chosen: Chosen) -> Result<parkade_allocator, Failure> {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let (profile, core) = match chosen {
            Chosen::PyTorch(policy) => {
                let (profile, fraction) = (policy.profile(), policy.pytorch().settings.per_process_memory_fraction);
                let mut allocator = Allocator::new(device, *policy, Told::default());
                if fraction < 1.0 {
                    let limited = allocator.set_memory_fraction(fraction);
                    limited.map_err(|error| Failure::new(PARKADE_INVALID_SETTINGS, error.message(profile)))?;
                }
                (profile, Core::PyTorch(Shared::new(allocator)))
            }
            Chosen::Other(policy) => {
                (policy.profile(), Core::Other(Shared::new(Allocator::new(device, policy, Told::default()))))
            }
        };
        Ok(parkade_allocator {
            core,
            profile,
            number: MADE.fetch_add(1, Ordering::Relaxed),
            made_in: fork_generation(),
            lenders: Mutex::default(),
            has_lenders: AtomicBool::new(false),
        })
    }

    /// Fails in a forked child.
    #[inline]
    pub(crate) fn check_process(&self) -> Result<(), Failure> {
        if self.made_in == fork_generation_now() { Ok(()) } else { Err(forked()) }
    }

    /// Serves a request. Returns `None` for a request of 0 bytes.
    #[inline]
    pub(crate) fn allocate(&self, request: &parkade_request) -> Result<Option<DeviceAddress>, Failure> {
        if request.bytes == 0 {
            return check_flags(request).map(|()| None);
        }
        let (bytes, stream) = (Bytes(request.bytes), StreamId(request.stream));
        let served = match (&self.core, request.flags) {
            (Core::PyTorch(shared), 0) => shared.allocate(bytes, stream),
            (Core::PyTorch(shared), PARKADE_RAW) => shared.raw_allocate(bytes, stream),
            (Core::Other(shared), 0) => shared.allocate(bytes, stream),
            (Core::Other(shared), PARKADE_RAW) => shared.raw_allocate(bytes, stream),
            _ => return self.allocate_so(request, None),
        };
        served.map(Some).map_err(|error| Failure::of_shared(&error, self.profile))
    }

    /// Serves a request at an address. Returns `None` for a request of 0 bytes, or if no free block has room there.
    pub(crate) fn allocate_at(&self, request: &parkade_request, at: DeviceAddress) -> Result<Option<DeviceAddress>, Failure> {
        if request.bytes == 0 { check_flags(request).map(|()| None) } else { self.allocate_so(request, Some(at)) }
    }

    /// Serves a request with flags other than those of `serve`, or at an address.
    #[cold]
    fn allocate_so(&self, request: &parkade_request, at: Option<DeviceAddress>) -> Result<Option<DeviceAddress>, Failure> {
        check_flags(request)?;
        let chosen = PoolId(request.pool.first, request.pool.second);
        let chosen = (request.flags & PARKADE_CHOOSES_POOL != 0).then_some(chosen);
        let lender = chosen.and_then(|pool| self.lender(pool));
        let served = with_core!(self, core => serve_so(core, request, at, chosen, lender))?;
        served.map_err(|error| Failure::of_request(&error, self.profile))
    }

    fn lender(&self, pool: PoolId) -> Option<Lender> {
        if !self.has_lenders.load(Ordering::Relaxed) {
            return None;
        }
        self.lenders.lock().unwrap_or_else(PoisonError::into_inner).get(&pool).copied()
    }

    /// Sets the source of the memory for a pool's segments.
    pub(crate) fn set_lender(&self, pool: PoolId, lender: Option<Lender>) {
        let mut lenders = self.lenders.lock().unwrap_or_else(PoisonError::into_inner);
        match lender {
            Some(lender) => lenders.insert(pool, lender),
            None => lenders.remove(&pool),
        };
        self.has_lenders.store(!lenders.is_empty(), Ordering::Relaxed);
    }

    /// Frees a block, or only records the free if it is made by a callback of this allocator.
    #[inline]
    pub(crate) fn free(&self, address: DeviceAddress) -> Result<(), Failure> {
        let freed = match &self.core {
            Core::PyTorch(shared) => shared.free(address),
            Core::Other(shared) => shared.free(address),
        };
        match freed {
            Ok(()) => Ok(()),
            Err(Error::Reentered) if note_free(self.number, address.get()) => Ok(()),
            Err(error) => Err(Failure::of_shared(&error, self.profile)),
        }
    }
}

impl parkade_allocator {
    /// Frees a block, with flags.
    pub(crate) fn free_so(&self, address: DeviceAddress, flags: u32) -> Result<(), Failure> {
        if !is_capturing(flags)? {
            return self.free(address);
        }
        let freed = with_core_so!(self, flags, core => core.free(address));
        // Inside a callback, the request that it serves has already stated that the stream is captured.
        let freed = match freed {
            Err(failure) if failure.is_reentered() && note_free(self.number, address.get()) => return Ok(()),
            freed => freed?,
        };
        freed.map_err(|error| Failure::of_shared(&error, self.profile))
    }
}

/// Refuses a request with flags that do not exist for requests.
fn check_flags(request: &parkade_request) -> Result<(), Failure> {
    let known =
        [(PARKADE_RAW, "PARKADE_RAW"), (PARKADE_CAPTURING, "PARKADE_CAPTURING"), (PARKADE_CHOOSES_POOL, "PARKADE_CHOOSES_POOL")];
    Failure::check_flags("parkade_request", request.flags, &known)
}

/// Returns whether a call's flags say that the caller's current stream is being captured. No other flag is allowed.
pub(crate) fn is_capturing(flags: u32) -> Result<bool, Failure> {
    Failure::check_flags("the call", flags, &[(PARKADE_CAPTURING, "PARKADE_CAPTURING")])?;
    Ok(flags != 0)
}

/// Returns the failure of a call in a forked child.
pub(crate) fn forked() -> Failure {
    Failure::new(
        PARKADE_FORKED,
        "this process is a forked child, but the allocator belongs to its parent: CUDA cannot be used in a forked child, so \
         spawn the process instead",
    )
}

fn serve_so<P: Tunable>(
    core: &mut ByAddress<Device, P, Told>,
    request: &parkade_request,
    at: Option<DeviceAddress>,
    chosen: Option<PoolId>,
    lender: Option<Lender>,
) -> Result<Option<DeviceAddress>, parkade::AllocError> {
    let allocator = core.allocator_mut();
    allocator.choose_pool(chosen);
    allocator.set_capturing(request.flags & PARKADE_CAPTURING != 0);
    allocator.device_mut().lender = lender;
    // A pool whose memory the program provides has no expandable segments (spec 5.5).
    let settings = allocator.policy_mut().settings_mut().filter(|_| lender.is_some());
    let was_expandable = settings.map(|settings| std::mem::replace(&mut settings.expandable_segments, false));
    let (bytes, stream) = (Bytes(request.bytes), StreamId(request.stream));
    let served = match at {
        Some(at) => core.allocate_at(bytes, stream, at),
        None if request.flags & PARKADE_RAW == 0 => core.allocate(bytes, stream).map(Some),
        None => core.raw_allocate(bytes, stream).map(Some),
    };
    let allocator = core.allocator_mut();
    if let (Some(was), Some(settings)) = (was_expandable, allocator.policy_mut().settings_mut()) {
        settings.expandable_segments = was;
    }
    allocator.device_mut().lender = None;
    allocator.set_capturing(false);
    allocator.choose_pool(None);
    served
}

/// The name of PyTorch's rules, which follow the caller's release and settings.
const PYTORCH: &str = "pytorch";

/// The policy of an allocator.
pub(crate) enum Chosen {
    /// PyTorch's rules, with or without a rescue.
    PyTorch(Box<Rescue>),
    /// Any other policy.
    Other(Box<dyn Policy + Send>),
}

/// The options that determine the policy.
#[derive(Clone, Copy, Default)]
pub(crate) struct Wanted<'a> {
    /// The policy's name; PyTorch's rules if there is none.
    pub(crate) policy: Option<&'a str>,
    pub(crate) settings: Option<&'a str>,
    pub(crate) release: Option<&'a str>,
    /// Whether work is serial: the program promises this
    /// ([`PARKADE_WORK_IS_SERIAL`](crate::types::PARKADE_WORK_IS_SERIAL)), and it is always true for a simulated
    /// device.
    pub(crate) is_serial: bool,
    pub(crate) rescue: Option<Reach>,
    /// The maximum number of rescued requests; 0 for no limit.
    pub(crate) most_rescues: u64,
}

/// Returns the policy that the program requests.
pub(crate) fn choose_policy(wanted: &Wanted<'_>) -> Result<Chosen, Failure> {
    let name = wanted.policy.unwrap_or(PYTORCH).trim();
    let settings = wanted.settings.unwrap_or_default();
    if !wanted.is_serial && (needs_serial_work(name) || wanted.rescue == Some(Reach::Breaks)) {
        let (what, instead) = match wanted.rescue {
            Some(_) => ("a rescue".to_owned(), "let it move only free memory (PARKADE_RESCUE_FREE)"),
            None => (format!("the policy {name}"), "use pytorch-rescue:reach=free"),
        };
        let text = format!(
            "{what} replaces the memory of live tensors, so data that another thread writes at the same time is lost: promise \
             that no thread does this (PARKADE_WORK_IS_SERIAL), or {instead}"
        );
        return Err(Failure::new(PARKADE_INVALID_ARGUMENT, text));
    }
    if name == PYTORCH {
        return pytorch(wanted, settings).map(|rules| Chosen::PyTorch(Box::new(rules)));
    }
    if wanted.rescue.is_some() {
        let text = format!("only the policy {PYTORCH} has a rescue; {name} does not");
        return Err(Failure::new(PARKADE_INVALID_ARGUMENT, text));
    }
    let policy = policies().named(name).map_err(|why| {
        let known: Vec<String> = listed().map(|policy| policy.name.into_owned()).collect();
        let why = if why == Unknown::Name { String::new() } else { format!("; {why}") };
        Failure::new(PARKADE_INVALID_ARGUMENT, format!("there is no policy {name:?}{why}; the policies are {}", known.join(", ")))
    })?;
    if !settings.trim().is_empty() {
        let text = format!("the policy {name} takes no settings; only {PYTORCH} takes those of PYTORCH_CUDA_ALLOC_CONF");
        return Err(Failure::new(PARKADE_INVALID_SETTINGS, text));
    }
    Ok(Chosen::Other(policy.make()))
}

/// Returns PyTorch's rules, with the rescue that the program requests.
fn pytorch(wanted: &Wanted<'_>, text: &str) -> Result<Rescue, Failure> {
    let profile = match wanted.release {
        None => &Profile::PYTORCH_2_11,
        Some(name) => Profile::of(name).map_err(|error| Failure::new(PARKADE_INVALID_ARGUMENT, error))?,
    };
    let refused = |error| Failure::new(PARKADE_INVALID_SETTINGS, error);
    let mut settings = Settings::from_environment_as(&profile.dialect, text).map_err(refused)?;
    if wanted.rescue.is_some() {
        let expandable = settings_to_rescue(profile, text).map_err(refused)?;
        settings = expandable.ok_or_else(|| Failure::new(PARKADE_INVALID_SETTINGS, NEEDS_EXPANDABLE))?;
    }
    let most = if wanted.most_rescues == 0 { u64::MAX } else { wanted.most_rescues };
    Ok(Rescue::new(PyTorch::of(profile, settings), wanted.rescue).at_most(most))
}

/// The number of forks between the first process and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Returns the number of forks between the first process and this one, counted from the first call.
pub(crate) fn fork_generation() -> u32 {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(register_fork);
    fork_generation_now()
}

/// Returns the value of [`fork_generation`], which must have been called before.
#[inline]
fn fork_generation_now() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

#[allow(unsafe_code)] // one call of the C library
fn register_fork() {
    // SAFETY: `in_child` changes only an atomic number, which is allowed in a child of a process with threads. If there
    // is no memory for the registration, forks go unnoticed, as they would without it.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_that_breaks_handles_needs_a_promise() {
        let breaking = |is_serial| Wanted { policy: Some("compaction"), is_serial, ..Wanted::default() };
        assert!(choose_policy(&breaking(true)).is_ok());
        let Err(refused) = choose_policy(&breaking(false)) else { panic!("it is not refused") };
        let text = refused.to_string();
        assert!(text.contains("PARKADE_WORK_IS_SERIAL"), "{text}");
        assert!(choose_policy(&Wanted { policy: Some("pytorch-rescue:reach=free"), ..Wanted::default() }).is_ok());
        // What is wrong with a name comes first: the promise would not help.
        let wrong = Wanted { policy: Some("pytorch-rescue:reach=free;handle=4MiB"), ..Wanted::default() };
        let Err(refused) = choose_policy(&wrong) else { panic!("it is not refused") };
        let text = refused.to_string();
        assert!(text.contains("handle") && !text.contains("PARKADE_WORK_IS_SERIAL"), "{text}");
    }

    #[test]
    fn spaces_around_a_name_do_not_make_another_policy() {
        let wanted = |policy| Wanted { policy: Some(policy), settings: Some("max_split_size_mb:32"), ..Wanted::default() };
        assert!(matches!(choose_policy(&wanted("pytorch")), Ok(Chosen::PyTorch(_))));
        assert!(matches!(choose_policy(&wanted(" pytorch ")), Ok(Chosen::PyTorch(_))));
        assert!(choose_policy(&wanted(" bfc ")).is_err(), "only pytorch takes settings");
    }
}
