//! Finds the step that a workload repeats.
//!
//! A framework marks where its steps begin, but a recording does not. The step is therefore searched for, as a recurring
//! sequence of requests. The marks of generated workloads ([`Workload::steps`]) are not used, so that both are treated alike.

use super::{Event, Workload};

/// At most this many requests, in total over both sequences, are skipped at once to find where two steps are alike again.
const MOST_SKIPPED: usize = 16;
/// Steps have the same length, give or take one request in this many.
const ONE_VARIES_IN: usize = 20;
/// At least this many of a step's requests recur, in thousandths.
const LEAST_ALIKE: usize = 500;
/// A longer step must be better by this many thousandths.
const BETTER: usize = 10;
/// At most this many lengths are tried, starting with the shortest.
const MOST_LENGTHS: usize = 500;

/// A request, and what became of its buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Requested {
    /// The buffer's number.
    pub buffer: u32,
    /// The number of bytes requested.
    pub bytes: u64,
    /// The stream of the request.
    pub stream: u16,
    /// The number of requests, including this one, before the buffer was freed; `None` if it never was.
    pub freed_after: Option<usize>,
    /// The bytes that were live before the request.
    pub live: u64,
}

/// A step, and the requests of the workload in order, without those that go to private pools.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RepeatingStep {
    /// All requests of the workload.
    pub requests: Vec<Requested>,
    /// The first request of the first step.
    pub begin: usize,
    /// The number of requests in the first step. At least as many follow.
    pub length: usize,
    /// For each request of the first step, whether it recurs in the second with the same size and stream.
    pub comes_again: Vec<bool>,
}

impl Workload {
    /// Returns the step that the workload repeats, and its first occurrence. Returns `None` if there is no such step.
    ///
    /// The program holds less memory between steps than inside them, so the moments at which it becomes full after having
    /// been half empty are a whole number of steps apart. Among these distances, the function chooses the one at which most
    /// requests of the program's second half, and at least half of them, recur in the same order. A step begins where the
    /// fewest bytes are live.
    #[must_use]
    pub fn repeating_step(&self) -> Option<RepeatingStep> {
        let requests = requests(self);
        let (length, full) = step_length(&requests)?;
        let (begin, next) = first_step(&requests, length, full)?;
        let mut comes_again = vec![false; next - begin];
        alike(&requests, begin, next, next - begin).for_each(|at| comes_again[at - begin] = true);
        Some(RepeatingStep { requests, begin, length: next - begin, comes_again })
    }
}

fn requests(workload: &Workload) -> Vec<Requested> {
    let (mut seen, mut live, mut routed): (Vec<Requested>, u64, u32) = (Vec::new(), 0, 0);
    for event in &workload.events {
        match *event {
            Event::Allocate { buffer, bytes, stream } if routed == 0 => {
                seen.push(Requested { buffer, bytes, stream, freed_after: None, live });
                live = live.saturating_add(bytes);
            }
            Event::Free { buffer } => {
                let after = seen.len();
                if let Ok(place) = seen.binary_search_by_key(&buffer, |seen| seen.buffer) {
                    seen[place].freed_after = Some(after);
                    live = live.saturating_sub(seen[place].bytes);
                }
            }
            Event::BeginPool { .. } => routed += 1,
            Event::EndPool { .. } => routed = routed.saturating_sub(1),
            _ => {}
        }
    }
    seen
}

fn key(seen: &Requested) -> (u64, u16) {
    (seen.bytes, seen.stream)
}

/// Returns the requests from `from` up to `to` that recur about `length` requests later, in order. Either sequence may lack
/// some of them.
fn alike(seen: &[Requested], from: usize, to: usize, length: usize) -> impl Iterator<Item = usize> {
    let (mut here, mut later) = (from, from + length);
    core::iter::from_fn(move || {
        if here >= to || later >= seen.len() {
            return None;
        }
        let (skipped, skipped_later) = next_alike(&seen[here..to], &seen[later..])?;
        let found = here + skipped;
        (here, later) = (found + 1, later + skipped_later + 1);
        // Without this limit, a program that repeats a layer would be compared with itself.
        ((later - here).abs_diff(length) <= (length / ONE_VARIES_IN).max(1)).then_some(found)
    })
}

/// Returns how many requests to skip in each sequence so that the next two are alike, as are the two after them if there are
/// any: as few as possible in total.
fn next_alike(here: &[Requested], later: &[Requested]) -> Option<(usize, usize)> {
    let alike = |a: usize, b: usize| here.get(a).zip(later.get(b)).is_none_or(|(a, b)| key(a) == key(b));
    let within = |a: usize, b: usize| a < here.len() && b < later.len();
    // Equal numbers in both sequences are tried first, because usually one request replaces another.
    let pairs = (0..=MOST_SKIPPED).flat_map(|sum| (0..=sum / 2).flat_map(move |a| [(sum - a, a), (a, sum - a)]).rev());
    let mut pairs = pairs.filter(|&(a, b)| within(a, b));
    pairs.find(|&(a, b)| alike(a, b) && (a + b == 0 || alike(a + 1, b + 1)))
}

