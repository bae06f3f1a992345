//! Programs for the reference law as bytes, for a fuzzer that changes bytes.
//!
//! Every byte string is a program. Its first bytes are the setup; each step begins with a byte that selects its kind and
//! its stream, so a change in one place leaves most of the other steps as they are.

use parkade::units::MIB;

use super::draw::THRESHOLDS;
use super::step::{CALLBACKS, DEFAULT_POOL, Failing, LONGEST, OUT_OF_MEMORY, Order, POOLS, Setup, Spot, Step, profiles};
use crate::backend::{EventTiming, Hidden, Places, STREAMS};

/// A program: its conditions, its steps, and which calls fail.
pub(crate) type Program = (Setup, Vec<Step>, Option<Failing>);

/// Returns the program that these bytes are. Bytes that would be steps beyond the longest program are ignored.
pub(crate) fn program(bytes: &[u8]) -> Program {
    let mut source = Source(bytes);
    let (setup, failing) = source.setup();
    let steps = std::iter::from_fn(|| source.step()).take(LONGEST).collect();
    (setup, steps, failing)
}

/// The bytes that have not been used.
struct Source<'b>(&'b [u8]);

const CAPACITIES: [u64; 4] = [64 * MIB, 130 * MIB, 200 * MIB, 302 * MIB];
const OFFSETS: [i64; 9] = [-513, -512, -511, -1, 0, 1, 511, 512, 513];
/// Sizes that no device can serve.
const ABSURD: [u64; 8] = [0, (1 << 60) - 1, 1 << 60, (1 << 60) + 1, u64::MAX - 511, u64::MAX - 510, u64::MAX, 400 * MIB];
const FRACTIONS: [u16; 11] = [0, 100, 333, 400, 501, 600, 750, 900, 999, 1000, 1001];
const LIMITS: [Option<u64>; 7] =
    [None, Some(0), Some(22 * MIB), Some(40 * MIB), Some(60 * MIB), Some(100 * MIB - 1), Some(120 * MIB)];
const HELD_BY_OTHERS: [u64; 4] = [0, 20 * MIB, 70 * MIB + 1, 400 * MIB];

