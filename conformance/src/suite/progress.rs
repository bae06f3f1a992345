//! Who wants to know how far a run is.

use super::row::Row;

/// Is told of entries as they begin and end, from several threads.
pub trait Progress: Sync {
    /// An entry begins.
    fn begins(&self, title: &str);

    /// An entry is done.
    fn ends(&self, row: &Row);
}

/// Nobody.
#[derive(Clone, Copy, Debug)]
pub struct Silent;

impl Progress for Silent {
    fn begins(&self, _: &str) {}

    fn ends(&self, _: &Row) {}
}
