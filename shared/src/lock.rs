//! The lock. Taking and releasing it costs a few nanoseconds if no other thread wants it. If many threads want it, the
//! thread that has it tends to keep it.
//!
//! A request takes about fifty nanoseconds, and most of the data that it uses is in the cache of the processor that
//! served the previous one. More requests are therefore served if the lock changes hands less often. A thread that
//! finds the lock taken tries again only after a pause, which grows each time, so that the holder can serve one
//! request after another. Waiting threads do not ask the system to wake them, because the holder would have to do
//! this, and it takes longer than a request.
//!
//! A waiting thread first spins, then sleeps, because another thread may hold the lock for a long time, for example
//! during a driver call. Each sleep lasts only a fraction of the time waited so far, so the thread soon notices the
//! release.

use std::time::Duration;

use crate::sync::{AtomicUsize, Instant, Ordering, SpinMutex, SpinMutexGuard, pause, sleep, thread_number};

/// The number of pauses before the second try; before each later try, there are twice as many.
const FIRST_PAUSES: u32 = 16;
/// How long a waiting thread spins before it sleeps.
const SPINNING: Duration = Duration::from_micros(20);
/// The length of a sleep is the time waited so far, divided by this value.
const PATIENCE: u32 = 4;
/// The longest sleep.
const LONGEST_SLEEP: Duration = Duration::from_millis(1);

/// The reason why the lock was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// This thread already has it.
    Reentered,
    /// A thread panicked while it had it.
    Poisoned,
}

/// A value that only one thread at a time can use.
pub(crate) struct Lock<T> {
    /// The thread that is using the value: a [`thread_number`], [`NOBODY`] or [`BROKEN`]. It is written under the
    /// lock. It is either read under the lock or compared with the reader's own number, which only the reader writes,
    /// so it needs no memory ordering.
    holder: AtomicUsize,
    value: SpinMutex<Apart<T>>,
}

/// Not a [`thread_number`], and neither is [`BROKEN`].
const NOBODY: usize = 0;
/// A thread panicked while it was using the value.
const BROKEN: usize = usize::MAX;

/// Data on a separate cache line, so that threads that check the lock do not take the value's cache lines.
#[repr(align(128))]
struct Apart<T>(T);

/// A guard that marks the value as broken unless the work on it finishes.
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

    /// Takes the lock, works on the value, and releases the lock.
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
        // This is dropped before the guard, and only by a panic.
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
            pause(pauses);
            // Only reading the lock leaves its cache line with the holder until the lock is released.
            if !self.value.is_locked()
                && let Some(guard) = self.value.try_lock()
            {
                return Ok(guard);
            }
            let waited = since.elapsed();
            if waited < SPINNING {
                pauses = pauses.saturating_mul(2);
            } else {
                sleep((waited / PATIENCE).min(LONGEST_SLEEP));
            }
        }
    }

    /// Returns the value without the lock.
    pub(crate) fn into_inner(self) -> Result<T, Refusal> {
        if self.holder.into_inner() == NOBODY { Ok(self.value.into_inner().0) } else { Err(Refusal::Poisoned) }
    }
}
