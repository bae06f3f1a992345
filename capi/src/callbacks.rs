//! The program's functions that an allocator calls. The observer reports each entry to C and keeps a history on
//! request. A callback that frees memory for a request may free blocks from within the call.

use std::cell::RefCell;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use parkade::texts::RescueTried;
use parkade::trace::{Observer, TraceAction, TraceEntry, TraceRing};
use parkade::units::Bytes;

use crate::types::{parkade_action, parkade_entry, parkade_observer, parkade_pool, parkade_rescue, parkade_rescue_observer};

/// A pointer from C. The library passes it back and never dereferences it.
#[derive(Clone, Copy)]
pub(crate) struct User(pub(crate) *mut c_void);

#[allow(unsafe_code)]
// SAFETY: the header states that callbacks run on any thread that calls the allocator, so the data that the pointer
// refers to must be usable from any of these threads.
unsafe impl Send for User {}

/// The observer of every allocator in this interface.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) observer: Option<(Call, User)>,
    pub(crate) history: Option<TraceRing>,
    pub(crate) rescues: Option<(RescueCall, User)>,
    /// The time at which the last request failed under PyTorch's rules, if rescues are observed.
    failed_at: Option<Instant>,
}

/// The function of a [`parkade_observer`].
pub(crate) type Call = unsafe extern "C" fn(*mut c_void, *const parkade_entry);

/// The function of a [`parkade_rescue_observer`].
pub(crate) type RescueCall = unsafe extern "C" fn(*mut c_void, *const parkade_rescue);

impl Told {
    pub(crate) fn set_rescues(&mut self, observer: parkade_rescue_observer, user: *mut c_void) {
        self.rescues = observer.map(|call| (call, User(user)));
    }

    pub(crate) fn set(&mut self, observer: parkade_observer, user: *mut c_void) {
        self.observer = observer.map(|call| (call, User(user)));
    }
}

impl Observer for Told {
    #[inline]
    fn observe(&mut self, entry: &TraceEntry) {
        if let Some((call, user)) = self.observer {
            tell(call, user, entry);
        }
        if let Some(history) = &mut self.history {
            history.observe(entry);
        }
        if entry.action == TraceAction::Oom && self.rescues.is_some() {
            self.failed_at = Some(Instant::now());
        }
    }

    fn rescued(&mut self, size: Bytes, rescue: &RescueTried) {
        let Some((call, user)) = self.rescues else { return };
        let duration = self.failed_at.take().map_or(Duration::ZERO, |since| since.elapsed());
        let rescue = parkade_rescue {
            size: size.get(),
            duration_ns: u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX),
            moved_handles: rescue.moved_handles,
            broken_handles: rescue.broken_handles,
            copied_bytes: rescue.copied_bytes,
        };
        tell_of_rescue(call, user, &rescue);
    }
}

#[allow(unsafe_code)] // a call of the program's function
fn tell_of_rescue(call: RescueCall, user: User, rescue: &parkade_rescue) {
    // SAFETY: the program supplied the function for rescues and its pointer, and the header states how it is called.
    unsafe { call(user.0, rescue) };
}

#[allow(unsafe_code)] // a call of the program's function
fn tell(call: Call, user: User, entry: &TraceEntry) {
    let entry = entry_in_c(entry);
    // SAFETY: the program supplied the function for entries and its pointer, and the header states how it is called.
    unsafe { call(user.0, &raw const entry) };
}

/// An entry as C sees it.
pub(crate) fn entry_in_c(entry: &TraceEntry) -> parkade_entry {
    let action = match entry.action {
        TraceAction::Alloc => parkade_action::PARKADE_ALLOC,
        TraceAction::FreeRequested => parkade_action::PARKADE_FREE_REQUESTED,
        TraceAction::FreeCompleted => parkade_action::PARKADE_FREE_COMPLETED,
        TraceAction::SegmentAlloc => parkade_action::PARKADE_SEGMENT_ALLOC,
        TraceAction::SegmentFree => parkade_action::PARKADE_SEGMENT_FREE,
        TraceAction::SegmentMap => parkade_action::PARKADE_SEGMENT_MAP,
        TraceAction::SegmentUnmap => parkade_action::PARKADE_SEGMENT_UNMAP,
        TraceAction::Oom => parkade_action::PARKADE_OOM,
        TraceAction::Snapshot => parkade_action::PARKADE_SNAPSHOT,
    };
    let pool = parkade_pool { first: entry.pool.0, second: entry.pool.1 };
    parkade_entry { action, address: entry.address, size: entry.size, stream: entry.stream.0, pool }
}

/// The allocator's number and the addresses that were freed.
type Callback = (usize, Vec<u64>);

thread_local! {
    /// The callbacks that are running on this thread, innermost last. The list has no destructor, so that it still
    /// exists for requests that the program's own destructors make while the thread ends. It holds no memory while no
    /// callback is running.
    static RUNNING: ManuallyDrop<RefCell<Vec<Callback>>> = const { ManuallyDrop::new(RefCell::new(Vec::new())) };
}

/// Runs a callback of the allocator with this number, which frees memory for a request. Returns the callback's answer
/// and the addresses that it freed. The addresses are only recorded during the call and freed after it.
///
/// The thread holds the allocator's lock during the call, so the free itself cannot take it.
pub(crate) fn run_noting_frees(allocator: usize, callback: impl FnOnce() -> bool) -> (bool, Vec<u64>) {
    RUNNING.with(|running| running.borrow_mut().push((allocator, Vec::new())));
    let answer = callback();
    let freed = RUNNING.with(|running| {
        let mut running = running.borrow_mut();
        let freed = running.pop().map(|(_, freed)| freed);
        if running.is_empty() {
            *running = Vec::new();
        }
        freed
    });
    (answer, freed.unwrap_or_default())
}

/// Records that a callback frees an address. Returns false if no callback of this allocator is running on this thread.
pub(crate) fn note_free(allocator: usize, address: u64) -> bool {
    RUNNING.with(|running| match running.borrow_mut().iter_mut().rev().find(|(of, _)| *of == allocator) {
        Some((_, freed)) => {
            freed.push(address);
            true
        }
        None => false,
    })
}
