//! Answers about memory between streams: a part of a block, all blocks of a stream, and a segment that serves nobody at first.

use parkade::policy::{Attempt, Relief};
use parkade::units::{Bytes, DeviceAddress, MIB, StreamId};

use super::{Case, Named, Relieve, SMALL, SOUND, Scripted, ask, new_segment};

/// The cases.
pub(super) fn cases() -> Vec<Case> {
    use Named::{Capturing, Expandable, Gone, Nothing, Part, Private, Used, Whole};
    const BLOCK: u64 = 4 * MIB;
    let first = |first: Relieve| Scripted { place: new_segment, relieve: first, ..SOUND };
    let parting = first(|own, _, _, rung| match (rung, own.block) {
        (0, Some(block)) => Relief::TransferPart { block },
        (1, _) => ask(Attempt::Ask),
        _ => Relief::GiveUp,
    });
    let moving_from_0 = first(|own, heap, _, rung| match (rung, own.block) {
        (0, _) => Relief::TransferAll { from: StreamId::DEFAULT },
        (1, Some(block)) if !heap.is_deferring() => Relief::Reuse(block),
        (1 | 2, _) => ask(Attempt::Ask),
        _ => Relief::GiveUp,
    });
    let moving_from_77 = first(|_, _, _, _| Relief::TransferAll { from: StreamId(77) });
    let providing = first(|_, heap, request, rung| match rung {
        0 => Relief::Provide { bytes: request.size, stream: request.stream },
        _ => heap
            .first_at_least(request.pool, request.stream, request.size)
            .map_or(Relief::GiveUp, |block| Relief::Reuse(block.id)),
    });
    let to_77 = first(|_, _, request, _| Relief::Provide { bytes: request.size, stream: StreamId(77) });
    let nothing = first(|_, _, _, _| Relief::Provide { bytes: Bytes::ZERO, stream: StreamId::DEFAULT });
    let high = first(|own, _, _, _| own.block.map_or(Relief::GiveUp, |block| Relief::ReuseAt { block, offset: Bytes(1024) }));
    let unsplit = Scripted { splits: false, ..parting.clone() };
    let of_another = "transfers a block of another pool, or of the request's own stream";
    let unknown = "transfers the blocks of an unknown stream, or of the request's own";
    let all = [
        ("", Whole, parting.clone(), BLOCK, 9),
        ("", Whole, parting.clone(), SMALL + 512, 9),
        ("", Part, parting.clone(), SMALL + 512, 9),
        ("", Capturing, parting.clone(), BLOCK, 9),
        ("", Whole, unsplit, SMALL + 512, 9),
        ("transfers a block that does not exist", Gone, parting.clone(), BLOCK, 9),
        ("transfers a block that is not free", Used, parting.clone(), BLOCK, 9),
        ("transfers a block that is too small", Whole, parting.clone(), BLOCK + 512, 9),
        (of_another, Whole, parting.clone(), BLOCK, 0),
        (of_another, Private, parting.clone(), BLOCK, 9),
        ("", Expandable, parting.clone(), BLOCK, 9),
        ("", Expandable, parting.clone(), SMALL + 512, 9),
        ("transfers a block that is too small", Expandable, parting.clone(), BLOCK + 512, 9),
        ("", Whole, moving_from_0.clone(), BLOCK - 512, 9),
        ("", Part, moving_from_0.clone(), SMALL + 512, 9),
        ("", Nothing, moving_from_0.clone(), BLOCK, 9),
        ("", Capturing, moving_from_0.clone(), BLOCK, 9),
        (unknown, Whole, moving_from_0, BLOCK, 0),
        (unknown, Whole, moving_from_77, BLOCK, 9),
        ("", Whole, high.clone(), BLOCK - 1024, 0),
        ("", Whole, high.clone(), BLOCK - 2048, 0),
        ("", Part, high.clone(), SMALL + 512, 0),
        ("reuses a block from where too little of it is left", Whole, high.clone(), BLOCK - 512, 0),
        ("reuses a block that is too small", Whole, high.clone(), BLOCK + 512, 0),
        ("reuses a block of another pool or stream", Whole, high, BLOCK - 1024, 9),
        ("", Nothing, providing.clone(), BLOCK, 9),
        ("CUDA out of memory", Nothing, providing.clone(), 601 * MIB, 9),
        ("provides a segment where segments are expandable", Nothing, Scripted { is_expandable: true, ..providing }, BLOCK, 9),
        ("provides a segment of no bytes", Nothing, nothing, BLOCK, 9),
        ("provides a segment for an unknown stream", Nothing, to_77, BLOCK, 9),
    ];
    let with_handles = |handle| Scripted { is_expandable: true, handle: Some(handle), ..SOUND };
    let of_pages = "takes a handle that is not of whole pages";
    let own = "takes handles of its own for segments that do not grow";
    let missing = first(|_, _, _, _| Relief::Move { handles: vec![DeviceAddress(512)] });
    let with_sizes = [
        ("", with_handles(2 * MIB)),
        ("", with_handles(8 * MIB)),
        ("", with_handles(1 << 40)),
        (of_pages, with_handles(0)),
        (of_pages, with_handles(2 * MIB + 512)),
        (own, Scripted { has_own_segments: true, ..with_handles(8 * MIB) }),
        ("moves a handle that does not exist", missing),
    ];
    let with_sizes = with_sizes.map(|(says, scripted)| (says, Nothing, scripted, BLOCK, 0));
    all.into_iter().chain(with_sizes).collect()
}
