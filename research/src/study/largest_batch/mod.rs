//! The largest batch with which a transformer can be trained, by policy and device.
//!
//! A [`Grid`] is every combination of its lists; [`Grid::walk`] returns a [`Point`] for each. Each point also has
//! a [`Bound`]: the largest batch whose live bytes fit into the device at all, which no policy can exceed. All of
//! it is arithmetic on simulated devices, a new one for each run; the same grid gives the same points on any
//! number of threads.

mod cards;
mod case;
mod grid;
mod point;
mod search;
#[cfg(test)]
mod tests;

pub use cards::{CARDS, Card, card};
pub use case::{Case, Training};
pub use grid::{CONTEXT_BYTES, Grid, GridError, MOST_BATCH, MOST_POINTS};
pub use point::{Bound, Point, Why};
