//! Ranks, which say which of two blocks came first.

use super::*;
use crate::block::Arena;

/// However many blocks there have been, each new one comes after all that are live.
#[test]
fn ranks_that_are_used_up_are_closed_up_in_order() {
    let mut arena = Arena::new(true);
    arena.add_vacant();
    let block = Block { size: 1024, ..arena.at(0).clone() };
    let first = arena.insert(block.clone());
    let gone = arena.insert(block.clone());
    let second = arena.insert(block.clone());
    arena.remove(gone);
    arena.vacant.next_rank = NIL - 1;
    let low = arena.split(first, 512);
    let ranks = [first, second, low].map(|index| arena.at(index).rank);
    assert!(ranks[0] < ranks[1] && ranks[1] < ranks[2] && ranks[2] < 10, "{ranks:?}");
}
