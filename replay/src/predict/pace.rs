//! The operations of a recorded program, one at a time, and their pace: how fast the program and its GPU were, according to the
//! times of the entries, and when other streams finish with memory in a run that differs from the recorded one.
//!
//! A request's entries carry the time at which the allocator finished it. The time between two operations was therefore used
//! by the program itself, except for the driver calls that the entries show and for the allocator's waits before it released
//! memory. Work on other streams finished between the last request that found it unfinished and the first that found it done.
//!
//! Times are nanoseconds since the first entry and increase with each operation, so that no two are equal.
//!
//! The GPU does its work in the order of the frees that wait for it. A piece of work starts when the previous piece is done
//! or when the program submits it, whichever is later. For the recorded run, it is known which of the two was later. In a
//! predicted run, the program and the GPU may each be ahead of the recorded run or behind it, because the driver calls occur
//! at different points. If nothing differs, every time equals the recorded time.
//!
//! A [`Variation`] is a different run of the same program, in which the program, the GPU and the driver each take slightly
//! more or less time.

use std::collections::BTreeMap;

use parkade::units::PoolId;
use parkade_recording::{Action, Entry};
use parkade_sim::{CallName, CostModel, MeasuredH200};

use crate::entries::{gives_memory, is_inner, is_request, takes_memory};

/// The time at which freed memory becomes free for reuse.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completion {
    /// Immediately.
    AtOnce,
    /// At this entry: other streams use it until then.
    AtEntry(u32),
    /// Not within the recording: other streams are still using it at its end.
    Never,
}

/// One operation of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// The program requested memory.
    Allocate {
        /// The number of the request, from 0.
        id: usize,
        /// Bytes requested.
        bytes: u64,
        /// The stream's handle.
        stream: u64,
        /// The pool that served the request.
        pool: PoolId,
        /// Whether the request failed in the recording, so that the program never frees the memory.
        failed: bool,
    },
    /// The program freed the memory of an earlier request.
    Free {
        /// The number of the request.
        id: usize,
        /// The time at which the memory becomes free for reuse.
        completion: Completion,
    },
    /// The program called `empty_cache`.
    EmptyCache,
    /// The program stopped using this private pool.
    AbandonPool(PoolId),
    /// The program destroyed a MemPool, which releases the cached memory of this private pool.
    ReleasePool(PoolId),
}

/// A gap this many times the usual length counts as a wait.
const LONG: u64 = 10;
/// No gap shorter than this counts as a wait.
const SHORTEST_WAIT_NS: u64 = 100_000;
/// The usual lag is the median over this many completions.
const RECENT: usize = 9;
/// A trace that spans more time than this (52 days) does not show how fast a program was, and products of its times could
/// overflow 64 bits.
const LONGEST_NS: u64 = 1 << 52;
/// The times are only meaningful if, on average, they change at least once in this many entries.
const LEAST_CHANGES: usize = 10;
/// More memory than any device has.
const LARGEST_BYTES: u64 = 1 << 42;
const LARGE_PAGE: u64 = 20 << 20;
const SMALL_PAGE: u64 = 2 << 20;

/// One operation of a recorded run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Step {
    /// The time used by the program itself before the operation.
    pub own_ns: u64,
    /// When the operation began. The allocator immediately checks which events are complete.
    pub began_ns: u64,
    /// The time that the allocator took, including driver calls and waits.
    pub allocator_ns: u64,
    /// The bytes taken from the device.
    pub taken_bytes: u64,
    /// The bytes released to the device.
    pub given_bytes: u64,
    /// The time at which the GPU had no work left, if the step shows this because the program or the allocator waited
    /// for the GPU.
    pub drained_ns: Option<u64>,
    /// Whether the program waited for the GPU before the operation.
    pub has_waited: bool,
    /// For a free that waited: the work finished after this time.
    pub done_after_ns: u64,
    /// For a free that waited: the work finished before this time.
    pub done_before_ns: u64,
}

impl Step {
    fn end_ns(&self) -> u64 {
        self.began_ns + self.allocator_ns
    }
}

/// The pace of a recorded run: the timing of its operations.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    pub(crate) steps: Vec<Step>,
    /// The shortest time that the program waits for the GPU.
    wait_ns: u64,
    /// The cost of taking memory, in permille of the simulated device's prices.
    driver_permille: u64,
    /// The time that requests waited for memory to be released.
    held_up_ns: u64,
}

