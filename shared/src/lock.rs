//! The lock: taking and releasing it costs a few nanoseconds if no other thread wants it. If many threads want it, the
//! thread that has it tends to keep it.
//!
//! A request takes about fifty nanoseconds, and most of the data that it touches is in the cache of the processor that
//! served the last one. The fewer times the lock changes hands, the more requests are therefore served. A thread that
//! finds the lock taken tries again only after a pause, which grows each time; in the meantime, the holder serves one
//! request after another. Waiting threads do not ask the system to wake them, because the holder would have to do that,
//! and it takes longer than a request.
//!
//! A waiting thread first spins, then sleeps, because another thread may hold the lock for a long time, for example
//! during a driver call. Each sleep is short, a fraction of the time waited so far, so that the thread notices the
//! release soon.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use spin::mutex::{SpinMutex, SpinMutexGuard};

/// The number of pauses before the second try; before each later try, there are twice as many.
const FIRST_PAUSES: u32 = 16;
/// How long a waiting thread spins before it sleeps.
const SPINNING: Duration = Duration::from_micros(20);
/// A sleep lasts for the time waited so far, divided by this value.
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

/// A value on which only one thread at a time works.
pub(crate) struct Lock<T> {
    /// The thread that works on the value: a [`thread_number`], [`NOBODY`] or [`BROKEN`]. It is written under the lock.
    /// It is read under the lock, or compared with the reader's own number, which only the reader writes, so it needs
    /// no memory ordering.
    holder: AtomicUsize,
    value: SpinMutex<Apart<T>>,
}

const NOBODY: usize = 0;
/// A thread panicked while it was working on the value.
const BROKEN: usize = usize::MAX;

/// Data on a separate cache line: threads that check the lock must not take away the value's cache
/// lines.
#[repr(align(128))]
struct Apart<T>(T);

/// Unfinished work on the value.
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
            for _ in 0..pauses {
                std::hint::spin_loop();
            }
            // Only reading the lock leaves its cache line with the holder until the lock is free.
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

    /// Returns the value without the lock.
    pub(crate) fn into_inner(self) -> Result<T, Refusal> {
        if self.holder.into_inner() == NOBODY { Ok(self.value.into_inner().0) } else { Err(Refusal::Poisoned) }
    }
}

/// Returns a number that no other running thread has and that is neither [`NOBODY`] nor [`BROKEN`]: an address in the
/// thread's own memory. The system provides it, because a thread-local variable in a library that is loaded late costs
/// a call each time.
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
