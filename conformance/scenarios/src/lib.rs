//! The scenarios of the source documents, row by row: what the text says, what is true, shown with statistics and pictures of the heap.
//!
//! A row's name is its id in the list of scenarios (A1 ... C6); where a row is about several settings, each is an entry of its own. Rows
//! whose outcome PyTorch 2.11 showed on an H200 must give its figures to the byte. The text of each entry is the same on every
//! backend; the tests hold the simulated device's as snapshots.

#![forbid(unsafe_code)]

mod curves;
mod driver;
mod experiments;
mod fragmentation;
mod fuzz;
mod knobs;
mod ladder;
mod messages;
mod sizes;
mod story;
mod streams;
mod warmup;

use parkade_conformance::backend::Backend;
use parkade_conformance::suite::Entry;

/// Everything that `parkade conform` runs on a backend: the suite and the scenarios, group by group.
#[must_use]
pub fn everything<B: Backend + 'static>(backend: &B) -> Vec<Entry<B>> {
    let mut all = parkade_conformance::checks::entries(backend);
    all.extend(entries(backend));
    all.sort_by_key(|entry| entry.group);
    all
}

/// The scenarios alone.
#[must_use]
pub fn entries<B: Backend + 'static>(backend: &B) -> Vec<Entry<B>> {
    [
        sizes::entries(),
        fragmentation::entries(),
        driver::entries(),
        ladder::entries(),
        knobs::entries(),
        warmup::entries(),
        streams::entries(),
        fuzz::entries(backend),
        experiments::entries(),
        messages::entries(),
        curves::entries(backend),
    ]
    .into_iter()
    .flatten()
    .collect()
}
