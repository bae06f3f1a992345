//! What a policy does with the requests of one device.
//!
//! They are those that settings are tried with: of a run that died, the request that ended it counts as one to serve, and what is
//! estimated of the rest follows. Only requests that failed and that the run did without are left out.

use parkade_analysis::advise::{Advice, DeviceMemory, DeviceOutcome, Outcome as Fit, Program};
use parkade_analysis::continuation::Doubt;
use parkade_policies::Named;
use parkade_replay::{Operation, Requests};
use parkade_research::study::{Ending, Outcome, PLENTY_BYTES, RunOptions, Smallest, make_for, run, smallest_capacity};
use parkade_research::workload::recorded::{RecordedWorkload, of_requests};

/// The requests of a device, and the memory that there is for them.
pub(super) struct Asked<'a> {
    program: &'a Program,
    memory: &'a DeviceMemory,
    available_bytes: Option<u64>,
    /// What there is for certain: the least that was possible.
    sure_bytes: Option<u64>,
    recorded: RecordedWorkload,
    options: RunOptions,
}

/// How a policy fares on a device.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct OnDevice {
    /// The device's number.
    pub(super) device: u32,
    /// What may be reserved, if known or assumed.
    pub(super) available_bytes: Option<u64>,
    /// Whether that is assumed, in a range in which it was.
    pub(super) is_assumed: bool,
    /// The entry of which the recorded run died.
    pub(super) death: Option<usize>,
    /// So many steps are what its rest is estimated from, if it is.
    pub(super) steps: Option<usize>,
    /// Why nothing is sure of that rest, if it died.
    pub(super) doubt: Option<Doubt>,
    /// What the run had reserved before the first entry, if the recording lost its beginning.
    pub(super) lost_reserved_bytes: Option<u64>,
    /// Requests that failed in the recording and that the run did without.
    pub(super) failed_requests: u64,
    /// What it comes to.
    pub(super) outcome: Fit,
    /// The figures, or why there are none.
    pub(super) figures: Result<Figures, String>,
}

/// What a policy needs on a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Figures {
    /// How it fares in the memory that there is, if that is known.
    pub(super) at_hand: Option<AtHand>,
    /// The least memory in which every request is served.
    pub(super) smallest_bytes: u64,
    /// The most that is reserved.
    pub(super) peak_reserved_bytes: u64,
    /// Whether it reserves more if there is more, so that the peak is that in the least memory.
    pub(super) takes_all: bool,
    /// What driver calls cost.
    pub(super) driver_us: u64,
}

/// How far a policy comes in an amount of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct AtHand {
    /// Whether every request is served.
    pub(super) fits: bool,
    /// The recorded entry that it does not serve. `None` too if it fails only in what is estimated of the rest.
    pub(super) fails_at_entry: Option<usize>,
}

