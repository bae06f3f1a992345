//! D: statistics and tools.

mod commands;
mod device_memory;
mod helpers;
mod recorded_runs;
mod statistics;

use std::path::Path;

use parkade_conformance::backend::Backend;
use parkade_conformance::suite::Entry;

use crate::table::{Finding, Row};

pub(crate) const ROWS: &[Row] = &[];

pub(crate) fn entries<B: Backend + 'static>(backend: &B, parkade: Option<&Path>) -> Vec<Entry<B>> {
    [
        statistics::entries(backend),
        recorded_runs::entries(backend),
        helpers::entries(),
        device_memory::entries(backend),
        commands::entries(backend, parkade),
    ]
    .into_iter()
    .flatten()
    .collect()
}