/// The uncertainty of a peak beyond that due to the durations, in permille, as found for half of the simulated programs in
/// `examples/timing`.
const UNCERTAIN_PERMILLE: u64 = 40;
/// The additional uncertainty for the time during which the recorded program was held up, because nothing shows how far ahead
/// of its GPU it would have been. It is in permille and applies in full to a program that was held up all the time.
const HELD_UP_PERMILLE: u64 = 160;
/// If the program was held up for more than this fraction of the time, its times do not show how fast it would have been.
const MOST_HELD_UP_PERMILLE: u64 = 100;

impl Pace {
    /// Returns the amount by which a peak may lie outside the peaks of likely runs, in permille. Returns `None` if the
    /// recorded run was held up for so long that no run is likely.
    pub(crate) fn uncertain_permille(&self) -> Option<u64> {
        let all = self.steps.last().map_or(0, Step::end_ns).max(1);
        let held_up = (u128::from(self.held_up_ns.min(all)) * 1000 / u128::from(all)) as u64;
        (held_up <= MOST_HELD_UP_PERMILLE).then_some(UNCERTAIN_PERMILLE + HELD_UP_PERMILLE * held_up / 1000)
    }

    /// Returns the pace of a trace. Returns `None` if an entry has no time, if no free waited, or if the times cannot belong
    /// to one run.
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
    /// The times, by entry.
    times_ns: Vec<u64>,
    /// The usual gap before a request.
    usual_ns: u64,
    /// The usual cost of an entry that takes memory.
    take_ns: u64,
    pace: Pace,
    /// The first entry that has not been read yet.
    next: usize,
    /// The time at which the allocator last checked for complete events.
    looked_ns: u64,
    /// The frees that wait, by the entry at which they complete.
    waiting: BTreeMap<usize, usize>,
    lags_ns: [u64; RECENT],
    lags: usize,
    /// The index of the longest time that the program itself has used since the last request.
    longest: usize,
}