/// Returns the share of these requests that recur, in thousandths.
fn share(seen: &[Requested], from: usize, to: usize, length: usize) -> usize {
    alike(seen, from, to, length).count() * 1000 / (to - from).max(1)
}

/// Returns the length of the step, in requests, and the last moment at which the program becomes full.
fn step_length(seen: &[Requested]) -> Option<(usize, usize)> {
    let later = &seen[seen.len() / 2..];
    let most = later.iter().map(|request| request.live).max()?;
    let least = later.iter().map(|request| request.live).min()?;
    let (mut is_full, mut full) = (false, Vec::new());
    for (at, request) in seen.iter().enumerate() {
        if !is_full && request.live >= most - (most - least) / 10 {
            full.push(at);
            is_full = true;
        }
        is_full &= request.live >= least + (most - least) / 2;
    }
    let last = full.pop()?;
    let lengths = full.iter().rev().map(|before| last - before).take_while(|length| 2 * length <= last).take(MOST_LENGTHS);
    // Measured over the second half of the program, because a repetition within a step ends with the step.
    let over_half = |length: usize| share(seen, (seen.len() / 2).min(last - 2 * length), seen.len() - length, length);
    let shares: Vec<(usize, usize)> = lengths.map(|length| (over_half(length), length)).collect();
    let best = shares.iter().map(|(share, _)| *share).max().filter(|&best| best >= LEAST_ALIKE)?;
    let (_, length) = shares.into_iter().find(|(share, _)| share + BETTER >= best)?;
    Some((length, last))
}

/// Returns the requests at which the first and second steps begin.
fn first_step(seen: &[Requested], length: usize, full: usize) -> Option<(usize, usize)> {
    let varies = length / ONE_VARIES_IN;
    let emptiest = |from: usize, to: usize| (from..to.min(seen.len())).min_by_key(|&at| seen[at].live);
    let mut begin = emptiest(full - 2 * length, full - length)?;
    let mut next = emptiest(begin + length - varies, begin + length + varies + 1)?;
    let usual = share(seen, begin, next, next - begin);
    // A step begins with the same request as the previous step.
    let alike_before = |begin: usize| {
        let around = (begin - length - varies)..=(begin - length + varies);
        around.filter(|&at| key(&seen[at]) == key(&seen[begin])).min_by_key(|&at| seen[at].live)
    };
    while begin >= length + varies
        && let Some(before) = alike_before(begin)
        && share(seen, before, begin, begin - before) + LEAST_ALIKE / 10 >= usual
    {
        (begin, next) = (before, begin);
    }
    Some((begin, next))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a weight, followed by steps with requests of 40, 30, 20 and 10 KiB, all live at once, with scratch memory of
    /// varying size between the second and the third, and an additional request in the twelfth step.
    fn varying(steps: u32) -> Workload {
        let (mut events, mut count) = (Vec::new(), 0);
        let mut allocate = |events: &mut Vec<Event>, bytes: u64| {
            events.push(Event::Allocate { buffer: count, bytes, stream: 0 });
            count += 1;
            count - 1
        };
        allocate(&mut events, 7);
        for step in 0..steps {
            let mut of_step: Vec<u32> = [40, 30].map(|kib| allocate(&mut events, kib << 10)).into();
            let scratch = allocate(&mut events, 100 + u64::from(step));
            events.push(Event::Free { buffer: scratch });
            of_step.extend([20, 10].map(|kib| allocate(&mut events, kib << 10)));
            if step == 11 {
                of_step.push(allocate(&mut events, 5));
            }
            events.extend(of_step.into_iter().map(|buffer| Event::Free { buffer }));
        }
        Workload { name: "varying".into(), says: "Steps with scratch memory.".into(), events, steps: Vec::new() }
    }

    #[test]
    fn a_step_is_found_beside_what_varies() {
        let step = varying(12).repeating_step().expect("it repeats");
        assert_eq!((step.begin, step.length), (1, 5));
        assert_eq!(step.comes_again, [true, true, false, true, true]);
        assert_eq!((step.requests[3].bytes, step.requests[3].freed_after, step.requests[3].live), (100, Some(4), 7 + (70 << 10)));
    }

    #[test]
    fn one_step_is_none_and_nothing_is_none() {
        assert_eq!(varying(1).repeating_step(), None);
        assert_eq!(varying(0).repeating_step(), None);
        assert_eq!(Workload::default().repeating_step(), None);
    }

    #[test]
    fn requests_to_private_pools_are_left_out() {
        let mut workload = varying(12);
        let plain = workload.repeating_step().expect("it repeats");
        let buffer = workload.buffers() as u32;
        let captured = [
            Event::BeginPool { pool: 1 },
            Event::Allocate { buffer, bytes: 1 << 20, stream: 0 },
            Event::Free { buffer },
            Event::EndPool { pool: 1 },
        ];
        workload.events.extend(captured);
        assert_eq!(workload.repeating_step(), Some(plain));
    }
}
