//! How fast the recorded program and its GPU went: what the times of the entries say.
//!
//! The entries of a request carry the time at which the allocator was done with it. So the time between two
//! operations was the program's own, except for what the driver took in calls that the entries show and for the
//! allocator's waiting before it gave memory back. Work on other streams was done between the last request
//! that did not see it done and the one that did.
//!
//! Times are nanoseconds since the first entry and grow with each operation, so that no two are the same.

use std::collections::BTreeMap;

use parkade_recording::{Action, Entry};
use parkade_sim::{CallName, CostModel, MeasuredH200};

use super::operation::{Completion, Operation};
use crate::entries::{gives_memory, is_inner, is_request, takes_memory};

/// A gap this many times as long as usual is a wait.
const LONG: u64 = 10;
/// No gap shorter than this is a wait.
const SHORTEST_WAIT_NS: u64 = 100_000;
/// Of so many completions the usual lag is the median.
const RECENT: usize = 9;
/// A trace that spans more time, 52 days, does not say how fast a program went, and products of its times could exceed 64 bits.
const LONGEST_NS: u64 = 1 << 52;
/// The times say something only if at least each so many entries, on average, have another one.
const LEAST_CHANGES: usize = 10;
/// More memory than any device has.
const LARGEST_BYTES: u64 = 1 << 42;
const LARGE_PAGE: u64 = 20 << 20;
const SMALL_PAGE: u64 = 2 << 20;

/// One operation of a recorded run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Step {
    /// The program's own time before it.
    pub own_ns: u64,
    /// When it began. The allocator looks at once which events are complete.
    pub began_ns: u64,
    /// How long the allocator took, with the driver and what it waited for.
    pub allocator_ns: u64,
    /// Bytes taken from the device.
    pub taken_bytes: u64,
    /// Bytes given back to the device.
    pub given_bytes: u64,
    /// When the GPU had no work left, if the step shows that: the program or the allocator waited for it.
    pub drained_ns: Option<u64>,
    /// Whether the program waited for the GPU before it.
    pub has_waited: bool,
    /// If it is a free that waited: not before this was the work done, ...
    pub done_after_ns: u64,
    /// ... and before this.
    pub done_before_ns: u64,
}

impl Step {
    fn end_ns(&self) -> u64 {
        self.began_ns + self.allocator_ns
    }
}

/// The pace of a recorded run: its operations in time.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    pub(crate) steps: Vec<Step>,
    /// How long the program waits for the GPU at least.
    pub(crate) wait_ns: u64,
    /// What taking memory cost, in permille of the simulated device's prices.
    pub(crate) driver_permille: u64,
    /// How long requests waited for memory to be given back.
    pub(crate) held_up_ns: u64,
}

/// What remains uncertain of a peak beside the time that everything takes, in permille: what half of the simulated
/// programs of `examples/timing` showed.
const UNCERTAIN_PERMILLE: u64 = 40;
/// How much more for each part of the time that the recorded program was held up, in which nothing shows how far
/// ahead of its GPU it would have been: by so many permille if that is all the time.
const HELD_UP_PERMILLE: u64 = 160;
/// If it was held up for more than this part of the time, its times do not say what it would have done otherwise.
const MOST_HELD_UP_PERMILLE: u64 = 100;

impl Pace {
    /// How far a peak may be outside the peaks of likely runs, in permille; `None` if the recorded run was held up so
    /// much that no run is likely.
    pub(crate) fn uncertain_permille(&self) -> Option<u64> {
        let all = self.steps.last().map_or(0, Step::end_ns).max(1);
        let held_up = (u128::from(self.held_up_ns.min(all)) * 1000 / u128::from(all)) as u64;
        (held_up <= MOST_HELD_UP_PERMILLE).then_some(UNCERTAIN_PERMILLE + HELD_UP_PERMILLE * held_up / 1000)
    }

    /// `None` if an entry has no time, no free waited, or the times cannot be those of one run.
    pub(crate) fn of(trace: &[Entry], operations: &[(usize, Operation)]) -> Option<Pace> {
        let waits = |operation: &Operation| matches!(operation, Operation::Free { completion: Completion::AtEntry(_), .. });
        if !operations.iter().any(|(_, operation)| waits(operation)) {
            return None;
        }
        let mut reader = Reader::of(trace)?;
        for &(at, operation) in operations {
            reader.read(at, operation);
        }
        Some(reader.pace())
    }
}

fn median(values: &mut [u64]) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

