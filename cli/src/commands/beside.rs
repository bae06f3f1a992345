//! A parkade policy as an alternative to PyTorch's settings: its needs for the requests of a recording, in figures and in words, on one
//! device and on all ranks of a job.
//!
//! PyTorch can run on any policy (`parkade.enable(policy=...)`), so a policy is an option like a setting and receives the same requests.
//! For a run that died, these include the request that ended it and the estimated rest. Only failed requests that the run survived are left
//! out. Settings are replayed, whereas policies run as in `parkade sweep`. The two differ in when memory that other streams use becomes
//! available: a policy does not wait for it ([`measure`] says so).

use parkade_analysis::advise::{Advice, CompletedRuns, DeviceMemory, DeviceOutcome, Means, Outcome as Fit, Program};
use parkade_analysis::continuation::Doubt;
use parkade_policies::{ENTRIES, Named, base, named, needs_serial_work};
use parkade_replay::{Operation, Requests};
use parkade_research::study::{Ending, Outcome, PLENTY_BYTES, RunOptions, Smallest, make_for, run, smallest_capacity};
use parkade_research::workload::recorded::{RecordedWorkload, of_requests};

use crate::terminal::json_struct::{Word, view};
use crate::terminal::size::show_bytes;
use crate::terminal::{output, run_words};

/// The policy that decides like PyTorch with expandable_segments:True. It makes settings and policies comparable.
const EXPANDABLE: &str = "pytorch-expandable";

/// The needs of a policy.
#[derive(Clone, PartialEq, Debug)]
pub struct Needs {
    /// Its name.
    policy: String,
    /// Its results on each device.
    devices: Vec<OnDevice>,
    /// The need of expandable_segments:True, measured in the same way, on the device that needs the most.
    expandable_bytes: Option<u64>,
    /// Whether memory that other streams used becomes available later than it was freed.
    has_late_frees: bool,
}

/// Returns the needs of these policies for the requests of an advice, without duplicates.
#[must_use]
pub fn needs(policies: &[Named], advice: &Advice) -> Vec<Needs> {
    if policies.is_empty() {
        return Vec::new();
    }
    let asked = Asked::of(advice);
    let expandable_bytes = named(EXPANDABLE).ok().and_then(|expandable| {
        let mut each = asked.iter().map(|device| device.smallest_bytes(&expandable));
        each.try_fold(0, |most, bytes| Some(most.max(bytes?)))
    });
    let mut needs: Vec<Needs> = Vec::new();
    for policy in policies {
        if needs.iter().all(|known| known.policy != policy.name) {
            needs.push(Needs::of(policy, &asked, expandable_bytes));
        }
    }
    needs
}

/// The policies that advice names besides settings. The first keeps PyTorch's decisions until the run would fail (docs/rescue.md); the
/// second also lends memory to private pools, so it fits in the smallest memory of all (docs/compaction.md).
const OWN_POLICIES: [&str; 2] = ["pytorch-rescue", "compaction"];

/// Returns the needs of parkade's own policy for the requests of an advice, computed unless they are among the known ones: the first
/// policy that gets past the failure, or the first of all.
#[must_use]
pub fn own_policy(advice: &Advice, known: &[Needs]) -> Option<Needs> {
    let asked = Asked::of(advice);
    let needs_of = |name: &str| {
        let known = known.iter().find(|needs| needs.policy == name).cloned();
        known.or_else(|| Some(Needs::of(&named(name).ok()?, &asked, None)))
    };
    let mut each: Vec<Needs> = Vec::new();
    for name in OWN_POLICIES {
        let needs = needs_of(name)?;
        if needs.gets_past() != Some(false) {
            return Some(needs);
        }
        each.push(needs);
    }
    each.into_iter().next()
}

/// Returns whether the policy is one of the catalogue; if not, the program declares it itself.
#[must_use]
pub fn is_in_catalogue(policy: &str) -> bool {
    base(policy) == EXPANDABLE || ENTRIES.iter().any(|entry| entry.name == base(policy))
}

