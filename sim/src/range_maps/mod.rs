//! Maps over ranges of numbers: the data structures that the rest is built on.
//!
//! [`Holes`] is a set of free ranges that coalesce, [`Intervals`] a set of disjoint ranges that keep their
//! borders, [`Pieces`] a value for every number. None of them knows what its numbers mean (bytes, addresses,
//! pages).

mod holes;
mod intervals;
mod pieces;

pub(crate) use holes::Holes;
pub(crate) use intervals::Intervals;
pub(crate) use pieces::Pieces;
