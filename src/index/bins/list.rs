//! A bin with few blocks: a doubly linked list through the slots, by size, rank and address.

use crate::block::{Block, NIL, Slots};

/// The blocks of a list.
#[inline]
pub(super) fn list(slots: &[Block], head: u32) -> impl Iterator<Item = u32> + '_ {
    let mut next = head;
    core::iter::from_fn(move || {
        let index = next;
        next = slots.linked(index)?.link_next;
        Some(index)
    })
}

/// Links a block into a sorted list. Returns the list's new head.
#[inline]
pub(super) fn link(slots: &mut [Block], head: u32, index: u32) -> u32 {
    let block = slots.at(index);
    let (size, place) = (block.size, block.place_in_size());
    let (mut before, mut after) = (NIL, head);
    while let Some(other) = slots.linked(after)
        && (other.size, other.place_in_size()) < (size, place)
    {
        before = after;
        after = other.link_next;
    }
    debug_assert!(after != index, "a block entered the free index twice");
    let block = slots.at_mut(index);
    block.link_prev = before;
    block.link_next = after;
    if let Some(other) = slots.linked_mut(after) {
        other.link_prev = index;
    }
    match slots.linked_mut(before) {
        Some(other) => {
            other.link_next = index;
            head
        }
        None => index,
    }
}

/// Unlinks a block from its list. Returns the list's new head.
#[inline]
pub(super) fn unlink(slots: &mut [Block], head: u32, index: u32) -> u32 {
    let block = slots.at(index);
    let (before, after) = (block.link_prev, block.link_next);
    if let Some(other) = slots.linked_mut(after) {
        other.link_prev = before;
    }
    match slots.linked_mut(before) {
        Some(other) => {
            other.link_next = after;
            head
        }
        None => after,
    }
}