/// Returns the call that runs PyTorch on a policy.
#[must_use]
pub fn enable_call(policy: &str) -> String {
    match policy {
        "pytorch-rescue" => "parkade.enable(rescue=True, serial=True)".to_owned(),
        "pytorch-rescue:reach=free" => "parkade.enable(rescue=\"free\")".to_owned(),
        // The Python package has only the catalogue's policies; the others are in a library of their own.
        own if !is_in_catalogue(own) => format!("parkade.enable(library=..., policy={own:?})"),
        _ => {
            let promise = if needs_serial_work(policy) { ", serial=True" } else { "" };
            format!("parkade.enable(policy={policy:?}{promise})")
        }
    }
}

impl Needs {
    fn of(policy: &Named, asked: &[Asked<'_>], expandable_bytes: Option<u64>) -> Needs {
        let devices = asked.iter().map(|device| device.try_policy(policy)).collect();
        let has_late_frees = asked.iter().any(Asked::has_late_frees);
        Needs { policy: policy.name.to_string(), devices, expandable_bytes, has_late_frees }
    }

    /// Returns the policy's name.
    #[must_use]
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// Returns the outcome: the worst of the devices.
    #[must_use]
    pub fn outcome(&self) -> Fit {
        self.worst().map_or(Fit::Unknown, |device| device.outcome)
    }

    /// Returns whether every request is served in the available memory, if that is known. For a run that died, this includes the estimated
    /// rest.
    #[must_use]
    pub fn fits(&self) -> Option<bool> {
        self.of_all(|figures| Some(figures.at_hand?.fits))
    }

    /// Returns whether every recorded request is served, including the one that ended the run.
    #[must_use]
    pub fn gets_past(&self) -> Option<bool> {
        self.of_all(|figures| Some(figures.at_hand?.fails_at_entry.is_none()))
    }

    /// Returns the smallest memory in which every request is served, on the device that needs the most; `None` if the policy cannot serve
    /// them.
    #[must_use]
    pub fn smallest_bytes(&self) -> Option<u64> {
        self.most(|figures| figures.smallest_bytes)
    }

    /// Returns the truncated runs similar to those that died, for the device where the fewest were completed.
    #[must_use]
    pub fn completes(&self) -> Option<CompletedRuns> {
        CompletedRuns::least(self.devices.iter().filter(|device| device.death.is_some()).map(|device| device.completes))
    }

    fn worst(&self) -> Option<&OnDevice> {
        let order = [Fit::DoesNotFit, Fit::Unknown, Fit::GetsPast, Fit::Fits];
        let spare = |device: &OnDevice| {
            let needed = device.figures.as_ref().ok()?.smallest_bytes;
            Some(i128::from(device.available_bytes.unwrap_or(0)) - i128::from(needed))
        };
        let badness = |device: &&OnDevice| (order.iter().position(|fit| *fit == device.outcome), spare(device));
        self.devices.iter().min_by_key(badness)
    }

    /// Returns whether the condition holds on every device, if it is known for each. A policy that cannot serve the requests fails it.
    fn of_all(&self, is_so: impl Fn(&Figures) -> Option<bool>) -> Option<bool> {
        let of = |device: &OnDevice| device.figures.as_ref().map_or(Some(false), &is_so);
        self.devices.iter().map(of).try_fold(true, |all, so| Some(all && so?))
    }

    fn most(&self, of: impl Fn(&Figures) -> u64) -> Option<u64> {
        self.devices.iter().map(|device| device.figures.as_ref().ok().map(&of)).try_fold(0, |most, one| Some(most.max(one?)))
    }

    fn peak_reserved_bytes(&self) -> Option<u64> {
        self.most(|figures| figures.peak_reserved_bytes)
    }

    fn driver_us(&self) -> Option<u64> {
        self.devices.iter().map(|device| Some(device.figures.as_ref().ok()?.driver_us)).sum()
    }

    fn failed_requests(&self) -> u64 {
        self.devices.iter().map(|device| device.failed_requests).sum()
    }

    fn fails_at_entry(&self) -> Option<usize> {
        self.devices.iter().find_map(|device| device.figures.as_ref().ok()?.at_hand?.fails_at_entry)
    }

    fn why_not(&self) -> Option<&str> {
        self.devices.iter().find_map(|device| device.figures.as_ref().err()).map(String::as_str)
    }
}

view! {
    /// The same as a JSON object.
    pub struct NeedsObject(needs: &Needs) {
        /// The policy's name.
        policy: String = needs.policy.clone(),
        /// The outcome with this policy.
        outcome: Word<Fit> = Word::of(&needs.outcome()),
        /// Whether every request is served in the available memory; null if that is unknown. If the run died, this includes the
        /// estimated rest.
        fits: Option<bool> = needs.fits(),
        /// Whether every recorded request is served in that memory, including the one that ended the run.
        gets_past: Option<bool> = needs.gets_past(),
        /// The first recorded entry whose request is not served.
        fails_at_entry: Option<usize> = needs.fails_at_entry(),
        /// Why the rest of a run that died cannot be estimated.
        doubt: Option<Word<Doubt>> = needs.devices.iter().find_map(|device| device.doubt).as_ref().map(Word::of),
        /// The smallest memory in which every request is served; with several devices, that of the device that needs the most.
        /// Null if the policy does not serve them in any memory.
        smallest_capacity_bytes: Option<u64> = needs.smallest_bytes(),
        /// The smallest memory for `expandable_segments:True`, measured in the same way.
        expandable_smallest_capacity_bytes: Option<u64> = needs.expandable_bytes,
        /// The peak of reserved memory in the available memory. If that is too little, or if it is unknown and the policy takes
        /// a share of all memory: the peak in the smallest memory.
        peak_reserved_bytes: Option<u64> = needs.peak_reserved_bytes(),
        /// The cost of the driver's calls in that case, on all devices.
        driver_us: Option<u64> = needs.driver_us(),
        /// The number of requests that failed in the recording and are left out, because the run did without them.
        failed_requests: u64 = needs.failed_requests(),
        /// Why the policy does not serve the requests, however much memory there is.
        not_served: Option<String> = needs.why_not().map(str::to_owned),
    }
}

/// The requests of a device, and the memory available for them.
struct Asked<'a> {
    program: &'a Program,
    memory: &'a DeviceMemory,
    available_bytes: Option<u64>,
    /// The certain memory: the lower end of the range.
    sure_bytes: Option<u64>,
    recorded: RecordedWorkload,
    options: RunOptions,
}