impl<'a> Asked<'a> {
    /// The requests of every device on which there is advice.
    pub(super) fn of(advice: &'a Advice) -> Vec<Asked<'a>> {
        let devices = advice.programs.iter().zip(&advice.memories).zip(&advice.own().devices);
        let of = |((program, memory), own): ((&'a Program, &'a DeviceMemory), &DeviceOutcome)| Asked {
            program,
            memory,
            available_bytes: own.available_bytes,
            sure_bytes: own.sure_bytes,
            recorded: of_requests("recording", &program.requests),
            options: RunOptions { destroys_pools: destroys_pools(&program.requests), ..RunOptions::plenty() },
        };
        devices.map(of).collect()
    }

    /// The least memory in which a policy serves them; `None` if it does not.
    pub(super) fn smallest_bytes(&self, policy: &Named) -> Option<u64> {
        self.smallest(policy, &[]).ok().map(|smallest| smallest.capacity_bytes)
    }

    /// Whether memory that other streams used comes back later than it was freed.
    pub(super) fn has_late_frees(&self) -> bool {
        self.recorded.late_frees > 0 || self.recorded.missing_frees > 0
    }

    fn smallest(&self, policy: &Named, given: &[u64]) -> Result<Smallest, Outcome> {
        let make = make_for(policy, &self.recorded.workload);
        smallest_capacity(&self.recorded.workload, &make, &self.options, given)
    }

    /// How a policy fares.
    pub(super) fn try_policy(&self, policy: &Named) -> OnDevice {
        let figures = self.figures(policy);
        let is_sure = self.sure_bytes == self.available_bytes;
        let sure = self.sure_bytes.filter(|_| !is_sure && figures.is_ok()).map(|sure| self.within(policy, sure).1);
        let doubt = figures.as_ref().ok().and_then(|figures| self.doubt(figures));
        OnDevice {
            device: self.program.device,
            available_bytes: self.available_bytes,
            is_assumed: self.memory.range.is_some(),
            death: self.program.ending.death().map(|death| death.entry),
            steps: self.program.continuation.as_ref().map(|rest| rest.steps),
            doubt,
            lost_reserved_bytes: self.lost_reserved_bytes(),
            failed_requests: self.recorded.failed_requests,
            outcome: self.outcome(&figures, sure, doubt),
            figures,
        }
    }

    fn figures(&self, policy: &Named) -> Result<Figures, String> {
        let given = self.available_bytes;
        let Smallest { capacity_bytes, outcome: tight, .. } =
            self.smallest(policy, given.as_slice()).map_err(|outcome| self.why_not(&outcome))?;
        let (at_hand, takes_all) = match given {
            Some(available) => (self.within(policy, available), false),
            None => {
                let plenty = self.within(policy, PLENTY_BYTES);
                let half = self.within(policy, PLENTY_BYTES / 2);
                let takes_all = plenty.0.peak_reserved_bytes != half.0.peak_reserved_bytes;
                (plenty, takes_all)
            }
        };
        // Of a run that ends early, the figures are those up to its end.
        let shown = Some(&at_hand.0).filter(|outcome| outcome.fits() && !takes_all).unwrap_or(&tight);
        Ok(Figures {
            at_hand: given.map(|_| at_hand.1),
            smallest_bytes: capacity_bytes,
            peak_reserved_bytes: shown.peak_reserved_bytes,
            takes_all,
            driver_us: shown.driver_ns / 1000,
        })
    }

    /// A run in so much memory, and how far it comes.
    fn within(&self, policy: &Named, bytes: u64) -> (Outcome, AtHand) {
        let make = make_for(policy, &self.recorded.workload);
        let outcome = run(&self.recorded.workload, make(), &self.options.with_capacity(bytes));
        let fails_at_entry = self.entry_of(&outcome).filter(|&entry| self.program.is_recorded(entry));
        let at_hand = AtHand { fits: outcome.fits(), fails_at_entry };
        (outcome, at_hand)
    }

    /// The entry of the request at which a run ended early.
    fn entry_of(&self, outcome: &Outcome) -> Option<usize> {
        let entries = &self.recorded.entries;
        outcome.failed_at_event.and_then(|event| entries.get(event)).map(|&entry| entry as usize)
    }

    /// Why a policy does not serve the requests with plenty of memory.
    fn why_not(&self, outcome: &Outcome) -> String {
        let why = match &outcome.ending {
            Ending::Fault(fault) => fault.clone(),
            Ending::Fits | Ending::OutOfMemory => "it finds no memory".to_owned(),
        };
        match self.entry_of(outcome) {
            Some(entry) if self.program.is_recorded(entry) => format!("{why} at entry {entry}"),
            _ => why,
        }
    }

    fn lost_reserved_bytes(&self) -> Option<u64> {
        self.program.requests.lost_beginning.map(|lost| lost.reserved_bytes)
    }

    /// Why the rest of a run that died is in doubt.
    fn doubt(&self, figures: &Figures) -> Option<Doubt> {
        let free = self.sure_bytes.unwrap_or(0).saturating_sub(figures.smallest_bytes);
        Doubt::about(self.program.continuation.as_ref(), free).filter(|_| self.program.died())
    }

    /// What it comes to, judged as settings are. `sure` is how far it comes in the least memory that was possible, if that is less.
    fn outcome(&self, figures: &Result<Figures, String>, sure: Option<AtHand>, doubt: Option<Doubt>) -> Fit {
        let Ok(figures) = figures else { return Fit::DoesNotFit };
        let (Some(at_hand), Some(available)) = (figures.at_hand, self.available_bytes) else { return Fit::Unknown };
        let gets_past = |at_hand: AtHand| at_hand.fails_at_entry.is_none();
        if !gets_past(at_hand) {
            let is_short = self.memory.range.is_none_or(|range| self.program.live.bytes >= range.below_bytes);
            return if is_short { Fit::DoesNotFit } else { Fit::Unknown };
        }
        let hides_more = self.lost_reserved_bytes().is_some_and(|reserved| reserved > available);
        if hides_more || !sure.is_none_or(gets_past) {
            return Fit::Unknown;
        }
        let fits = at_hand.fits && sure.is_none_or(|sure| sure.fits);
        if fits && (!self.program.died() || doubt.is_none()) { Fit::Fits } else { Fit::GetsPast }
    }
}

/// Whether its private pools are those of MemPools, whose end gives their cached memory back.
fn destroys_pools(requests: &Requests) -> bool {
    requests.operations.iter().any(|(_, operation)| matches!(operation, Operation::ReleasePool(_)))
}
