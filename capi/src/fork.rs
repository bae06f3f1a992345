//! Children of fork: their parent's allocators serve nothing, as CUDA cannot be used there, and a lock that another
//! thread of the parent held would never be given back.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// How often the process was forked before it became this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// How many forks lie between the first process and this one, counted from the first call on.
pub(crate) fn generation() -> u32 {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(register);
    now()
}

/// The same, once [`generation`] was called.
#[inline]
pub(crate) fn now() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

#[allow(unsafe_code)] // one call of the C library
fn register() {
    // SAFETY: `in_child` only changes an atomic number, which is allowed in a child of a process with threads. If there
    // is no memory for the registration, children are not told, as without it.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}