/// The results of a policy on a device.
#[derive(Clone, PartialEq, Debug)]
struct OnDevice {
    /// The device's number.
    device: u32,
    /// The bytes that may be reserved, if known or assumed.
    available_bytes: Option<u64>,
    /// Whether they are assumed within a range.
    is_assumed: bool,
    /// The entry at which the recorded run died.
    death: Option<usize>,
    /// The number of steps from which the rest is estimated, if it is.
    steps: Option<usize>,
    /// Why the rest is uncertain, if the run died.
    doubt: Option<Doubt>,
    /// The bytes reserved before the first entry, if the oldest entries are missing.
    lost_reserved_bytes: Option<u64>,
    /// The number of failed requests that the run survived.
    failed_requests: u64,
    /// The truncated runs similar to the one that died.
    completes: Option<CompletedRuns>,
    /// The outcome.
    outcome: Fit,
    /// The figures, or the reason why there are none.
    figures: Result<Figures, String>,
}

/// The needs of a policy on a device.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Figures {
    /// How far it gets in the available memory, if that is known.
    at_hand: Option<AtHand>,
    /// The smallest memory in which every request is served.
    smallest_bytes: u64,
    /// The peak of reserved memory.
    peak_reserved_bytes: u64,
    /// Whether it reserves more if more is available; the peak is then that in the smallest memory.
    takes_all: bool,
    /// The cost of driver calls.
    driver_us: u64,
}

/// How far a policy gets in an amount of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct AtHand {
    /// Whether every request is served.
    fits: bool,
    /// The recorded entry that it does not serve; also `None` if it fails only in the estimated rest.
    fails_at_entry: Option<usize>,
}

