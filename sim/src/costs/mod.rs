//! Time: what driver calls cost, and the clock that they move.

mod clock;
mod h200;
mod model;

pub use clock::CallTotals;
pub(crate) use clock::Clock;
pub use h200::MeasuredH200;
pub use model::{CostModel, NoCost};
