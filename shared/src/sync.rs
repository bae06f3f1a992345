//! What the lock and the table take from outside: atomic numbers, locks, the clock and the calling thread. With
//! `--cfg loom`, these are loom's, so that `tests/loom.rs` can try every interleaving of threads.

#[cfg(loom)]
pub(crate) use model::*;
#[cfg(not(loom))]
pub(crate) use real::*;

#[cfg(not(loom))]
mod real {
    pub(crate) use std::sync::Mutex;
    pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};
    pub(crate) use std::thread::sleep;
    pub(crate) use std::time::Instant;

    pub(crate) use spin::mutex::{SpinMutex, SpinMutexGuard};

    /// Spins.
    #[inline]
    pub(crate) fn pause(times: u32) {
        for _ in 0..times {
            std::hint::spin_loop();
        }
    }

    /// Returns a number that no other running thread has and that is neither 0 nor the largest: an address in the
    /// thread's own memory. The system provides it, because a thread-local variable in a library that is loaded late
    /// would cost a call each time.
    #[cfg(unix)]
    #[inline]
    pub(crate) fn thread_number() -> usize {
        nix::sys::pthread::pthread_self() as usize
    }

    #[cfg(not(unix))]
    #[inline]
    pub(crate) fn thread_number() -> usize {
        thread_local!(static OWN: u8 = const { 0 });
        OWN.with(|own| std::ptr::from_ref(own).addr())
    }
}

#[cfg(loom)]
mod model {
    use std::cell::Cell;
    use std::ops::{Deref, DerefMut};
    use std::sync::TryLockError;
    use std::sync::atomic::{AtomicBool as UncountedBool, AtomicUsize as UncountedUsize};
    use std::time::Duration;

    use loom::cell::{MutPtr, UnsafeCell};
    pub(crate) use loom::sync::Mutex;
    use loom::sync::atomic::AtomicBool;
    pub(crate) use loom::sync::atomic::{AtomicUsize, Ordering};

    /// The lock of spin 0.12.3 with loom's atomic flag: the same operations on the flag, in the same memory orderings.
    pub(crate) struct SpinMutex<T> {
        flag: AtomicBool,
        waiting: Waiting,
        /// A mutex, because the model needs no unsafe code with it. Loom does not count it, and it is never waited for.
        value: std::sync::Mutex<Watched<T>>,
    }

    /// Two threads that wait by reading the flag can take turns forever, and loom would try to follow them. So all waiting
    /// threads but one are parked, and a release wakes them. Loom takes this to order them after the release, so only
    /// programs of two threads check the memory orderings of waiting. Loom does not count these fields.
    #[derive(Default)]
    struct Waiting {
        /// What the lock's flag was set to last.
        is_taken: UncountedBool,
        /// Whether a thread waits by reading the flag.
        has_reader: UncountedBool,
        parked: std::sync::Mutex<Vec<loom::thread::Thread>>,
    }

    /// A value, and a cell that reports two uses of the value neither of which happens before the other.
    struct Watched<T> {
        uses: UnsafeCell<()>,
        value: T,
    }

    pub(crate) struct SpinMutexGuard<'a, T> {
        lock: &'a SpinMutex<T>,
        /// Both are `None` only while the guard is being dropped.
        using: Option<MutPtr<()>>,
        value: Option<std::sync::MutexGuard<'a, Watched<T>>>,
    }

    impl<T> SpinMutex<T> {
        pub(crate) fn new(value: T) -> SpinMutex<T> {
            let uses = UnsafeCell::new(());
            let value = std::sync::Mutex::new(Watched { uses, value });
            SpinMutex { flag: AtomicBool::new(false), waiting: Waiting::default(), value }
        }

        /// Waits until the lock has been released. One thread does so by reading the flag, as with spin's lock.
        pub(crate) fn is_locked(&self) -> bool {
            if self.waiting.has_reader.swap(true, Ordering::Relaxed) {
                self.waiting.park();
                return self.flag.load(Ordering::Relaxed);
            }
            while self.flag.load(Ordering::Relaxed) {
                loom::thread::yield_now();
            }
            self.waiting.has_reader.store(false, Ordering::Relaxed);
            false
        }

        pub(crate) fn try_lock(&self) -> Option<SpinMutexGuard<'_, T>> {
            self.flag.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).ok()?;
            self.waiting.is_taken.store(true, Ordering::Relaxed);
            let value = match self.value.try_lock() {
                Ok(value) => value,
                Err(TryLockError::Poisoned(error)) => error.into_inner(),
                Err(TryLockError::WouldBlock) => panic!("two threads have the lock"),
            };
            Some(SpinMutexGuard { lock: self, using: Some(value.uses.get_mut()), value: Some(value) })
        }

        pub(crate) fn into_inner(self) -> T {
            let Watched { uses, value } = self.value.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
            uses.with_mut(|_| ());
            value
        }
    }

    impl Waiting {
        fn park(&self) {
            while self.is_taken.load(Ordering::Relaxed) {
                self.parked.lock().expect("no panic").push(loom::thread::current());
                loom::thread::park();
            }
        }

        fn wake(&self) {
            self.is_taken.store(false, Ordering::Relaxed);
            for thread in self.parked.lock().expect("no panic").drain(..) {
                thread.unpark();
            }
        }
    }

    impl<T> Deref for SpinMutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.value.as_ref().expect("the guard is not being dropped").value
        }
    }

    impl<T> DerefMut for SpinMutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.value.as_mut().expect("the guard is not being dropped").value
        }
    }

    impl<T> Drop for SpinMutexGuard<'_, T> {
        fn drop(&mut self) {
            self.using = None;
            self.value = None;
            self.lock.flag.store(false, Ordering::Release);
            self.lock.waiting.wake();
        }
    }

    /// A clock on which a waiting thread first spins, and sleeps from the second attempt on.
    pub(crate) struct Instant(Cell<u32>);

    impl Instant {
        pub(crate) fn now() -> Instant {
            Instant(Cell::new(0))
        }

        pub(crate) fn elapsed(&self) -> Duration {
            Duration::from_millis(self.0.replace(1).into())
        }
    }

    /// Lets other threads run. To loom, the length makes no difference.
    pub(crate) fn pause(_times: u32) {
        loom::thread::yield_now();
    }

    /// Does nothing, because a pause follows.
    pub(crate) fn sleep(_duration: Duration) {}

    /// Returns a number that no other thread of the execution has.
    pub(crate) fn thread_number() -> usize {
        static NEXT: UncountedUsize = UncountedUsize::new(1);
        loom::thread_local!(static OWN: usize = NEXT.fetch_add(1, Ordering::Relaxed));
        OWN.with(|own| *own)
    }
}
