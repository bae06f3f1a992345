//! Frees from inside of a callback that frees memory for a request: they are noted, and done when it returns.
//!
//! The thread has the allocator's lock then, so the call itself cannot take it.

use std::cell::RefCell;

thread_local! {
    /// The callbacks that run on this thread, the innermost last: the allocator's number, and what was freed.
    static RUNNING: RefCell<Vec<(usize, Vec<u64>)>> = const { RefCell::new(Vec::new()) };
}

/// Runs a callback of the allocator with this number. Returns its answer, and the addresses that it freed.
pub(crate) fn run(allocator: usize, callback: impl FnOnce() -> bool) -> (bool, Vec<u64>) {
    RUNNING.with_borrow_mut(|running| running.push((allocator, Vec::new())));
    let answer = callback();
    let freed = RUNNING.with_borrow_mut(|running| running.pop().map(|(_, freed)| freed));
    (answer, freed.unwrap_or_default())
}

/// Notes that a callback frees an address. False if none of this allocator runs on this thread.
pub(crate) fn note(allocator: usize, address: u64) -> bool {
    RUNNING.with_borrow_mut(|running| match running.iter_mut().rev().find(|(of, _)| *of == allocator) {
        Some((_, freed)) => {
            freed.push(address);
            true
        }
        None => false,
    })
}
