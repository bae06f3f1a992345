//! How an answer differs from the real allocator's.

use std::fmt;

/// What differs, as text of one line or more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference(String);

impl Difference {
    pub(crate) fn new(what: impl fmt::Display) -> Difference {
        Difference(what.to_string())
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Difference {}
