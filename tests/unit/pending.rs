//! Uses and queues of events are sets, in the order of the real tables.

use alloc::vec::Vec;

use super::*;
use crate::block::{Block, BlockState, Marks, NIL};

fn arena() -> Arena {
    let mut arena = Arena::new(false);
    arena.insert(Block {
        address: 0,
        size: 512,
        requested: 512,
        stamp: 3,
        prev: NIL,
        next: NIL,
        link_prev: NIL,
        link_next: NIL,
        generation: 0,
        rank: 0,
        stream: 0,
        pool: 0,
        bin: 0,
        state: BlockState::Allocated,
        marks: Marks::default(),
    });
    arena
}

const HASHED: StreamOrder = StreamOrder::Hashed(0);

/// The order is that of the real container, asked for streams 0x1000 to 0x9000 of device 0.
#[test]
fn uses_are_a_set_and_come_in_the_order_of_the_real_table() {
    let (mut arena, mut pending) = (arena(), Pending::<()>::new(HASHED));
    assert_eq!(pending.next_use(&arena, 0), None);
    for stream in [5, 3, 5, 9, 3, 7, 9] {
        pending.add_use(&mut arena, 0, StreamId(stream * 0x1000), false);
    }
    pending.remove_use(&mut arena, 0, StreamId(0x4000));
    let mut seen = Vec::new();
    while let Some(stream) = pending.next_use(&arena, 0) {
        assert!(pending.is_consistent(&arena));
        pending.remove_use(&mut arena, 0, stream);
        seen.push(stream.0 / 0x1000);
    }
    assert_eq!(seen, [9, 7, 3, 5]);
    assert!(!arena.at(0).has_uses() && pending.uses.is_empty());
}

fn places(pending: &Pending<u64>) -> Vec<u64> {
    let after = |&place: &u64| pending.queue_from(place + 1);
    core::iter::successors(pending.queue_from(0), after).collect()
}

/// The same for the queues, two of which went in between.
#[test]
fn queues_are_in_the_order_of_the_real_table() {
    let (mut arena, mut pending) = (arena(), Pending::new(HASHED));
    arena.at_mut(0).state = BlockState::Pending;
    arena.at_mut(0).set_events(0);
    let streams = |pending: &Pending<u64>| -> Vec<u64> {
        places(pending).iter().filter_map(|&queue| pending.front(queue)).copied().collect()
    };
    for stream in 1..=7 {
        pending.push(&mut arena, StreamId(stream * 0x1000), stream, 0);
    }
    assert_eq!(streams(&pending), [2, 7, 5, 3, 1, 6, 4]);
    for gone in [4, 2] {
        let place = places(&pending).into_iter().find(|&place| pending.front(place) == Some(&gone));
        assert_eq!(pending.pop(&mut arena, place.unwrap()), Some(0));
    }
    pending.forget_empty_queues();
    for stream in [9, 8, 2] {
        pending.push(&mut arena, StreamId(stream * 0x1000), stream, 0);
    }
    assert_eq!(streams(&pending), [2, 9, 7, 5, 3, 1, 8, 6]);
}

#[test]
fn queues_by_handle_go_with_their_last_events() {
    let (mut arena, mut pending) = (arena(), Pending::new(StreamOrder::ByHandle));
    arena.at_mut(0).state = BlockState::Pending;
    arena.at_mut(0).set_events(0);
    // Descending, so that each comes before all others.
    for stream in (0..100).rev() {
        pending.push(&mut arena, StreamId(stream), stream, 0);
    }
    pending.push(&mut arena, StreamId(90), 90, 0);
    assert_eq!((places(&pending).len(), arena.at(0).events()), (100, 101));
    for queue in 0..80 {
        assert_eq!(pending.front(queue), Some(&queue));
        assert_eq!(pending.pop(&mut arena, queue), Some(0));
        assert_eq!(pending.queue_from(0), Some(queue + 1));
    }
    assert_eq!((pending.first_where((85, 0), |_| true), pending.first_where((90, 1), |_| true)), (Some((85, 0)), Some((90, 1))));
    assert_eq!((pending.take_at(&mut arena, (90, 1)), pending.first_where((90, 1), |_| true)), (Some(0), Some((91, 0))));
    assert!(!pending.is_idle() && pending.is_consistent(&arena));
    assert_eq!((places(&pending).len(), pending.drain_events().count(), arena.at(0).events()), (20, 101, 20));
}