struct Reader<'a> {
    trace: &'a [Entry],
    /// By entry.
    times_ns: Vec<u64>,
    /// The usual gap before a request.
    usual_ns: u64,
    /// What an entry that takes memory usually cost.
    take_ns: u64,
    pace: Pace,
    /// The first entry that is not read yet.
    next: usize,
    /// When the allocator last looked for complete events.
    looked_ns: u64,
    /// Frees that wait, by the entry at which they complete.
    waiting: BTreeMap<usize, usize>,
    lags_ns: [u64; RECENT],
    lags: usize,
    /// The longest of the program's own times since the last request.
    longest: usize,
}

impl<'a> Reader<'a> {
    fn of(trace: &'a [Entry]) -> Option<Reader<'a>> {
        let first = trace.first()?.time()?;
        let mut times_ns = Vec::with_capacity(trace.len());
        let mut last = 0;
        for entry in trace {
            // Entries of several threads may be a little out of order.
            last = entry.time()?.saturating_sub(first).saturating_mul(1000).max(last);
            times_ns.push(last);
        }
        // Of files that a program wrote, two thirds; of those with one time for all, or with seconds, next to none.
        let changes = times_ns.windows(2).filter(|pair| pair[0] < pair[1]).count();
        if last > LONGEST_NS || changes < trace.len() / LEAST_CHANGES {
            return None;
        }
        let (mut plain, mut taking) = (Vec::new(), Vec::new());
        for (at, pair) in trace.windows(2).enumerate() {
            let gap = times_ns[at + 1] - times_ns[at];
            if is_request(&pair[1]) && !is_inner(&pair[0]) {
                plain.push(gap);
            } else if takes_memory(&pair[1]) {
                taking.push((gap, price_ns(&pair[1])));
            }
        }
        let usual_ns = median(&mut plain);
        let mut ratios: Vec<u64> =
            taking.iter().map(|&(gap, price)| gap.saturating_sub(usual_ns).saturating_mul(1000) / price.max(1)).collect();
        let mut costs: Vec<u64> = taking.iter().map(|&(gap, _)| gap.saturating_sub(usual_ns)).collect();
        let driver_permille = if ratios.is_empty() { 1000 } else { median(&mut ratios).clamp(500, 50_000) };
        let wait_ns = (LONG * usual_ns).max(SHORTEST_WAIT_NS);
        Some(Reader {
            trace,
            times_ns,
            usual_ns,
            take_ns: median(&mut costs),
            pace: Pace { wait_ns, driver_permille, ..Pace::default() },
            next: 0,
            looked_ns: 0,
            waiting: BTreeMap::new(),
            lags_ns: [0; RECENT],
            lags: 0,
            longest: 0,
        })
    }

    fn read(&mut self, at: usize, operation: Operation) {
        let last = self.trace.len() - 1;
        let inner = match operation {
            Operation::Allocate { .. } => {
                let from = (self.next..at).rev().take_while(|&place| is_inner(&self.trace[place])).last().unwrap_or(at);
                self.next = self.next.max(at + 1);
                from..at
            }
            Operation::EmptyCache | Operation::ReleasePool(_) => {
                let from = at.max(self.next);
                let is_of_it = |entry: &&Entry| is_inner(entry) && !takes_memory(entry);
                self.next = from + self.trace.iter().skip(from).take_while(is_of_it).count();
                from..self.next
            }
            Operation::Free { completion, .. } => {
                self.next = self.next.max(at + 1 + usize::from(completion == Completion::AtOnce));
                at..at
            }
            Operation::AbandonPool(_) => at..at,
        };
        let end = if inner.is_empty() || matches!(operation, Operation::Allocate { .. }) { at } else { inner.end - 1 };
        let previous = self.pace.steps.last().map_or(0, Step::end_ns);
        let end_ns = self.times_ns[end.min(last)].max(previous + 2);
        let (allocator_ns, drained_ns, waits_from) = self.of_allocator(&inner, end_ns);
        let allocator_ns = allocator_ns.min(end_ns - previous - 1);
        let began_ns = end_ns - allocator_ns;
        let sum = |counts: &dyn Fn(&Entry) -> bool| {
            self.trace[inner.clone()].iter().filter(|entry| counts(entry)).map(|entry| entry.size).fold(0, u64::saturating_add)
        };
        let step = Step {
            own_ns: began_ns - previous,
            began_ns,
            allocator_ns,
            taken_bytes: sum(&takes_memory),
            given_bytes: sum(&gives_memory),
            drained_ns: drained_ns.map(|ns| ns.clamp(began_ns, end_ns)),
            has_waited: false,
            done_after_ns: end_ns,
            done_before_ns: end_ns + 1,
        };
        let number = self.pace.steps.len();
        if self.pace.steps.get(self.longest).is_none_or(|longest| longest.own_ns <= step.own_ns) {
            self.longest = number;
        }
        if let Operation::Free { completion: Completion::AtEntry(entry), .. } = operation {
            self.waiting.insert(entry as usize, number);
        }
        self.pace.steps.push(step);
        if !inner.is_empty() || matches!(operation, Operation::Allocate { .. }) {
            self.complete(&inner, waits_from, began_ns, end_ns);
        }
        if matches!(operation, Operation::Allocate { .. }) {
            self.pace.held_up_ns += if step.given_bytes > 0 { allocator_ns } else { 0 };
            self.looked_ns = began_ns;
            self.longest = number + 1;
        }
    }

    /// How long the allocator took in these entries, when the GPU was drained, and from which entry on
    /// completions are of the allocator's waiting.
    fn of_allocator(&self, inner: &std::ops::Range<usize>, end_ns: u64) -> (u64, Option<u64>, usize) {
        let gap = |at: usize| if at == 0 { 0 } else { self.times_ns[at] - self.times_ns[at - 1] };
        let last_giving = inner.clone().rev().find(|&at| gives_memory(&self.trace[at]));
        let starts_call = |at: &usize| {
            !takes_or_gives(&self.trace[*at]) && last_giving.is_some_and(|giving| *at < giving) && gap(*at) > self.pace.wait_ns
        };
        let Some(from) = inner.clone().find(|at| takes_or_gives(&self.trace[*at]) || starts_call(at)) else {
            return (0, None, inner.end);
        };
        let before = gap(from).saturating_sub(if from == inner.start { self.usual_ns } else { 0 });
        let waited = last_giving.is_some_and(|giving| giving >= from) && !takes_memory(&self.trace[from]);
        let before = if waited { before } else { before.min(2 * self.take_ns) };
        let drained = inner.clone().find(|&at| gives_memory(&self.trace[at])).map(|at| self.times_ns[at]);
        (end_ns - self.times_ns[from].min(end_ns) + before, drained, from)
    }

    /// Notes which work was seen done at the entries of the last step.
    fn complete(&mut self, inner: &std::ops::Range<usize>, waits_from: usize, began_ns: u64, end_ns: u64) {
        let mut lags = self.lags_ns;
        let usual_lag = median(&mut lags[..self.lags]);
        let split = waits_from.clamp(inner.start, inner.end);
        self.complete_between(inner.start..split, self.looked_ns, began_ns);
        let is_idle = self.waiting.is_empty();
        self.complete_between(split..inner.end, began_ns, end_ns);
        // Nothing is pending after a time of the program's own in which the GPU could do what it usually has to do.
        if is_idle
            && let Some(step) = self.pace.steps.get_mut(self.longest)
            && step.own_ns >= self.pace.wait_ns.max(usual_lag / 4)
        {
            step.has_waited = true;
            step.drained_ns = step.drained_ns.or(Some(step.began_ns));
        }
    }

    /// Spreads the work seen done at these entries over the time in which it was done. Returns how many pieces.
    fn complete_between(&mut self, entries: std::ops::Range<usize>, after_ns: u64, before_ns: u64) -> usize {
        let frees: Vec<usize> = entries.filter_map(|entry| self.waiting.remove(&entry)).collect();
        let count = frees.len() as u64;
        for (place, &free) in frees.iter().enumerate() {
            let place = place as u64;
            let step = &mut self.pace.steps[free];
            let after = after_ns.max(step.end_ns());
            let within = before_ns.saturating_sub(after);
            step.done_after_ns = after + within * place / count;
            step.done_before_ns = (after + within * (place + 1) / count).max(step.done_after_ns + 1);
            let lag = before_ns.saturating_sub(step.end_ns());
            self.lags_ns.rotate_right(1);
            self.lags_ns[0] = lag;
            self.lags = (self.lags + 1).min(RECENT);
        }
        frees.len()
    }

    fn pace(mut self) -> Pace {
        // What the last requests did not see done.
        let end = self.pace.steps.last().map_or(0, Step::end_ns) + 1;
        for free in self.waiting.into_values() {
            let step = &mut self.pace.steps[free];
            step.done_after_ns = self.looked_ns.max(step.end_ns());
            step.done_before_ns = end.max(step.done_after_ns + 1);
        }
        self.pace
    }
}

fn takes_or_gives(entry: &Entry) -> bool {
    takes_memory(entry) || gives_memory(entry)
}

/// The simulated device's price of what an entry that takes memory did.
fn price_ns(entry: &Entry) -> u64 {
    let size = entry.size.min(LARGEST_BYTES);
    if entry.action == Action::SegmentAlloc {
        return MeasuredH200.cost_ns(CallName::Malloc, size);
    }
    // Expandable segments grow by pages of 20 MiB, or of 2 MiB for small requests.
    let page = if size.is_multiple_of(LARGE_PAGE) { LARGE_PAGE } else { SMALL_PAGE };
    let handles = [(page, size / page)];
    let calls = [CallName::MemCreate, CallName::MemMap, CallName::MemSetAccess];
    calls.map(|call| MeasuredH200.cost_of_handles_ns(call, &handles)).iter().sum()
}

#[cfg(test)]
mod tests {
    use parkade::units::PoolId;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn entry(action: Action, address: u64, time_us: u64) -> Entry {
        let mut entry = Entry::new(action, address, 2 * MIB, 0);
        entry.set_time(Some(time_us));
        entry
    }

