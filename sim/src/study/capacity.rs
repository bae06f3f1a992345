//! The least memory in which a program fits.

use parkade::policy::Policy;

use super::options::{PLENTY_BYTES, RunOptions};
use super::run::{Outcome, run};
use crate::device::PAGE_BYTES;
use crate::workload::Workload;

/// Sizes are found to this part of the load, or to one page if that is more.
const PRECISION: u64 = 256;
/// Requests count as rounded up to this many bytes in the load: as for the offline packer.
pub const LOAD_UNIT_BYTES: u64 = 512;

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

/// Searches the least memory of a device in which a program fits under the policies that `make` makes. The capacity in `options` does not
/// count.
///
/// It is a bisection over capacities of LOAD, LOAD + s, LOAD + 2s and so on, up to what the program takes on a device with plenty. LOAD
/// is the most bytes that live at once, each request rounded up to 512 bytes, in whole pages of 2 MiB; the step s is 1/256 of it, at
/// least a page. All policies are measured on these same capacities, so that what is equal comes out equal.
///
/// Fitting need not be monotone: a policy that gives memory back early where memory is short can fit in less than it fits in with a
/// little more. So what is found is *a* border: it fits in what is returned, and does not in one step less, unless what is returned is
/// the load itself. Capacities further below that were not tried may suffice.
///
/// # Errors
/// The run with plenty, if the program does not fit there either: the policy gave up for another reason.
pub fn smallest_capacity(
    workload: &Workload,
    make: &dyn Fn() -> Box<dyn Policy + Send>,
    options: &RunOptions,
) -> Result<Smallest, Outcome> {
    let load_pages = workload.load_bytes(LOAD_UNIT_BYTES).div_ceil(PAGE_BYTES).max(1);
    let step_pages = (load_pages / PRECISION).max(1);
    let mut search = Search { workload, make, options, load_pages, step_pages, runs: 0 };
    let plenty = search.run(PLENTY_BYTES);
    if !plenty.fits() {
        return Err(plenty);
    }
    let load = search.run(search.capacity(0));
    if load.fits() {
        return Ok(search.found(0, load));
    }
    let (mut enough, mut outcome) = search.upper_end(plenty);
    let mut short = 0;
    while enough - short > 1 {
        let middle = short + (enough - short) / 2;
        let tried = search.run(search.capacity(middle));
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
    load_pages: u64,
    step_pages: u64,
    runs: u32,
}

impl Search<'_> {
    /// The capacity so many steps above the load.
    fn capacity(&self, steps: u64) -> u64 {
        (self.load_pages + steps * self.step_pages) * PAGE_BYTES
    }

    fn run(&mut self, capacity_bytes: u64) -> Outcome {
        self.runs += 1;
        run(self.workload, (self.make)(), &self.options.with_capacity(capacity_bytes))
    }

    /// Steps that suffice. What was taken with plenty does for most policies; those that look at how much there is may need more there.
    fn upper_end(&mut self, plenty: Outcome) -> (u64, Outcome) {
        let taken_pages = plenty.peak_device_bytes.div_ceil(PAGE_BYTES);
        let mut steps = taken_pages.saturating_sub(self.load_pages).div_ceil(self.step_pages).max(1);
        while self.capacity(steps) < PLENTY_BYTES {
            let tried = self.run(self.capacity(steps));
            if tried.fits() {
                return (steps, tried);
            }
            steps += (steps / 4).max(1);
        }
        (steps, plenty)
    }

    fn found(&self, steps: u64, outcome: Outcome) -> Smallest {
        Smallest { capacity_bytes: self.capacity(steps), outcome, runs: self.runs }
    }
}
