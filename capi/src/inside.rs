//! Frees from inside of a callback that frees memory for a request: they are noted, and done when it returns.
//!
//! The thread has the allocator's lock then, so the call itself cannot take it.

use std::cell::RefCell;
use std::mem::ManuallyDrop;

/// The allocator's number, and what was freed.
type Callback = (usize, Vec<u64>);

thread_local! {
    /// The callbacks that run on this thread, the innermost last. Without a destructor, so that it is there for requests that
    /// the program's own destructors make while the thread ends; it holds no memory while none runs.
    static RUNNING: ManuallyDrop<RefCell<Vec<Callback>>> = const { ManuallyDrop::new(RefCell::new(Vec::new())) };
}

/// Runs a callback of the allocator with this number. Returns its answer, and the addresses that it freed.
pub(crate) fn run(allocator: usize, callback: impl FnOnce() -> bool) -> (bool, Vec<u64>) {
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

/// Notes that a callback frees an address. False if none of this allocator runs on this thread.
pub(crate) fn note(allocator: usize, address: u64) -> bool {
    RUNNING.with(|running| match running.borrow_mut().iter_mut().rev().find(|(of, _)| *of == allocator) {
        Some((_, freed)) => {
            freed.push(address);
            true
        }
        None => false,
    })
}