impl<'a> Asked<'a> {
    /// Returns the requests of every device of an advice.
    fn of(advice: &'a Advice) -> Vec<Asked<'a>> {
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

    /// Returns the smallest memory in which a policy serves them; `None` if it cannot.
    fn smallest_bytes(&self, policy: &Named) -> Option<u64> {
        self.smallest(policy, &[]).ok().map(|smallest| smallest.capacity_bytes)
    }

    /// Returns whether memory that other streams used becomes available later than it was freed.
    fn has_late_frees(&self) -> bool {
        self.recorded.late_frees > 0 || self.recorded.missing_frees > 0
    }

    fn smallest(&self, policy: &Named, given: &[u64]) -> Result<Smallest, Outcome> {
        let make = make_for(policy, &self.recorded.workload);
        smallest_capacity(&self.recorded.workload, &make, &self.options, given)
    }

    /// Runs a policy.
    fn try_policy(&self, policy: &Named) -> OnDevice {
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
            completes: figures
                .as_ref()
                .ok()
                .and_then(|figures| self.program.completes(Means::Policy, figures.smallest_bytes, self.available_bytes)),
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
        // For a run that ends early, the figures cover the part up to its end.
        let shown = Some(&at_hand.0).filter(|outcome| outcome.fits() && !takes_all).unwrap_or(&tight);
        Ok(Figures {
            at_hand: given.map(|_| at_hand.1),
            smallest_bytes: capacity_bytes,
            peak_reserved_bytes: shown.peak_reserved_bytes,
            takes_all,
            driver_us: shown.driver_ns / 1000,
        })
    }

    /// Runs a policy in this much memory, and returns how far it gets.
    fn within(&self, policy: &Named, bytes: u64) -> (Outcome, AtHand) {
        let make = make_for(policy, &self.recorded.workload);
        let outcome = run(&self.recorded.workload, make(), &self.options.with_capacity(bytes));
        let fails_at_entry = self.entry_of(&outcome).filter(|&entry| self.program.is_recorded(entry));
        let at_hand = AtHand { fits: outcome.fits(), fails_at_entry };
        (outcome, at_hand)
    }

    /// Returns the entry of the request at which a run ended early.
    fn entry_of(&self, outcome: &Outcome) -> Option<usize> {
        let entries = &self.recorded.entries;
        outcome.failed_at_event.and_then(|event| entries.get(event)).map(|&entry| entry as usize)
    }

    /// Says why a policy does not serve the requests with plenty of memory.
    fn why_not(&self, outcome: &Outcome) -> String {
        let why = match &outcome.ending {
            Ending::Fault(fault) => fault.clone(),
            Ending::Fits | Ending::OutOfMemory => "it runs out of memory".to_owned(),
        };
        match self.entry_of(outcome) {
            Some(entry) if self.program.is_recorded(entry) => format!("{why} at entry {entry}"),
            _ => why,
        }
    }

    fn lost_reserved_bytes(&self) -> Option<u64> {
        self.program.requests.lost_beginning.map(|lost| lost.reserved_bytes)
    }

    /// Returns why the rest of a run that died is in doubt.
    fn doubt(&self, figures: &Figures) -> Option<Doubt> {
        let free = self.sure_bytes.unwrap_or(0).saturating_sub(figures.smallest_bytes);
        Doubt::about(self.program.continuation.as_ref(), free).filter(|_| self.program.died())
    }

    /// Returns the outcome by the rules for settings. `sure` is how far it gets at the lower end of the range, if that is less.
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

/// Returns whether its private pools belong to MemPools, which release their cached memory at their end.
fn destroys_pools(requests: &Requests) -> bool {
    requests.operations.iter().any(|(_, operation)| matches!(operation, Operation::ReleasePool(_)))
}

/// How the measurement of policies differs from that of settings.
const MEASURE: &str = "policies are measured differently from settings: memory that other streams still used when it was freed \
                       becomes available where it did in the recording, and a policy that runs short of memory does not wait \
                       for it";

impl Needs {
    /// Describes the needs in words.
    #[must_use]
    pub fn words(&self) -> String {
        let does = match self.worst() {
            Some(device) => self.of_device(device),
            None => String::new(),
        };
        format!("with {} instead of settings: {does}{}", self.call(), self.left_out())
    }

    /// Returns the call that runs a program on the policy.
    #[must_use]
    pub fn call(&self) -> String {
        enable_call(&self.policy)
    }

    /// Describes the result on the worst device, and the need there.
    fn of_device(&self, device: &OnDevice) -> String {
        let is_one_of_many = self.devices.len() > 1;
        let on = if is_one_of_many { format!("on device {} it ", device.device) } else { "it ".to_owned() };
        let figures = match &device.figures {
            Ok(figures) => figures,
            Err(why) => return format!("{on}cannot serve these requests, however much memory there is: {why}"),
        };
        let fit = figures.at_hand.map_or_else(|| on.clone(), |at_hand| device.fit(figures, at_hand, &on));
        let in_it =
            if figures.takes_all { "; it takes a share of the device's entire memory, and with that much it" } else { "," };
        format!(
            "{fit}needs at least {}{in_it} reserves at most {} and spends {:.1} ms in driver calls",
            show_bytes(figures.smallest_bytes),
            show_bytes(figures.peak_reserved_bytes),
            figures.driver_us as f64 / 1000.0
        )
    }

    fn left_out(&self) -> String {
        match self.failed_requests() {
            0 => String::new(),
            1 => "; 1 request whose failure the recorded run survived is left out".to_owned(),
            count => format!("; {count} requests whose failure the recorded run survived are left out"),
        }
    }
}

impl OnDevice {
    /// Says whether it fits, as the beginning of a sentence on its needs. `on` names the device if there are several.
    fn fit(&self, figures: &Figures, at_hand: AtHand, on: &str) -> String {
        let assumed = self.available_bytes.filter(|_| self.is_assumed);
        let assumed = assumed.map_or_else(String::new, |bytes| format!("in the assumed {}, ", show_bytes(bytes)));
        let cut = if self.lost_reserved_bytes.is_some() { "judging by what is in the file, " } else { "" };
        let does = match self.death {
            Some(death) => self.past(death, figures, at_hand),
            None if at_hand.fits => format!("fits{}, ", self.hidden()),
            None if self.is_enough(figures) => "does not fit, although it fits in less memory, ".to_owned(),
            None => "does not fit, ".to_owned(),
        };
        format!("{assumed}{cut}{on}{does}")
    }

    /// Returns whether it fits in less memory than is available. More memory is not always better.
    fn is_enough(&self, figures: &Figures) -> bool {
        self.available_bytes.is_some_and(|available| figures.smallest_bytes <= available)
    }

    /// Says that the run had reserved more before its first entry than is available.
    fn hidden(&self) -> String {
        let hidden =
            self.lost_reserved_bytes.filter(|&reserved| self.available_bytes.is_some_and(|available| reserved > available));
        hidden.map_or_else(String::new, run_words::had_before)
    }

    /// Says whether it gets past the entry where the run died, and what is known about the rest.
    fn past(&self, death: usize, figures: &Figures, at_hand: AtHand) -> String {
        match at_hand.fails_at_entry {
            Some(entry) if entry == death => return format!("does not get past entry {death}, where the run died; it "),
            Some(entry) => return format!("does not get past entry {death}, where the run died: it fails at entry {entry}; it "),
            None => {}
        }
        if let (Fit::Fits, Some(steps)) = (self.outcome, self.steps) {
            let steps = output::count(steps, "step");
            return format!("fits, judging by {steps}, all consistent, ");
        }
        let rest = match (at_hand.fits, self.doubt) {
            (false, _) if self.is_enough(figures) => " and is estimated to fail, although it fits in less memory".to_owned(),
            (false, _) => {
                let need = show_bytes(figures.smallest_bytes);
                format!(" and is estimated to need {need}, more than is available")
            }
            (true, Some(doubt)) => format!(", and {}", run_words::doubt(doubt)),
            (true, None) => String::new(),
        };
        format!("gets past entry {death}, where the run died; the rest is not in the file{rest}; it ")
    }
}

/// Says how the figures of policies compare with those of settings.
#[must_use]
pub fn measure(needs: &[Needs]) -> Option<String> {
    let Needs { expandable_bytes, has_late_frees, .. } = needs.first()?;
    let bytes = expandable_bytes.map(show_bytes);
    match (has_late_frees, bytes) {
        (true, Some(bytes)) => Some(format!("{MEASURE}; measured this way, expandable_segments:True needs {bytes}")),
        (true, None) => Some(MEASURE.to_owned()),
        (false, Some(bytes)) => Some(format!("measured as the policies are, expandable_segments:True needs {bytes}")),
        (false, None) => None,
    }
}

/// A policy on all ranks.
pub struct OnRanks {
    policy: String,
    /// The call that runs a program on it.
    call: String,
    /// The number of ranks on which it was tried.
    tried: usize,
    /// The outcome of the worst rank.
    outcome: Fit,
    /// The ranks with this outcome.
    worst_ranks: Vec<u64>,
    /// The rank that needs the most, and how much; `None` if it cannot serve some rank, however much memory there is.
    needs_most: Option<(u64, u64)>,
    /// Whether the memory of any rank is known or assumed.
    is_asked: bool,
}

impl OnRanks {
    /// Combines the needs of each named policy on all ranks, which may be in any order.
    #[must_use]
    pub fn of<'a>(on_each: impl Iterator<Item = (u64, &'a [Needs])>) -> Vec<OnRanks> {
        let mut on_each: Vec<(u64, &[Needs])> = on_each.collect();
        on_each.sort_by_key(|&(rank, _)| rank);
        // The same policies were named for all ranks.
        let policies = on_each.first().map_or(0, |(_, needs)| needs.len());
        (0..policies).filter_map(|place| OnRanks::of_one(&on_each, place)).collect()
    }

    fn of_one(on_each: &[(u64, &[Needs])], place: usize) -> Option<OnRanks> {
        let on_each: Vec<(u64, &Needs)> = on_each.iter().filter_map(|(rank, needs)| Some((*rank, needs.get(place)?))).collect();
        let (_, first) = on_each.first()?;
        let order = [Fit::DoesNotFit, Fit::Unknown, Fit::GetsPast, Fit::Fits];
        let outcome = order.into_iter().find(|fit| on_each.iter().any(|(_, needs)| needs.outcome() == *fit))?;
        let bytes: Option<Vec<(u64, u64)>> = on_each.iter().map(|(rank, needs)| Some((*rank, needs.smallest_bytes()?))).collect();
        Some(OnRanks {
            policy: first.policy().to_owned(),
            call: first.call(),
            tried: on_each.len(),
            outcome,
            worst_ranks: on_each.iter().filter(|(_, needs)| needs.outcome() == outcome).map(|(rank, _)| *rank).collect(),
            needs_most: bytes.and_then(|bytes| bytes.into_iter().max_by_key(|&(_, bytes)| bytes)),
            is_asked: on_each.iter().any(|(_, needs)| needs.fits().is_some()),
        })
    }

    /// Returns the ranks with the worst outcome.
    #[must_use]
    pub fn worst_ranks(&self) -> &[u64] {
        &self.worst_ranks
    }

    /// Describes the result in words; `worst` names the [`worst_ranks`](Self::worst_ranks).
    #[must_use]
    pub fn words(&self, worst: &str) -> String {
        let is_one = self.worst_ranks.len() == 1;
        let does = match self.outcome {
            Fit::Fits => format!("all {} ranks fit", self.tried),
            Fit::GetsPast if is_one => format!("{worst} gets past its failure, where its file ends"),
            Fit::GetsPast => format!("{worst} get past their failures, where their files end"),
            Fit::DoesNotFit if is_one => format!("{worst} fails"),
            Fit::DoesNotFit => format!("{worst} fail"),
            Fit::Unknown if self.is_asked => format!("not known whether {worst} fit{}", if is_one { "s" } else { "" }),
            Fit::Unknown => "every rank is served".to_owned(),
        };
        let most = match self.needs_most {
            Some((rank, bytes)) => format!("rank {rank} needs the most, {}", show_bytes(bytes)),
            None => "it cannot serve every rank, however much memory there is".to_owned(),
        };
        format!("with {} instead of one setting: {does}; {most}", self.call)
    }
}

view! {
    /// The same as a JSON object.
    pub struct OnRanksObject(found: &OnRanks) {
        /// The policy's name.
        policy: String = found.policy.clone(),
        /// The worst rank's outcome.
        outcome: Word<Fit> = Word::of(&found.outcome),
        /// The ranks with this outcome.
        worst_ranks: Vec<u64> = found.worst_ranks.clone(),
        /// The smallest memory in which every rank is served; null if one is not served in any memory.
        smallest_capacity_bytes: Option<u64> = found.needs_most.map(|(_, bytes)| bytes),
        /// The rank that needs that much.
        needs_most_rank: Option<u64> = found.needs_most.map(|(rank, _)| rank),
    }
}
