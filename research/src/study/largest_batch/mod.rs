//! The out-of-memory frontier of training a transformer: the largest batch that fits, by policy, device and way of
//! training.
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
pub use case::{Case, Numbers};
pub use grid::{CONTEXT_BYTES, FrontierError, Grid, MOST_BATCH, MOST_POINTS};
pub use point::{Bound, Point, Why};
