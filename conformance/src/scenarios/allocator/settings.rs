//! A11, A15, A16 and A19: settings and calls about which the documents are wrong.

use crate::backend::AnyBackend;
use crate::suite::{Entry, Evidence, Trouble, Verdict};
use parkade::device::DeviceBackend;
use parkade::settings::Settings;
use parkade::units::MIB;

use crate::scenarios::story::{Story, claim, mib, scenario};

pub(super) fn entries() -> Vec<Entry> {
    vec![
        scenario("A11", "an oversize block serves only requests within 20 MiB of its size, and those get all of it", oversize),
        scenario("A11/values", "with a higher max_split_size_mb more blocks are split, not fewer", higher_is_not_better),
        scenario(
            "A15",
            "empty_cache releases segments that are free as a whole; live blocks stay, and so does what shares a segment with one",
            empty_cache,
        ),
        scenario(
            "A16",
            "a cached block of one stream does not serve another stream; its memory must go back to the driver first",
            streams_do_not_share,
        ),
        scenario(
            "A19",
            "CUDA_VISIBLE_DEVICES limits no memory and is not a setting of the allocator; the memory fraction is the limit",
            visible_devices,
        ),
    ]
}

fn oversize(backend: &AnyBackend) -> Verdict {
    let mut story = Story::new(backend, "max_split_size_mb:128", None)?;
    story.alloc("200 MiB", mib(200))?;
    story.free("200 MiB")?;
    story.show("before");
    let _ = story.stage.calls();
    story.alloc("4 MiB", mib(4))?;
    story.expect_calls("4 MiB: not from the 200 MiB, nothing of it is wasted", &["cudaMalloc 20.00 MiB"])?;
    story.alloc("180 MiB", mib(180))?;
    story.expect_calls("180 MiB: the block is 20 MiB larger, which is too much", &["cudaMalloc 180.00 MiB"])?;
    story.alloc("180.5 MiB", parkade::units::Bytes(361 * MIB / 2))?;
    story.expect_calls("180.5 MiB: takes the block of 200 MiB whole", &[])?;
    // 4 MiB in a segment of 20, 180 in one of its own, and 180.5 holding 200.
    story.expect("after", [384 << 20, 400 << 20, 16 << 20, 0, 0, 3, 3, 0])?;
    story.show("after");
    story.finish()
}

fn higher_is_not_better(backend: &AnyBackend) -> Verdict {
    let mut evidence = Evidence::default();
    for (settings, reserved, split) in [
        ("max_split_size_mb:128", 220_i64 << 20, 16_i64 << 20),
        ("max_split_size_mb:256", 400 << 20, 196 << 20),
        ("", 400 << 20, 196 << 20),
    ] {
        let mut story = Story::new(backend, settings, None)?;
        story.alloc("200 MiB", mib(200))?;
        story.free("200 MiB")?;
        story.alloc("4 MiB", mib(4))?;
        story.alloc("200 MiB again", mib(200))?;
        let found = story.figures();
        claim((found.reserved, found.split_free) == (reserved, split), || format!("{settings}: {found:?}"))?;
        story.show("200 MiB, freed, then 4 and 200 MiB");
        let told = story.finish()?;
        evidence.text.push_str(&told.text);
        evidence.text.push('\n');
        evidence.operations += told.operations;
    }
    Ok(evidence)
}

fn empty_cache(backend: &AnyBackend) -> Verdict {
    let mut story = Story::new(backend, "", None)?;
    for (name, size) in [("whole", 100), ("live", 64), ("part 1", 6), ("part 2", 6), ("part 3", 8)] {
        story.alloc(name, mib(size))?;
    }
    for name in ["whole", "part 1", "part 3"] {
        story.free(name)?;
    }
    story.expect("before", [70 << 20, 184 << 20, 14 << 20, 0, 0, 3, 3, 0])?;
    story.show("before");
    let _ = story.stage.calls();
    let (live, part) = (story.stage.address("live")?, story.stage.address("part 2")?);
    story.stage.release_cached()?;
    story.expect_calls("empty_cache", &["cudaFree"])?;
    story.expect("after", [70 << 20, 84 << 20, 14 << 20, 0, 0, 2, 3, 1])?;
    story.expect_same_place(live, "live", true)?;
    story.expect_same_place(part, "part 2", true)?;
    story.show("after");
    story.finish()
}

fn streams_do_not_share(backend: &AnyBackend) -> Verdict {
    let mut story = Story::new(backend, "", Some(mib(300)))?;
    let [_, first, second, _] = story.stage.streams();
    story.stage.alloc_on("of stream 1", mib(200), first)?.served()?;
    story.free("of stream 1")?;
    story.show("before");
    let _ = story.stage.calls();
    story.stage.alloc_on("of stream 2", mib(100), second)?.served()?;
    story.expect_calls("100 MiB on stream 2, 200 cached on stream 1", &["cudaMalloc 100.00 MiB"])?;
    story.show("between");
    story.stage.alloc_on("more of stream 2", mib(150), second)?.served()?;
    story.expect_calls(
        "150 MiB more, at the limit: only the driver takes it from one to the other",
        &["cudaFree", "cudaMalloc 150.00 MiB"],
    )?;
    story.expect("after", [250 << 20, 250 << 20, 0, 1, 0, 2, 3, 1])?;
    story.show("after");
    story.count(4);
    story.finish()
}

fn visible_devices(backend: &AnyBackend) -> Verdict {
    let mut text = String::new();
    let Err(error) = Settings::from_environment("CUDA_VISIBLE_DEVICES:0") else {
        return Err(Trouble::fail("CUDA_VISIBLE_DEVICES was taken as a setting of the allocator"));
    };
    text.push_str(&format!("CUDA_VISIBLE_DEVICES:0 as a setting: {error}\n"));
    let mut story = Story::new(backend, "", None)?;
    let fraction = story.stage.core().memory_fraction();
    claim(fraction >= 1.0, || format!("with no setting the fraction is {fraction}"))?;
    story.say("with no setting the memory fraction is 1: no limit");
    story.stage.core().set_memory_fraction(0.8).map_err(|error| Trouble::fail(format!("{error:?}")))?;
    let total = story.stage.device().look().total_memory().get();
    let limit = story.stage.core().heap().limit();
    let is_right = limit.is_some_and(|limit| limit.get().abs_diff(total / 5 * 4) <= 8);
    claim(is_right, || format!("of {total} bytes, {limit:?} are the limit"))?;
    story.say("after set_per_process_memory_fraction(0.8) the limit is 8/10 of the device");
    let mut evidence = story.finish()?;
    evidence.text.insert_str(0, &text);
    Ok(evidence)
}
