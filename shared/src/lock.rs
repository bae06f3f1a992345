//! The lock: taken and given back in a few nanoseconds while nobody else wants it, and kept by the thread that has it
//! while many do.
//!
//! A request takes some fifty nanoseconds, and most of what it touches is in the cache of the processor that served
//! the last one. So the fewer times the lock changes hands, the more requests are served. Whoever finds it taken looks
//! again only after a while, and after a longer one each time: the thread that has it serves request after request in
//! between. Waiting threads do not ask the system to be woken, because the thread that they wait for would have to
//! wake them: that takes longer than the request.
//!
//! Who waits spins at first, then sleeps. A sleep lasts a fraction of the time waited so far, so that a lock that is
//! held for long, as around a call of the driver, costs little processor time and is noticed soon after its release.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use spin::mutex::{SpinMutex, SpinMutexGuard};

/// Pauses before the second look; each later look has twice as many before it.
const FIRST_PAUSES: u32 = 64;
/// How long a waiting thread spins before it sleeps.
const SPINNING: Duration = Duration::from_micros(20);
/// A sleep lasts the time waited so far, divided by this.
const PATIENCE: u32 = 4;

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
    /// Who works on the value: a [`thread_number`], or [`NOBODY`]. Written under the lock, so after a panic it stays.
    /// Read under the lock, or compared with the reader's own number, which only the reader writes: it orders nothing.
    holder: AtomicUsize,
    value: SpinMutex<Apart<T>>,
}

const NOBODY: usize = 0;

/// On cache lines of its own: threads that look at the lock must not take away those that the value is on.
#[repr(align(128))]
struct Apart<T>(T);

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
        let answer = work(&mut guard.0);
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
            if let Some(guard) = self.value.try_lock() {
                return Ok(guard);
            }
            let waited = since.elapsed();
            if waited < SPINNING {
                pauses = pauses.saturating_mul(2);
            } else {
                std::thread::sleep(waited / PATIENCE);
            }
        }
    }

    /// The value, without the lock.
    pub(crate) fn into_inner(self) -> T {
        self.value.into_inner().0
    }
}

/// A number that no other running thread has, and that is not [`NOBODY`]: an address in the thread's own memory.
#[inline]
fn thread_number() -> usize {
    thread_local!(static OWN: u8 = const { 0 });
    OWN.with(|own| std::ptr::from_ref(own).addr())
}
