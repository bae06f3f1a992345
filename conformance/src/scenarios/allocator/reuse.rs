//! A1 to A3: memory that is reused, segment sizes, splitting and coalescing.

use crate::backend::AnyBackend;
use crate::suite::{Entry, Verdict};
use parkade::snapshot::{BlockActivity, SegmentInfo};
use parkade::units::{Bytes, MIB};

use crate::scenarios::story::{Story, claim, mib, scenario};

pub(super) fn entries() -> Vec<Entry> {
    vec![
        scenario("A1", "256 MB, freed and asked for again: the second request does not reach the driver", reuse),
        scenario(
            "A2",
            "two pools; segments of 2 MiB, 20 MiB or a multiple of 2 MiB; blocks are multiples of 512 bytes",
            segments,
        ),
        scenario("A3", "3 MB from a free block of 8 MB split it into 3 and 5; freed, they coalesce to 8", split_and_merge),
    ]
}

fn reuse(backend: &AnyBackend) -> Verdict {
    let mut story = Story::new(backend, "", None)?;
    story.show("before");
    story.alloc("first", mib(256))?;
    story.expect_calls("256 MiB", &["cudaMalloc 256.00 MiB"])?;
    let place = story.stage.address("first")?;
    story.free("first")?;
    story.expect_calls("freed", &[])?;
    story.show("between");
    story.alloc("second", mib(256))?;
    story.expect_calls("256 MiB again", &[])?;
    story.expect_same_place(place, "second", true)?;
    story.expect("at the end", [256 << 20, 256 << 20, 0, 0, 0, 1, 1, 0])?;
    story.show("after");
    story.finish()
}

/// Requests, with the size of the block and of the segment that each gets.
const SIZES: [(&str, u64, u64, u64); 8] = [
    ("256 B", 256, 512, 2 * MIB),
    ("512 B", 512, 512, 2 * MIB),
    ("768 B", 768, 1024, 2 * MIB),
    ("1 MiB", MIB, MIB, 2 * MIB),
    ("1 MiB + 1 B", MIB + 1, MIB + 512, 20 * MIB),
    // 9.99 MiB.
    ("9.99 MiB", 10_475_274, 10_475_520, 20 * MIB),
    ("10 MiB", 10 * MIB, 10 * MIB, 10 * MIB),
    ("512 MiB", 512 * MIB, 512 * MIB, 512 * MIB),
];

fn segments(backend: &AnyBackend) -> Verdict {
    let mut story = Story::new(backend, "", None)?;
    for (name, bytes, block, segment) in SIZES {
        // The cache is empty for each, so that each gets a segment of its own.
        story.alloc(name, Bytes(bytes))?;
        let made: Vec<SegmentInfo> = story.stage.segments();
        let live = made.iter().flat_map(|segment| &segment.blocks).find(|block| block.state == BlockActivity::Allocated);
        let found = (live.map_or(0, |block| block.size.get()), made.first().map_or(0, |segment| segment.total.get()));
        claim(made.len() == 1 && found == (block, segment), || {
            format!("{name}: expected a block of {block} in a segment of {segment} bytes, found {made:?}")
        })?;
        let class = made[0].class.name();
        story.say(&format!("{name:<12} a block of {block:>9} B in a segment of {segment:>9} B of the {class} pool"));
        story.free(name)?;
        story.stage.release_cached()?;
    }
    for (name, bytes, _, _) in SIZES {
        story.alloc(name, Bytes(bytes))?;
    }
    story.show("all of them together");
    story.finish()
}

fn split_and_merge(backend: &AnyBackend) -> Verdict {
    let mut story = Story::new(backend, "", None)?;
    // Requests below 10 MiB get a segment of 20 MiB: freeing the second one leaves a hole of 8 MiB.
    for (name, size) in [("before", 6), ("8 MiB", 8), ("behind", 6)] {
        story.alloc(name, mib(size))?;
    }
    story.free("8 MiB")?;
    story.show("a free block of 8 MiB");
    let free = |story: &Story| -> Vec<u64> {
        let segments = story.stage.segments();
        let blocks = segments.iter().flat_map(|segment| &segment.blocks);
        blocks.filter(|block| block.state == BlockActivity::Inactive).map(|block| block.size.get() / MIB).collect()
    };
    claim(free(&story) == [8], || format!("free before: {:?} MiB", free(&story)))?;
    story.alloc("3 MiB", mib(3))?;
    story.show("3 MiB of it in use");
    claim(free(&story) == [5], || format!("free between: {:?} MiB", free(&story)))?;
    story.expect("between", [15 << 20, 20 << 20, 5 << 20, 0, 0, 1, 1, 0])?;
    story.free("3 MiB")?;
    story.show("given back");
    claim(free(&story) == [8], || format!("free after: {:?} MiB", free(&story)))?;
    story.expect("after", [12 << 20, 20 << 20, 8 << 20, 0, 0, 1, 1, 0])?;
    story.finish()
}