impl<'a> Reader<'a> {
    fn of(trace: &'a [Entry]) -> Option<Reader<'a>> {
        let first = trace.first()?.time()?;
        let mut times_ns = Vec::with_capacity(trace.len());
        let mut last = 0;
        for entry in trace {
            // The entries of several threads may be slightly out of order.
            last = entry.time()?.saturating_sub(first).saturating_mul(1000).max(last);
            times_ns.push(last);
        }
        // In files that a program wrote, two thirds of the times differ from the preceding time; in files with a single time,
        // or with a resolution of seconds, almost none do.
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

    /// Returns the time that the allocator took in these entries, when the GPU was drained, and the first entry whose
    /// completions are due to a wait by the allocator.
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

    /// Records the work that was found done at the last step's entries.
    fn complete(&mut self, inner: &std::ops::Range<usize>, waits_from: usize, began_ns: u64, end_ns: u64) {
        let mut lags = self.lags_ns;
        let usual_lag = median(&mut lags[..self.lags]);
        let split = waits_from.clamp(inner.start, inner.end);
        self.complete_between(inner.start..split, self.looked_ns, began_ns);
        let is_idle = self.waiting.is_empty();
        self.complete_between(split..inner.end, began_ns, end_ns);
        // Nothing is pending after a stretch of the program's own time in which the GPU could have finished its usual work.
        if is_idle
            && let Some(step) = self.pace.steps.get_mut(self.longest)
            && step.own_ns >= self.pace.wait_ns.max(usual_lag / 4)
        {
            step.has_waited = true;
            step.drained_ns = step.drained_ns.or(Some(step.began_ns));
        }
    }

    /// Spreads the work that was found done at these entries over the time in which it was done. Returns the number of
    /// pieces.
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
        // The work that the last requests did not find done.
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

/// Returns the simulated device's price for the driver calls of an entry that takes memory.
fn price_ns(entry: &Entry) -> u64 {
    let size = entry.size.min(LARGEST_BYTES);
    if entry.action == Action::SegmentAlloc {
        return MeasuredH200.cost_ns(CallName::Malloc, size);
    }
    // Expandable segments grow by 20 MiB pages, or by 2 MiB pages for small requests.
    let page = if size.is_multiple_of(LARGE_PAGE) { LARGE_PAGE } else { SMALL_PAGE };
    let handles = [(page, size / page)];
    let calls = [CallName::MemCreate, CallName::MemMap, CallName::MemSetAccess];
    calls.map(|call| MeasuredH200.cost_of_handles_ns(call, &handles)).iter().sum()
}

/// The way in which a different run of the same program differs from the recorded run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Variation {
    /// The time that the program itself uses, in permille of the recorded time.
    pub program_permille: u32,
    /// The time that the GPU takes for its work, in permille of the recorded time.
    pub gpu_permille: u32,
    /// The driver's time, in permille of the recorded time.
    pub driver_permille: u32,
    /// The time at which work finished, between the last check that found it unfinished (0) and the first that found it
    /// done.
    pub place_permille: u32,
    /// The maximum time between the beginning of the work and the free that waits for it, in permille of the work's lag.
    pub reach_permille: u32,
    /// The amount by which each of the program's own times varies, in permille.
    pub noise_permille: u32,
    /// The seed that determines which of these times are longer.
    pub seed: u64,
}

/// The maximum difference in the program's own time between runs, in permille.
const PROGRAM: u32 = 100;
/// The maximum difference in the GPU's time between runs, in permille.
const GPU: u32 = 50;
/// The maximum difference in the driver's time between runs, in permille.
const DRIVER: u32 = 300;
/// The maximum difference in any single one of the program's own times between runs, in permille.
const NOISE: u32 = 300;

/// Steps of a sequence that fills five dimensions evenly, regardless of its length: powers of the inverse of the root of x^6
/// = x + 1, in units of 2^-32.
const STEPS: [u32; 5] = [3_679_390_609, 3_152_041_523, 2_700_274_805, 2_313_257_605, 1_981_709_430];

impl Variation {
    /// The recorded run itself.
    pub const NONE: Variation = Variation {
        program_permille: 1000,
        gpu_permille: 1000,
        driver_permille: 1000,
        place_permille: 500,
        reach_permille: 0,
        noise_permille: 0,
        seed: 0,
    };

    /// Returns a likely run, by its number from 1. The same number always produces the same run.
    #[must_use]
    pub fn likely(number: u32) -> Variation {
        let part = |dimension: usize, width: u32| {
            let place = (u64::from(number) * u64::from(STEPS[dimension]) + (1 << 31)) & u64::from(u32::MAX);
            ((place * u64::from(width)) >> 32) as u32
        };
        Variation {
            program_permille: 1000 - PROGRAM + part(0, 2 * PROGRAM),
            gpu_permille: 1000 - GPU + part(1, 2 * GPU),
            driver_permille: 1000 - DRIVER + part(2, 2 * DRIVER),
            place_permille: part(3, 1000),
            reach_permille: part(4, 1000),
            noise_permille: NOISE,
            seed: u64::from(number),
        }
    }
}

/// The clock of a predicted run, and the progress of its GPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    variation: Variation,
    /// The GPU's lag behind the recorded run, in nanoseconds.
    gpu_shift: i64,
    /// The time at which the GPU last finished a piece of work in the recorded run.
    done_ns: i64,
}

impl Clock {
    pub(crate) fn new(variation: Variation) -> Clock {
        Clock { variation, gpu_shift: 0, done_ns: 0 }
    }

    /// Returns the time at which an operation begins if the previous operation ended at `now_ns`.
    pub(crate) fn begins(&mut self, pace: &Pace, operation: usize, now_ns: u64) -> u64 {
        let Some(step) = pace.steps.get(operation) else { return now_ns };
        if step.has_waited {
            let reached = (step.began_ns as i64 + self.gpu_shift).max(0) as u64;
            self.done_ns = self.done_ns.max(step.began_ns as i64);
            return reached.max(now_ns + (pace.wait_ns / 10).min(step.own_ns));
        }
        let noise = self.noise(operation);
        now_ns + step.own_ns * u64::from(self.variation.program_permille) / 1000 * noise / 1000
    }

    /// Returns the time at which the GPU finishes the work that an operation's freed memory waits for.
    pub(crate) fn completes(&mut self, pace: &Pace, operation: usize, now_ns: u64) -> u64 {
        let Some(step) = pace.steps.get(operation) else { return now_ns };
        let within = step.done_before_ns - 1 - step.done_after_ns;
        let place = u64::from(self.variation.place_permille);
        let done = (step.done_after_ns + (u128::from(within) * u128::from(place) / 1000) as u64) as i64;
        let freed = (step.began_ns + step.allocator_ns) as i64;
        let lag = done - freed;
        // The time for which the GPU was idle before this work, and the work that it still had to do at the free.
        let idle = (freed - self.done_ns - lag * i64::from(self.variation.reach_permille) / 1000).max(0);
        let queued = (self.done_ns - freed).max(0);
        let worked = (done - self.done_ns.max(freed)).max(0);
        let program_shift = now_ns as i64 - freed;
        self.gpu_shift = (program_shift - queued).max(self.gpu_shift - idle);
        self.gpu_shift += worked * (i64::from(self.variation.gpu_permille) - 1000) / 1000;
        self.done_ns = self.done_ns.max(done);
        (done + self.gpu_shift).max(now_ns as i64) as u64
    }

