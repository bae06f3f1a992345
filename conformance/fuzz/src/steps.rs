//! Target `steps`: programs on the allocator and the reference allocator, which must agree in everything that is visible.

use parkade_conformance::checks::against_reference;

/// Runs the program that the bytes are. Returns whether it has a step.
///
/// # Panics
/// If the allocators differ. The message is a file for `conformance/corpus`.
pub fn run(data: &[u8]) -> bool {
    against_reference(data).unwrap_or_else(|difference| panic!("{difference}")) > 0
}
