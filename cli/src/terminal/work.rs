//! Where work runs: on the machine's threads, or, in [provided surroundings](super::surroundings), on the calling thread.

use super::surroundings::are_provided;

/// Does both, at the same time if there are threads.
pub fn join<A: Send, B: Send>(a: impl FnOnce() -> A + Send, b: impl FnOnce() -> B + Send) -> (A, B) {
    if are_provided() { (a(), b()) } else { rayon::join(a, b) }
}