    /// Returns the time at which an operation ends that began at `began_ns` and waited until `now_ns`. `driver_ns` is
    /// the time that the driver took, if its calls differ from those in the recorded run.
    pub(crate) fn ends(&mut self, pace: &Pace, operation: usize, began_ns: u64, now_ns: u64, driver_ns: Option<u64>) -> u64 {
        let Some(step) = pace.steps.get(operation) else { return now_ns };
        self.done_ns = self.done_ns.max(step.drained_ns.map_or(0, |ns| ns as i64));
        match driver_ns {
            None => now_ns.max(began_ns + step.allocator_ns),
            Some(spent) => now_ns + spent * pace.driver_permille / 1000 * u64::from(self.variation.driver_permille) / 1000,
        }
    }

    /// Returns a number around 1000 that depends on the operation and the seed.
    fn noise(&self, operation: usize) -> u64 {
        let width = u64::from(self.variation.noise_permille);
        if width == 0 {
            return 1000;
        }
        let mut state = self.variation.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(operation as u64);
        state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        state ^= state >> 31;
        1000 - width.min(1000) + state % (2 * width.min(1000) + 1)
    }
}

#[cfg(test)]
mod tests {
    use parkade::units::PoolId;
    use proptest::collection;
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn entry(action: Action, address: u64, time_us: u64) -> Entry {
        let mut entry = Entry::new(action, address, 2 * MIB, 0);
        entry.set_time(Some(time_us));
        entry
    }

    /// Returns a run in which two blocks are freed while another stream uses them, and one request finds the work on both
    /// finished.
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

