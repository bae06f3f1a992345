//! E: how much memory models take, by formulas and by generated programs.

mod activations;
mod training;

use parkade_conformance::backend::Backend;
use parkade_conformance::suite::Entry;

use crate::table::{Finding, Row};

pub(crate) const ROWS: &[Row] = &[];

/// No device takes part in any of them.
pub(crate) fn entries<B: Backend + 'static>(backend: &B) -> Vec<Entry<B>> {
    if !backend.is_simulated() {
        return Vec::new();
    }
    [activations::entries(), training::entries()].into_iter().flatten().collect()
}
