//! The allocator's observer: tells C what happens, and keeps a history if asked.

use std::ffi::c_void;

use parkade::trace::{Observer, TraceAction, TraceEntry, TraceRing};

use crate::types::{parkade_action, parkade_entry, parkade_observer, parkade_pool};

/// A pointer of C that is handed back to it and never followed here.
#[derive(Clone, Copy)]
pub(crate) struct User(pub(crate) *mut c_void);

#[allow(unsafe_code)]
// SAFETY: the header says that callbacks come from any thread that calls the allocator, so what the pointer leads to
// must be usable from there.
unsafe impl Send for User {}

/// The observer of every allocator of this interface.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) observer: Option<(Call, User)>,
    pub(crate) history: Option<TraceRing>,
}

/// The function of a [`parkade_observer`].
pub(crate) type Call = unsafe extern "C" fn(*mut c_void, *const parkade_entry);

impl Told {
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
    }
}

#[allow(unsafe_code)] // a call of the program's function
fn tell(call: Call, user: User, entry: &TraceEntry) {
    let entry = in_c(entry);
    // SAFETY: the program gave the function for entries and the pointer for it, and the header says how it is called.
    unsafe { call(user.0, &raw const entry) };
}

/// An entry as C sees it.
pub(crate) fn in_c(entry: &TraceEntry) -> parkade_entry {
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