    /// Two blocks are freed while another stream uses them; they are seen done at one request.
    fn run() -> (Vec<Entry>, Vec<(usize, Operation)>) {
        let times = [
            (Action::Alloc, 1, 1000),
            (Action::Alloc, 2, 1010),
            (Action::FreeRequested, 1, 1020),
            (Action::FreeRequested, 2, 1030),
            (Action::Alloc, 3, 1040),
            (Action::FreeCompleted, 1, 1060),
            (Action::FreeCompleted, 2, 1060),
            (Action::SegmentAlloc, 4, 1160),
            (Action::Alloc, 4, 1161),
        ];
        let trace = times.map(|(action, address, time)| entry(action, address, time)).to_vec();
        let allocate = |id| Operation::Allocate { id, bytes: 2 * MIB, stream: 0, pool: PoolId::DEFAULT, failed: false };
        let free = |id, entry| Operation::Free { id, completion: Completion::AtEntry(entry) };
        (trace, vec![(0, allocate(0)), (1, allocate(1)), (2, free(0, 5)), (3, free(1, 6)), (4, allocate(2)), (8, allocate(3))])
    }

    #[test]
    fn work_is_done_between_the_requests_that_did_not_see_it_done_and_did() {
        let (trace, operations) = run();
        let pace = Pace::of(&trace, &operations).unwrap();
        let steps = &pace.steps;
        let own: Vec<u64> = steps.iter().map(|step| step.own_ns).collect();
        assert_eq!(own[1..5], [9_998, 10_000, 10_000, 10_000], "{own:?}");
        let last = steps[5];
        assert_eq!((last.taken_bytes, last.given_bytes, last.end_ns()), (2 * MIB, 0, 161_000));
        assert!(last.began_ns <= 70_000, "the driver took the rest: {last:?}");
        let windows = [steps[2], steps[3]].map(|step| (step.done_after_ns, step.done_before_ns));
        let middle = (40_000 + last.began_ns) / 2;
        assert_eq!(windows, [(40_000, middle), (middle, last.began_ns)], "spread over the time between");
    }

