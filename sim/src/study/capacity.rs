//! The least memory in which a program fits.

use parkade::policy::Policy;

use super::options::{PLENTY_BYTES, RunOptions};
use super::run::{Outcome, run};
use crate::device::PAGE_BYTES;
use crate::workload::Workload;

/// Sizes are found to this part of the load, or to one page if that is more.
const PRECISION: u64 = 256;

/// The least memory that was found to suffice.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Smallest {
    /// The device's memory, whole pages.
    pub capacity_bytes: u64,
    /// The run in it.
    pub outcome: Outcome,
    /// How many runs it took to find.
    pub runs: u32,
}

/// Searches the least memory of a device in which a program fits under the policies that `make` makes: by bisection in whole pages of
/// 2 MiB, between the load (the most bytes that live at once, which nothing can undercut) and what the program takes on a device with
/// plenty, to 1/256 of the load or one page. The capacity in `options` does not count.
///
/// Fitting need not be monotone: a policy that gives memory back early where memory is short can fit in less than it fits in with a
/// little more. So what is found is *a* border: it fits in what is returned, and does not in some capacity that is smaller by at most
/// 1/256 of the load or one page, unless what is returned is the load itself. Capacities further below that were not tried may suffice.
///
/// # Errors
/// The run with plenty, if the program does not fit there either: the policy gave up for another reason.
pub fn smallest_capacity(
    workload: &Workload,
    make: &dyn Fn() -> Box<dyn Policy + Send>,
    options: &RunOptions,
) -> Result<Smallest, Outcome> {
    let load_pages = workload.load_bytes(1).div_ceil(PAGE_BYTES).max(1);
    let mut search = Search { workload, make, options, runs: 0 };
    let plenty = search.run(PLENTY_BYTES.max(load_pages.saturating_mul(PAGE_BYTES)));
    if !plenty.fits() {
        return Err(plenty);
    }
    let load = search.run(load_pages * PAGE_BYTES);
    if load.fits() {
        return Ok(search.found(load_pages, load));
    }
    let (mut enough, mut outcome) = search.upper_end(load_pages, plenty);
    let mut short = load_pages;
    let precision = (load_pages / PRECISION).max(1);
    while enough - short > precision {
        let middle = short + (enough - short) / 2;
        let tried = search.run(middle * PAGE_BYTES);
        if tried.fits() {
            (enough, outcome) = (middle, tried);
        } else {
            short = middle;
        }
    }
    Ok(search.found(enough, outcome))
}

struct Search<'a> {
    workload: &'a Workload,
    make: &'a dyn Fn() -> Box<dyn Policy + Send>,
    options: &'a RunOptions,
    runs: u32,
}

impl Search<'_> {
    fn run(&mut self, capacity_bytes: u64) -> Outcome {
        self.runs += 1;
        run(self.workload, (self.make)(), &self.options.with_capacity(capacity_bytes))
    }

    /// Pages that suffice. What was taken with plenty does for most policies; those that look at how much there is may need more there.
    fn upper_end(&mut self, load_pages: u64, plenty: Outcome) -> (u64, Outcome) {
        let mut pages = plenty.peak_device_bytes.div_ceil(PAGE_BYTES).max(load_pages + 1);
        while pages < PLENTY_BYTES / PAGE_BYTES {
            let tried = self.run(pages * PAGE_BYTES);
            if tried.fits() {
                return (pages, tried);
            }
            pages += (pages / 4).max(1);
        }
        (PLENTY_BYTES.div_ceil(PAGE_BYTES).max(load_pages), plenty)
    }

    fn found(&self, pages: u64, outcome: Outcome) -> Smallest {
        Smallest { capacity_bytes: pages * PAGE_BYTES, outcome, runs: self.runs }
    }
}
