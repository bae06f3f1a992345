//! (to come)
use crate::harness::Backend;
use crate::suite::Entry;

/// The entries of this group.
pub fn entries<B: Backend + 'static>(_: &B) -> Vec<Entry<B>> {
    Vec::new()
}
