//! Where an answer differs from the real allocator's, or cannot be compared with it.

use std::fmt;

/// What differs, in words.
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

/// `Ok` if it holds, else what `says` says.
pub(crate) fn ensure(holds: bool, says: impl FnOnce() -> String) -> Result<(), Difference> {
    if holds { Ok(()) } else { Err(Difference(says())) }
}
