//! Several recordings: which files are meant, which ranks they are of, and working through them.

mod inputs;
mod rank_numbers;
mod work;

pub(crate) use inputs::Inputs;
pub(crate) use rank_numbers::{RankNumbers, RanksFrom};
pub(crate) use work::each;
