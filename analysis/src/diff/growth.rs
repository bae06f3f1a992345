//! Compares what holds the memory at the two runs' peaks, paired by the code that allocated it.
//!
//! Blocks with stacks are paired by stack if both recordings have stacks. The other blocks are grouped by size class; the
//! class is that of the requested bytes, which do not depend on settings.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use parkade_recording::StackId;
use rustc_hash::FxHashMap;

use super::likeness::Stacks;
use super::side::Replayed;

/// Requests up to this size have their own pool (spec 1.4) and form one class.
const SMALL: u64 = 1 << 20;

/// Requests of similar sizes, from one power of two to the next.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SizeClass {
    /// The smallest size in the class, in bytes.
    pub least_bytes: u64,
    /// The first size above the class, in bytes.
    pub below_bytes: u64,
}

impl SizeClass {
    /// The class of a request.
    #[must_use]
    pub fn of(requested_bytes: u64) -> SizeClass {
        let power = requested_bytes.checked_ilog2().filter(|_| requested_bytes >= SMALL);
        power.map_or(SizeClass { least_bytes: 0, below_bytes: SMALL }, |power| {
            let least_bytes = 1 << power;
            SizeClass { least_bytes, below_bytes: u64::saturating_mul(least_bytes, 2) }
        })
    }
}

/// The origin of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// A call site in the program, as each recording numbers it. Among stacks that differ only in their line numbers, the one
    /// that holds the most.
    Stack {
        /// In the first recording.
        a: Option<StackId>,
        /// In the second recording.
        b: Option<StackId>,
    },
    /// Blocks without stacks, by requested size.
    Sizes(SizeClass),
}

/// Live blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    /// Their bytes.
    pub bytes: u64,
    /// The number of blocks.
    pub blocks: u64,
}

/// The memory that blocks of one origin hold at the two peaks of allocated memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Growth {
    /// The blocks' origin.
    pub origin: Origin,
    /// On the first side.
    pub a: Held,
    /// On the second side.
    pub b: Held,
}

impl Growth {
    /// The bytes on the second side minus those on the first.
    #[must_use]
    pub fn change_bytes(&self) -> i128 {
        i128::from(self.b.bytes) - i128::from(self.a.bytes)
    }
}

/// The way in which blocks are grouped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grouping {
    /// By stack; blocks without a stack by size.
    Stacks,
    /// By size, because at least one recording has no stacks.
    Sizes {
        /// Whether the first recording has stacks.
        a_has_stacks: bool,
        /// Whether the second recording has stacks.
        b_has_stacks: bool,
    },
}

parkade_recording::names! {
    Grouping {
        Grouping::Stacks => "stack",
        Grouping::Sizes { .. } => "size",
    }
}

impl Held {
    /// The sum of these blocks and the other blocks.
    #[must_use]
    pub const fn and(self, other: Held) -> Held {
        Held { bytes: self.bytes.saturating_add(other.bytes), blocks: self.blocks.saturating_add(other.blocks) }
    }
}

/// Identifies a group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Stack { portable: u64, exact: Option<u64> },
    Sizes(SizeClass),
}

/// One side's part of a group.
#[derive(Clone, Copy, Default)]
struct Share {
    held: Held,
    /// The stack that holds the most, and the number of bytes it holds.
    most: Option<(u64, StackId)>,
}

/// What holds the memory at a moment on each side, the largest change first.
pub(super) fn growth(a: (&Replayed<'_>, u32, &Stacks), b: (&Replayed<'_>, u32, &Stacks)) -> (Grouping, Vec<Growth>) {
    let (a_has_stacks, b_has_stacks) = (!a.2.is_empty(), !b.2.is_empty());
    let by_stack = a_has_stacks && b_has_stacks;
    let mut groups: BTreeMap<Key, [Share; 2]> = BTreeMap::new();
    // Many stacks may have one portable form, and the comparison visits all of them.
    let mut has_same_lines: FxHashMap<u64, bool> = FxHashMap::default();
    for (place, (own, other)) in [(a, b), (b, a)].into_iter().enumerate() {
        for ((stack, class), held) in holders(own.0, own.1, by_stack) {
            let key = match own.2.forms(stack) {
                Some(forms) => {
                    let portable = forms.portable;
                    let is_same = has_same_lines.entry(portable).or_insert_with(|| own.2.has_same_lines(other.2, portable));
                    Key::Stack { portable, exact: is_same.then_some(forms.exact) }
                }
                None => Key::Sizes(class),
            };
            let share = &mut groups.entry(key).or_default()[place];
            share.held = share.held.and(held);
            if stack != StackId::NONE && share.most.is_none_or(|(bytes, _)| held.bytes > bytes) {
                share.most = Some((held.bytes, stack));
            }
        }
    }
    let mut growth: Vec<Growth> = groups.into_iter().map(|(key, shares)| of_group(key, shares)).collect();
    growth
        .sort_by_cached_key(|group| (Reverse(group.change_bytes().unsigned_abs()), Reverse(group.b.bytes), order(group.origin)));
    let grouping = if by_stack { Grouping::Stacks } else { Grouping::Sizes { a_has_stacks, b_has_stacks } };
    (grouping, growth)
}

/// The live blocks at a moment: by stack, and those without a stack by size class.
fn holders(replayed: &Replayed<'_>, moment: u32, by_stack: bool) -> BTreeMap<(StackId, SizeClass), Held> {
    let all = SizeClass { least_bytes: 0, below_bytes: u64::MAX };
    let mut holders: BTreeMap<(StackId, SizeClass), Held> = BTreeMap::new();
    let blocks = replayed.timeline.log.blocks.iter();
    for block in blocks.filter(|block| block.born <= moment && moment < block.freed) {
        let key = match block.stack {
            stack if by_stack && stack != StackId::NONE => (stack, all),
            _ => (StackId::NONE, SizeClass::of(block.requested)),
        };
        let held = holders.entry(key).or_default();
        *held = held.and(Held { bytes: block.size, blocks: 1 });
    }
    holders
}

fn of_group(key: Key, [a, b]: [Share; 2]) -> Growth {
    let stack = |share: Share| share.most.map(|(_, stack)| stack);
    let origin = match key {
        Key::Stack { .. } => Origin::Stack { a: stack(a), b: stack(b) },
        Key::Sizes(class) => Origin::Sizes(class),
    };
    Growth { origin, a: a.held, b: b.held }
}

/// Sort in an order that does not depend on hashes.
fn order(origin: Origin) -> (Option<SizeClass>, Option<StackId>, Option<StackId>) {
    match origin {
        Origin::Stack { a, b } => (None, a, b),
        Origin::Sizes(class) => (Some(class), None, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_powers_of_two_above_the_small_pool() {
        let class = |bytes| {
            let class = SizeClass::of(bytes);
            (class.least_bytes, class.below_bytes)
        };
        assert_eq!([0, 1, SMALL - 1].map(class), [(0, SMALL); 3]);
        assert_eq!([SMALL, 2 * SMALL - 1].map(class), [(SMALL, 2 * SMALL); 2]);
        assert_eq!(class(u64::MAX), (1 << 63, u64::MAX));
    }
}