impl Source<'_> {
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Returns the next byte, and 0 behind the last one.
    fn byte(&mut self) -> usize {
        self.next().unwrap_or(0).into()
    }

    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.byte() % items.len()]
    }

    fn setup(&mut self) -> (Setup, Option<Failing>) {
        let release = profiles().nth(self.byte() % profiles().count()).expect("the number is below the count").name;
        let (settings, capacity) = (self.byte(), self.pick(&CAPACITIES));
        let places = self.pick(&[Places::Ascending, Places::Descending, Places::Reuse]);
        let flags = self.byte();
        let is = |bit: usize| flags >> bit & 1 == 1;
        let timing = match flags >> 6 {
            0 => EventTiming::Clock,
            1 => EventTiming::Eager,
            2 => EventTiming::Lazy,
            _ => EventTiming::Seeded(self.byte() as u64),
        };
        let (free_waits, has_callbacks, is_finished) = (is(0), is(1), !is(2));
        let adopted = is(3).then(|| self.byte() as u64);
        let failing = is(4).then(|| self.failing());
        let setup = Setup {
            release,
            capacity,
            timing,
            places,
            free_waits,
            settings,
            has_callbacks,
            adopted,
            is_finished,
            ..Setup::PLAIN
        };
        (setup, failing)
    }

    fn failing(&mut self) -> Failing {
        let every = self.byte();
        (1 + every as u64 % 12, 1 + every as u64 / 12 % 3, self.pick(&[OUT_OF_MEMORY, 700, 1]))
    }

    fn size(&mut self) -> u64 {
        match self.byte() {
            whole @ 0..64 => (1 + whole as u64) * MIB,
            near @ 64..128 => THRESHOLDS[near % THRESHOLDS.len()].saturating_add_signed(self.pick(&OFFSETS)),
            any @ 128..248 => {
                let low = 1 << (any % 26);
                low + low * self.byte() as u64 / 256
            }
            absurd => ABSURD[absurd % ABSURD.len()],
        }
    }

    fn pool(&mut self) -> usize {
        self.byte() % POOLS.len()
    }

    /// Returns a duration in nanoseconds.
    fn time(&mut self) -> u64 {
        1 + 64 * self.byte() as u64
    }

    /// Returns the next step. Its stream is in the upper bits of its first byte, because most steps have one.
    fn step(&mut self) -> Option<Step> {
        let kind = self.next()?;
        let stream = usize::from(kind >> 6) % STREAMS.len();
        Some(match kind & 63 {
            0..10 => Step::Allocate(self.size(), stream),
            10 => Step::AllocateAt(self.size(), stream, self.byte(), self.spot()),
            11 => self.routing(stream),
            12 => Step::AllocateRaw(self.size(), stream),
            13..21 => Step::Free(self.byte()),
            21 => Step::FailNext(1 + self.byte() as u64 % 8, self.pick(&[OUT_OF_MEMORY, 700])),
            22 => Step::FreeAgain(self.byte()),
            23..26 => Step::Record(self.byte(), stream),
            26 => Step::Stock(self.byte(), stream % CALLBACKS),
            27 | 28 => {
                let kind = self.byte();
                Step::Command(stream % CALLBACKS, self.order(kind), kind < 192)
            }
            29 => Step::ProcessEvents,
            30 | 31 => Step::ReleaseCached,
            32 => Step::Snapshot,
            33 => Step::Launch(stream, self.time()),
            34 => Step::Pause(self.time()),
            35 => Step::Complete(stream),
            36 => Step::CompleteOne(stream),
            37 => Step::CompleteAll,
            38 => Step::Fraction(self.pick(&FRACTIONS)),
            39 => Step::Limit(self.pick(&LIMITS)),
            40 | 41 => Step::Apply(self.byte()),
            42 => Step::OthersHold(self.pick(&HELD_BY_OTHERS)),
            43 => Step::ResetPeaks,
            44 => Step::ResetSums,
            45 => Step::CreatePool(self.pool()),
            46 | 47 => Step::BeginPool(self.pool(), None),
            48 => Step::BeginPool(self.pool(), Some(stream)),
            49 | 50 => Step::EndPool(self.pool()),
            51 | 52 => Step::ReleasePool(self.pool()),
            53 => Step::ReleaseCachedPool(self.pool()),
            54 => Step::UseOnOom(self.pool(), stream > 0),
            55 => Step::NoSplit(self.byte() % (DEFAULT_POOL + 1)),
            56 | 57 => Step::Capturing(stream > 1),
            58 | 59 => Step::Save(self.pool()),
            60 => Step::Restore(self.byte()),
            61 => Step::RestoreChanged(self.byte(), self.byte() as u64),
            62 => Step::LiveAre(self.pool(), stream > 0),
            _ => Step::SnapshotPool(self.pool()),
        })
    }

    fn spot(&mut self) -> Spot {
        let steps = [0, 512, -512, 256];
        match self.byte() {
            start @ 0..96 => Spot::Start(steps[start % steps.len()]),
            end @ 96..192 => Spot::End(steps[end % steps.len()]),
            _ => Spot::Middle,
        }
    }

    /// A step that captures a graph, or routes requests that choose a pool.
    fn routing(&mut self, stream: usize) -> Step {
        let kind = self.byte();
        let other = kind / 16 % STREAMS.len();
        match kind % 16 {
            0 | 8 => Step::BeginGraph(stream),
            1 | 9 => Step::EndGraph(stream),
            2 | 3 | 10 | 11 => Step::GraphWork(stream),
            4 | 5 | 12 | 13 => Step::GraphWait(stream, other),
            6 => Step::BeginChosen(other % POOLS.len()),
            14 => Step::HideGraph(stream, [Hidden::Nothing, Hidden::State, Hidden::Order][other % 3]),
            _ => Step::Choose((stream > 0).then_some(other % POOLS.len())),
        }
    }

    fn order(&mut self, kind: usize) -> Order {
        let stream = kind / 8 % STREAMS.len();
        match kind % 8 {
            0 => Order::Allocate(self.size(), stream),
            1 => Order::ReleaseCached,
            2 => Order::Create(self.pool()),
            3 => Order::Begin(self.pool(), (kind & 32 != 0).then_some(stream)),
            4 => Order::End(self.pool()),
            5 => Order::Release(self.pool()),
            6 => Order::ReleaseCachedPool(self.pool()),
            _ => Order::Register,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::mem::discriminant;

    use super::*;
    use crate::program::search::Draws;

    /// Random bytes contain every kind of step and of condition; otherwise a fuzzer could not find it either.
    #[test]
    fn bytes_are_programs_of_every_kind() {
        let mut draws = Draws::new(1);
        let (mut kinds, mut orders, mut releases, mut failures) = (Vec::new(), Vec::new(), BTreeSet::new(), 0);
        for _ in 0..400 {
            let bytes: Vec<u8> = (0..200).map(|_| draws.below(256) as u8).collect();
            let (setup, steps, failing) = program(&bytes);
            releases.insert(setup.release);
            failures += usize::from(failing.is_some());
            for step in &steps {
                kinds.push(discriminant(step));
                if let Step::Command(_, order, _) = step {
                    orders.push(discriminant(order));
                }
            }
        }
        let distinct = |mut all: Vec<_>| {
            let mut found = Vec::new();
            while let Some(one) = all.pop() {
                all.retain(|other| *other != one);
                found.push(one);
            }
            found.len()
        };
        assert_eq!((distinct(kinds), releases.len()), (43, profiles().count()));
        let orders: usize = orders.iter().enumerate().filter(|(at, order)| !orders[..*at].contains(order)).count();
        assert_eq!(orders, 8);
        assert!((100..300).contains(&failures), "{failures}");
        assert_eq!(program(&[]).1, []);
    }
}
