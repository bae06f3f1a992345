//! The shipped recordings, for tests: without them a test fails and says why.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of this")]

use parkade_oracle::shipped::{self, Shipped, ShippedError};

fn loaded<T>(result: Result<T, ShippedError>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

/// The names of the recordings in `conformance/recordings`.
pub fn names() -> Vec<String> {
    loaded(shipped::names())
}

/// Reads one of them.
pub fn read(name: &str) -> Shipped {
    loaded(shipped::read(name))
}

/// Reads a recording in `conformance/recordings/pools`: programs that drop private pools while they run.
pub fn read_with_pools(name: &str) -> Shipped {
    loaded(shipped::read_from(&shipped::folder().join("pools"), name))
}

/// Reads all of those.
pub fn all_with_pools() -> Vec<Shipped> {
    let names = loaded(shipped::names_in(&shipped::folder().join("pools")));
    names.iter().map(|name| read_with_pools(name)).collect()
}
