//! Maps over ranges of numbers (bytes, addresses, pages), which the rest is built on.

mod holes;
mod intervals;
mod pieces;

pub(crate) use holes::Holes;
pub(crate) use intervals::Intervals;
pub(crate) use pieces::Pieces;
