//! Both orders of free blocks give the same answers.

use alloc::vec::Vec;

use proptest::collection::vec;
use proptest::prelude::*;

use super::{FreeIndex, FreeOrder};
use crate::block::{Arena, Block, BlockState, Marks, NIL};

/// Streams that have blocks.
const STREAMS: u16 = 3;

/// The same blocks twice, in the same slots: each order writes into its own arena.
struct Both {
    by_size: (Arena, FreeIndex),
    by_address: (Arena, FreeIndex),
    inside: Vec<u32>,
    end: u64,
}

impl Both {
    fn new() -> Both {
        let pool = |order| (Arena::new(false), FreeIndex::new(order));
        Both { by_size: pool(FreeOrder::BySize), by_address: pool(FreeOrder::ByAddress), inside: Vec::new(), end: 0 }
    }

    /// Adds a block after those of its rank, with a gap; those of rank 1 go down from the end of the address
    /// space.
    fn insert(&mut self, (size, rank, stream, stamp): (u64, u32, u16, u64)) {
        let address = if rank == 0 { self.end } else { (1 << 40) - self.end - size };
        self.end += 2 * size;
        let (requested, prev, next) = (0, NIL, NIL);
        let (link_prev, link_next, generation, pool) = (3, 3, 0, 0);
        let (state, marks) = (BlockState::Free, Marks::default());
        let block = Block {
            address,
            size,
            requested,
            stamp,
            prev,
            next,
            link_prev,
            link_next,
            generation,
            rank,
            stream,
            pool,
            bin: 0,
            state,
            marks,
        };
        let [first, second] = [&mut self.by_size, &mut self.by_address].map(|(arena, index)| {
            let slot = arena.insert(block.clone());
            index.insert(arena, slot);
            slot
        });
        assert_eq!(first, second);
        self.inside.push(first);
    }

    fn remove(&mut self, place: usize) {
        let slot = self.inside.swap_remove(place % self.inside.len());
        for (arena, index) in [&mut self.by_size, &mut self.by_address] {
            index.remove(arena, slot);
            arena.remove(slot);
        }
    }
}

/// All answers to questions with these numbers.
fn answers((arena, index): &(Arena, FreeIndex), stream: u16, size: u64, other: u64) -> Vec<Option<u32>> {
    let mut answers = alloc::vec![
        index.first_at_least(arena, stream, size),
        index.lowest_at_least(arena, stream, size, 0),
        index.lowest_at_least(arena, stream, size, other * 20),
        index.largest_of(arena, stream),
    ];
    answers.extend(index.at_least(arena, stream, size).map(Some));
    answers.extend(index.at_least(arena, stream, 0).map(|block| index.following(arena, block)));
    answers.push(None);
    answers.extend(index.below(arena, stream, size).map(Some));
    answers
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn either_order_gives_the_same_answers(
        blocks in vec((1_u64..40, 0_u32..2, 0..STREAMS, 0_u64..5), 1..150),
        leave in vec(any::<usize>(), 0..100),
        asked in vec((0..=STREAMS, 0_u64..45, 0_u64..400), 30),
    ) {
        let mut both = Both::new();
        blocks.iter().for_each(|&(size, rank, stream, stamp)| both.insert((size * 512, rank, stream, stamp)));
        for place in leave {
            if !both.inside.is_empty() {
                both.remove(place);
            }
        }
        for (stream, size, other) in asked {
            let size = size * 512;
            prop_assert_eq!(answers(&both.by_size, stream, size, other * 512), answers(&both.by_address, stream, size, other * 512));
        }
        let largest = |(arena, index): &(Arena, FreeIndex)| index.largest(arena).map(|slot| arena.at(slot).size);
        prop_assert_eq!(largest(&both.by_size), largest(&both.by_address));
    }
}