    #[test]
    fn without_times_or_waiting_frees_there_is_none() {
        let (mut trace, mut operations) = run();
        let at_once = |operation: &mut (usize, Operation)| {
            if let Operation::Free { completion, .. } = &mut operation.1 {
                *completion = Completion::AtOnce;
            }
        };
        operations.iter_mut().for_each(at_once);
        assert!(Pace::of(&trace, &operations).is_none());
        let (_, operations) = run();
        trace[3].set_time(None);
        assert!(Pace::of(&trace, &operations).is_none());
        let same = vec![entry(Action::FreeRequested, 1, 1000); 30];
        assert!(Pace::of(&same, &operations).is_none(), "one time for all says nothing");
    }

    #[test]
    fn impossible_times_and_sizes_do_no_harm() {
        let (trace, operations) = run();
        for time in [0, 1 << 40, 1 << 50, 1 << 62, u64::MAX - 1] {
            for (place, size) in (0..trace.len()).flat_map(|place| [(place, 1), (place, u64::MAX)]) {
                let mut trace = trace.clone();
                trace[place].set_time(Some(time));
                trace[place].size = size;
                let pace = Pace::of(&trace, &operations);
                assert!(
                    pace.is_none_or(|pace| pace.uncertain_permille().is_none_or(|permille| permille < 1000)),
                    "{place} at {time}"
                );
            }
        }
    }
}
