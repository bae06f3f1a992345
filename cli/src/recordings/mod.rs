//! Several recordings: which files are meant, which ranks they are of, and working through them.

mod inputs;
mod rank_numbers;
mod work;

pub use inputs::Inputs;
pub use rank_numbers::{RankNumbers, RanksFrom};
pub use work::each;
