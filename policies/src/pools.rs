//! Tells studies whether a private pool is a separate allocator, for policies whose originals have no private pools.

use crate::entry::base;

/// Whether a private pool is a separate allocator under the policy with this name, and therefore releases its memory
/// when the program drops it ([`release_cached_pool`](parkade::Allocator::release_cached_pool)). The originals of
/// these policies have no private pools, so a program would create a second allocator instead.
#[must_use]
pub fn pools_are_allocators(name: &str) -> bool {
    matches!(base(name), "bfc" | "rmm-pool")
}
