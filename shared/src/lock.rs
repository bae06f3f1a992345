//! The lock: taken and given back in a few nanoseconds while nobody else wants it, and kept by the thread that has it
//! while many do.
//!
//! A request takes some fifty nanoseconds, and most of what it touches is in the cache of the processor that served
//! the last one. So the fewer times the lock changes hands, the more requests are served. Whoever finds it taken looks
//! again only after a while, and after a longer one each time: the thread that has it serves request after request in
//! between. Waiting threads do not ask the system to be woken, because the thread that they wait for would have to
//! wake them: that takes longer than the request.
//!
//! Who waits spins at first, then sleeps, because a lock may be held for long, as around a call of the driver. A sleep
//! lasts a fraction of the time waited so far, and never long, so that its release is noticed soon.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use spin::mutex::{SpinMutex, SpinMutexGuard};

/// Pauses before the second look; each later look has twice as many before it.
const FIRST_PAUSES: u32 = 16;
/// How long a waiting thread spins before it sleeps.
const SPINNING: Duration = Duration::from_micros(20);
/// A sleep lasts the time waited so far, divided by this.
const PATIENCE: u32 = 4;
/// No sleep is longer.
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// Why the lock was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// The thread has it already.
    Reentered,
    /// A thread panicked while it had it.
    Poisoned,
}

/// A value that one thread at a time works on.
pub(crate) struct Lock<T> {
    /// Who works on the value: a [`thread_number`], [`NOBODY`] or [`BROKEN`]. Written under the lock. Read under the
    /// lock, or compared with the reader's own number, which only the reader writes: it orders nothing.
    holder: AtomicUsize,
    value: SpinMutex<Apart<T>>,
}

const NOBODY: usize = 0;
/// A thread panicked while it worked on the value.
const BROKEN: usize = usize::MAX;

/// On cache lines of its own: threads that look at the lock must not take away those that the value is on.
#[repr(align(128))]
struct Apart<T>(T);

/// Work on the value that has not come to its end.
struct Unfinished<'a>(&'a AtomicUsize);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.store(BROKEN, Ordering::Relaxed);
    }
}

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Lock<T> {
        Lock { holder: AtomicUsize::new(NOBODY), value: SpinMutex::new(Apart(value)) }
    }

    /// Takes the lock, works on the value, gives the lock back.
    #[inline]
    pub(crate) fn hold<R>(&self, work: impl FnOnce(&mut T) -> R) -> Result<R, Refusal> {
        let mut guard = match self.value.try_lock() {
            Some(guard) => guard,
            None => self.wait()?,
        };
        if self.holder.load(Ordering::Relaxed) != NOBODY {
            return Err(Refusal::Poisoned);
        }
        self.holder.store(thread_number(), Ordering::Relaxed);
        // Dropped before the guard, and only by a panic.
        let unfinished = Unfinished(&self.holder);
        let answer = work(&mut guard.0);
        std::mem::forget(unfinished);
        self.holder.store(NOBODY, Ordering::Relaxed);
        Ok(answer)
    }

    /// Waits for the lock.
    #[cold]
    #[inline(never)]
    fn wait(&self) -> Result<SpinMutexGuard<'_, Apart<T>>, Refusal> {
        if self.holder.load(Ordering::Relaxed) == thread_number() {
            return Err(Refusal::Reentered);
        }
        let since = Instant::now();
        let mut pauses = FIRST_PAUSES;
        loop {
            for _ in 0..pauses {
                std::hint::spin_loop();
            }
            // Only looking leaves the lock's cache line with its holder until there is something to take.
            if !self.value.is_locked()
                && let Some(guard) = self.value.try_lock()
            {
                return Ok(guard);
            }
            let waited = since.elapsed();
            if waited < SPINNING {
                pauses = pauses.saturating_mul(2);
            } else {
                std::thread::sleep((waited / PATIENCE).min(LONGEST_SLEEP));
            }
        }
    }

    /// The value, without the lock.
    pub(crate) fn into_inner(self) -> Result<T, Refusal> {
        if self.holder.into_inner() == NOBODY { Ok(self.value.into_inner().0) } else { Err(Refusal::Poisoned) }
    }
}

/// A number that no other running thread has, and that is neither [`NOBODY`] nor [`BROKEN`]: an address in the thread's
/// own memory. The system's, as a thread-local variable of a library that is loaded late costs a call each time.
#[cfg(unix)]
#[inline]
fn thread_number() -> usize {
    nix::sys::pthread::pthread_self() as usize
}

#[cfg(not(unix))]
#[inline]
fn thread_number() -> usize {
    thread_local!(static OWN: u8 = const { 0 });
    OWN.with(|own| std::ptr::from_ref(own).addr())
}