    /// Two blocks are freed, and three requests follow, the second of which takes memory from the device. The work on each block
    /// is found finished at any of the requests (0 to 2) or at none of them (3).
    #[test]
    fn work_is_done_after_the_last_request_that_did_not_find_it_done() {
        for found in (0..4_usize).flat_map(|one| (0..4_usize).map(move |other| [one, other])) {
            let allocs = [1, 2].map(|address| entry(Action::Alloc, address, 0));
            let frees = [1, 2].map(|address| entry(Action::FreeRequested, address, 0));
            let mut trace = [allocs, frees].concat();
            let mut completed = [0; 2];
            let mut requests = Vec::new();
            for request in 0..4 {
                for free in (0..2).filter(|&free| found[free] == request) {
                    completed[free] = trace.len() as u32;
                    trace.push(entry(Action::FreeCompleted, 1 + free as u64, 0));
                }
                if request == 1 {
                    trace.push(entry(Action::SegmentAlloc, 4, 0));
                }
                if request < 3 {
                    requests.push(trace.len());
                    trace.push(entry(Action::Alloc, 3 + request as u64, 0));
                }
            }
            let mut time_us = 1000;
            for entry in &mut trace {
                time_us += if entry.action == Action::SegmentAlloc { 100 } else { 10 };
                entry.set_time(Some(time_us));
            }
            let allocate = |id| Operation::Allocate { id, bytes: 2 * MIB, stream: 0, pool: PoolId::DEFAULT, failed: false };
            let free = |id: usize| Operation::Free { id, completion: Completion::AtEntry(completed[id]) };
            let mut operations = vec![(0, allocate(0)), (1, allocate(1)), (2, free(0)), (3, free(1))];
            operations.extend(requests.iter().enumerate().map(|(request, &at)| (at, allocate(2 + request))));
            let steps = Pace::of(&trace, &operations).expect("its times can belong to a run").steps;
            assert!(steps[5].allocator_ns > 0, "the device takes a part of the time");
            for free in 0..2 {
                let unfinished = found[free].checked_sub(1).map_or(0, |request| steps[4 + request].began_ns);
                let after = unfinished.max(steps[2 + free].end_ns());
                let before = steps.get(4 + found[free]).map_or(steps[6].end_ns() + 1, |step| step.began_ns);
                let Step { done_after_ns, done_before_ns, .. } = steps[2 + free];
                let is_alone = found[0] != found[1] || found[free] == 3;
                assert!(after <= done_after_ns && done_after_ns < done_before_ns && done_before_ns <= before, "{found:?}");
                assert!(done_after_ns == after || !(is_alone || free == 0), "{found:?}: the first one begins there");
                assert!(done_before_ns == before || !(is_alone || free == 1), "{found:?}: the last one ends there");
            }
        }
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

    #[test]
    fn a_run_that_was_held_up_for_more_than_a_tenth_of_its_time_has_no_likely_runs() {
        let uncertain = |all_ns, held_up_ns| {
            let steps = vec![Step::default(), Step { began_ns: all_ns, ..Step::default() }];
            Pace { steps, held_up_ns, ..Pace::default() }.uncertain_permille()
        };
        for held_up in 0..=1000 {
            let expected = (held_up <= 100).then_some(40 + 160 * held_up / 1000);
            assert_eq!(uncertain(1_000_000, held_up * 1000), expected, "{held_up}");
            assert_eq!(uncertain(1_000_000, held_up * 1000 + 999), expected, "{held_up} and a part of the next");
        }
        assert_eq!((uncertain(1000, 5000), uncertain(0, 0), Pace::default().uncertain_permille()), (None, Some(40), Some(40)));
        assert_eq!(uncertain(u64::MAX, u64::MAX / 20), Some(40 + 160 * 49 / 1000));
    }

    /// Returns the pace of a program that, at 10, 20 and 30 us, frees memory whose work finishes at 25, 40 and 41 us.
    fn pace() -> Pace {
        let step = |began_ns, done_ns| Step {
            own_ns: 10_000,
            began_ns,
            done_after_ns: done_ns,
            done_before_ns: done_ns + 1,
            ..Step::default()
        };
        Pace {
            steps: vec![step(10_000, 25_000), step(20_000, 40_000), step(30_000, 41_000)],
            wait_ns: 100_000,
            driver_permille: 1000,
            held_up_ns: 0,
        }
    }

    /// Returns the time at which the work is finished if the driver takes `driver_ns` in the first operation.
    fn done(pace: &Pace, variation: Variation, driver_ns: Option<u64>) -> Vec<u64> {
        let mut clock = Clock::new(variation);
        let mut now_ns = 0;
        let mut one = |operation: usize| {
            let began_ns = clock.begins(pace, operation, now_ns);
            let done = clock.completes(pace, operation, began_ns);
            now_ns = clock.ends(pace, operation, began_ns, began_ns, driver_ns.filter(|_| operation == 0));
            done
        };
        (0..pace.steps.len()).map(&mut one).collect()
    }

    #[test]
    fn where_nothing_differs_work_is_done_when_it_was() {
        assert_eq!(done(&pace(), Variation::NONE, None), [25_000, 40_000, 41_000]);
    }

    #[test]
    fn a_program_that_is_late_catches_up_with_a_gpu_that_has_work() {
        assert_eq!(done(&pace(), Variation::NONE, Some(4_000)), [25_000, 40_000, 41_000], "the GPU was 5 us behind");
        assert_eq!(done(&pace(), Variation::NONE, Some(8_000)), [25_000, 43_000, 44_000]);
    }

    #[test]
    fn a_slower_gpu_is_later_with_each_piece_of_work() {
        let slower = Variation { gpu_permille: 1100, ..Variation::NONE };
        assert_eq!(done(&pace(), slower, None), [26_500, 43_000, 44_100]);
    }

    /// Every operation of a run: when it began, when the work on its memory was finished, and when it ended.
    type Played = Vec<[u64; 3]>;

    fn played(pace: &Pace, variation: Variation, driver_ns: &[Option<u64>]) -> Played {
        let mut clock = Clock::new(variation);
        let mut now_ns = 0;
        let operation = |(operation, &spent)| {
            let began_ns = clock.begins(pace, operation, now_ns);
            let done_ns = clock.completes(pace, operation, began_ns);
            now_ns = clock.ends(pace, operation, began_ns, began_ns, spent);
            [began_ns, done_ns, now_ns]
        };
        driver_ns.iter().enumerate().map(operation).collect()
    }

    /// Runs the program beside a GPU that begins each piece of work when the piece before it is finished and the program has
    /// submitted it.
    fn simulated(pace: &Pace, variation: Variation, driver_ns: &[Option<u64>]) -> Played {
        let part = |whole: u64, permille: u32| whole * u64::from(permille) / 1000;
        // The times at which the GPU has no work left, in the recorded run and in this one.
        let (mut recorded, mut predicted) = (0_i64, 0_i64);
        let mut now = 0;
        let mut played = Vec::new();
        for (step, spent) in pace.steps.iter().zip(driver_ns) {
            let advance = |to: u64, recorded: &mut i64, predicted: &mut i64| {
                let more = (to as i64 - *recorded).max(0);
                (*recorded, *predicted) = (*recorded + more, *predicted + more);
            };
            let began = if step.has_waited {
                let late = predicted - recorded;
                advance(step.began_ns, &mut recorded, &mut predicted);
                (step.began_ns as i64 + late).max(now + step.own_ns.min(pace.wait_ns / 10) as i64)
            } else {
                now + part(step.own_ns, variation.program_permille) as i64
            };
            let done = (step.done_after_ns + part(step.done_before_ns - 1 - step.done_after_ns, variation.place_permille)) as i64;
            let work = done - recorded.max(step.end_ns() as i64);
            predicted = predicted.max(began) + work + work * (i64::from(variation.gpu_permille) - 1000) / 1000;
            recorded = done;
            let finished = predicted;
            if let Some(drained) = step.drained_ns {
                advance(drained, &mut recorded, &mut predicted);
            }
            let took = match spent {
                None => step.allocator_ns,
                Some(spent) => part(*spent * pace.driver_permille / 1000, variation.driver_permille),
            };
            now = began + took as i64;
            played.push([began as u64, finished as u64, now as u64]);
        }
        played
    }

    /// The times of one operation: the program's and the allocator's, how long the work took at least and within which time it
    /// was finished, whether the program waited for the GPU, when the GPU was drained, and the driver's time in another run.
    type Times = (u64, u64, u64, u64, bool, Option<u64>, Option<u64>);

    fn drawn_pace(times: &[Times], driver_permille: u64) -> (Pace, Vec<Option<u64>>) {
        let (mut now_ns, mut done_ns, mut steps) = (0, 0, Vec::new());
        for &(own_ns, allocator_ns, work_ns, within_ns, has_waited, drained, _) in times {
            let began_ns = now_ns + own_ns;
            now_ns = began_ns + allocator_ns;
            done_ns = done_ns.max(if has_waited { began_ns } else { 0 }).max(now_ns) + work_ns;
            let (done_after_ns, done_before_ns) = (done_ns, done_ns + 1 + within_ns);
            done_ns += within_ns;
            let drained_ns = drained.map(|after| began_ns + after.min(allocator_ns));
            let step =
                Step { own_ns, began_ns, allocator_ns, has_waited, drained_ns, done_after_ns, done_before_ns, ..Step::default() };
            steps.push(step);
        }
        let pace = Pace { steps, wait_ns: 100_000, driver_permille, held_up_ns: 0 };
        (pace, times.iter().map(|times| times.6).collect())
    }

    proptest! {
        /// A free says when its work began only if the reach is 0.
        #[test]
        fn another_run_is_that_of_a_program_beside_its_gpu(
            times in collection::vec(
                (
                    0..30_000_u64,
                    prop_oneof![Just(0), 0..20_000_u64],
                    prop_oneof![Just(0), 0..40_000_u64],
                    prop_oneof![Just(0), 0..5_000_u64],
                    proptest::bool::weighted(0.2),
                    proptest::option::weighted(0.2, 0..20_000_u64),
                    proptest::option::of(0..30_000_u64),
                ),
                1..10,
            ),
            permille in [500..1500_u32, 500..1500, 500..1500, 0..1001],
            driver_permille in 500..2000_u64,
        ) {
            let (pace, driver_ns) = drawn_pace(&times, driver_permille);
            let [program_permille, gpu_permille, driver_permille, place_permille] = permille;
            let variation = Variation { program_permille, gpu_permille, driver_permille, place_permille, ..Variation::NONE };
            prop_assert_eq!(played(&pace, variation, &driver_ns), simulated(&pace, variation, &driver_ns));
            let as_recorded = played(&pace, Variation::NONE, &vec![None; times.len()]);
            let waits = pace.steps.iter().any(|step| step.has_waited);
            for (step, [began_ns, _, ended_ns]) in pace.steps.iter().zip(as_recorded).filter(|_| !waits) {
                prop_assert_eq!((began_ns, ended_ns), (step.began_ns, step.end_ns()), "nothing differs");
            }
        }
    }

    #[test]
    fn every_number_of_a_variation_matters() {
        // The GPU is idle before the second free, whose work takes 10 us; the third operation takes memory.
        let times = [(10_000, 0, 15_000, 0, false, None, None), (30_000, 0, 10_000, 900, false, None, None)];
        let (pace, driver_ns) = drawn_pace(&[&times[..], &[(5_000, 0, 0, 0, false, None, Some(4_000))]].concat(), 1500);
        let with = |variation| played(&pace, variation, &driver_ns);
        let slower = Variation { gpu_permille: 2000, noise_permille: 0, place_permille: 0, ..Variation::NONE };
        // The first piece takes 30 us instead of 15, so the GPU is 15 us late, and was idle for 15 us before the second free.
        assert_eq!(with(slower), [[10_000, 40_000, 10_000], [40_000, 60_000, 40_000], [45_000, 61_800, 51_000]]);
        let noisy = Variation { noise_permille: 300, ..slower };
        let alone = [
            Variation { program_permille: 1100, ..slower },
            Variation { gpu_permille: 1900, ..slower },
            Variation { driver_permille: 1300, ..slower },
            Variation { place_permille: 1000, ..slower },
            Variation { reach_permille: 500, ..slower },
            noisy,
            Variation { seed: 7, ..noisy },
            Variation { seed: 8, ..noisy },
        ];
        for (place, one) in alone.iter().enumerate() {
            assert!(with(*one) != with(slower), "{one:?}");
            assert!(alone[..place].iter().all(|other| with(*other) != with(*one)), "{one:?}");
        }
        assert_eq!(with(Variation { seed: 7, ..slower }), with(slower), "without noise the seed does not matter");
        assert_eq!(with(Variation { driver_permille: 1300, ..slower })[2][2], 45_000 + 7_800);
        // The work on the second free began up to 5 us before it, so the GPU had less time to catch up.
        assert_eq!(with(Variation { reach_permille: 500, ..slower })[1][1], 65_000);
    }

    #[test]
    fn noise_fills_its_width_evenly() {
        for (seed, width) in (0..20).flat_map(|seed| [0, 1, 300, 1000, 2000].map(|width| (seed, width))) {
            let clock = Clock::new(Variation { seed, noise_permille: width, ..Variation::NONE });
            let drawn: Vec<u64> = (0..10_000).map(|operation| clock.noise(operation)).collect();
            let width = u64::from(width.min(1000));
            let (least, greatest) = (1000 - width, 1000 + width);
            assert!(drawn.iter().all(|noise| (least..=greatest).contains(noise)), "{seed} {width}");
            let reached = [drawn.iter().min().copied(), drawn.iter().max().copied()];
            assert!(width > 300 || reached == [Some(least), Some(greatest)], "{seed} {width}: {reached:?}");
            let mean = drawn.iter().sum::<u64>() / 10_000;
            assert!(mean.abs_diff(1000) <= 1 + width / 25, "{seed} {width}: {mean}");
        }
    }

    #[test]
    fn likely_runs_stay_near_the_recorded_one_and_repeat() {
        for number in 1..100 {
            let run = Variation::likely(number);
            assert!((900..1100).contains(&run.program_permille) && (950..1050).contains(&run.gpu_permille), "{run:?}");
            assert!((700..1300).contains(&run.driver_permille) && run.place_permille < 1000, "{run:?}");
            assert_eq!(run, Variation::likely(number));
        }
        assert_ne!(Variation::likely(1), Variation::likely(2));
        let reached = |part: fn(&Variation) -> u32| {
            let parts = (1..2000).map(|number| part(&Variation::likely(number)));
            (parts.clone().min().unwrap_or(0), parts.max().unwrap_or(0))
        };
        assert_eq!(reached(|run| run.program_permille), (900, 1099));
        assert_eq!(reached(|run| run.gpu_permille), (950, 1049));
        assert_eq!(reached(|run| run.driver_permille), (700, 1299));
        assert_eq!([reached(|run| run.place_permille), reached(|run| run.reach_permille)], [(0, 999); 2]);
        assert!((1..50).all(|number| {
            let run = Variation::likely(number);
            (run.noise_permille, run.seed) == (NOISE, u64::from(number))
        }));
    }
}
