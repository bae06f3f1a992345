//! Progress reports of a run.

use super::row::Row;

/// Called as entries begin and end, from several threads.
pub trait Progress: Sync {
    /// An entry begins.
    fn begins(&self, title: &str);

    /// An entry has ended.
    fn ends(&self, row: &Row);
}

/// Ignores progress.
#[derive(Clone, Copy, Debug)]
pub struct Silent;

impl Progress for Silent {
    fn begins(&self, _: &str) {}

    fn ends(&self, _: &Row) {}
}
