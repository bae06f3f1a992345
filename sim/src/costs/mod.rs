//! Time: the prices of driver calls, and the clock that they advance.
//!
//! To change a measured price, see [`h200`]; to simulate another GPU, implement [`CostModel`] and pass it to
//! [`SimOptions::cost_model`](crate::SimOptions::cost_model).

mod clock;
mod h200;
mod model;

pub use clock::CallTotals;
pub(crate) use clock::Clock;
pub use h200::MeasuredH200;
pub use model::{CostModel, NoCost};
