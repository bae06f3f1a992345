//! Settings that change while a program runs.

use parkade::settings::{ErrorKind, Settings};
use parkade::stats::Family;
use parkade::units::{Bytes, MIB, StreamId};

use super::support::{ensure, once, same};
use crate::backend::{AnyBackend, Needs};
use crate::scripted_allocator::Stage;
use crate::suite::{Entry, Evidence, Requirement, Trouble, Verdict};

/// 21 Mi elements of four bytes.
const MIDDLING: Bytes = Bytes(84 * MIB);
/// 100 Mi elements of four bytes.
const BIG: Bytes = Bytes(400 * MIB);
/// Strings for which Python raises `ValueError`.
const REFUSED: [&str; 7] = [
    "foo:1,bar:2",
    "garbage_collection_threshold:1.2",
    "max_split_size_mb:2",
    "release_lock_on_cudamalloc:none",
    "pinned_use_cuda_host_register:none",
    "pinned_num_register_threads:none",
    "pinned_num_register_threads:1024",
];

pub(super) fn entries() -> Vec<Entry> {
    vec![
        once(
            "test_allocator_settings",
            "divisions round requests, a later string resets them, invalid strings are refused",
            strings,
        ),
        once("test_max_split_expandable", "blocks of all kinds are released for a request that needs all memory", max_split)
            .requires(Requirement::ExpandableSegments),
        once("test_garbage_collect_expandable", "garbage collection skips expandable blocks", garbage)
            .requires(Requirement::ExpandableSegments),
        once("test_cachingAllocator_raw_alloc", "a raw request of 1 MiB counts as requested", raw_alloc),
    ]
}

/// Applies a settings string at run time.
fn apply(stage: &mut Stage, text: &str) -> Result<(), Trouble> {
    stage.core().policy_mut().settings.apply(text).map_err(|error| Trouble::fail(format!("{text:?}: {error}")))
}

/// What a request adds to the cumulative active bytes, and to the cumulative requested bytes.
fn added(stage: &mut Stage, name: &str, bytes: Bytes) -> Result<(u64, u64), Trouble> {
    let sums = |stage: &Stage| {
        let of = |family| stage.stats().family(family).all.allocated.cast_unsigned();
        (of(Family::ActiveBytes), of(Family::RequestedBytes))
    };
    let before = sums(stage);
    stage.alloc(name, bytes)?.served()?;
    let after = sums(stage);
    Ok((after.0 - before.0, after.1 - before.1))
}

/// The size rounded up to a division of its power of two.
fn rounded(bytes: Bytes, divisions: u64) -> u64 {
    let power = bytes.get().next_power_of_two();
    if power == bytes.get() { power } else { bytes.get().next_multiple_of(power / 2 / divisions) }
}

fn strings(backend: &AnyBackend) -> Verdict {
    let mut stage = Stage::new(backend, &Needs::default(), "", None)?;
    let whole = MIDDLING.get();
    same("without divisions", added(&mut stage, "x", MIDDLING)?, (whole, whole))?;
    apply(&mut stage, "roundup_power2_divisions:4")?;
    same("with four divisions", added(&mut stage, "y", MIDDLING)?, (rounded(MIDDLING, 4), whole))?;
    apply(&mut stage, "garbage_collection_threshold:0.5")?;
    apply(&mut stage, "garbage_collection_threshold:0.5,max_split_size_mb:40")?;
    stage.release_cached()?;
    same("after a string that does not name them", added(&mut stage, "z", MIDDLING)?.0, whole)?;
    stage.release_cached()?;
    apply(&mut stage, "garbage_collection_threshold:0.5,roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]")?;
    same("in the interval from 64 MiB", added(&mut stage, "w", MIDDLING)?.0, rounded(MIDDLING, 8))?;
    stage.release_cached()?;
    same("in the interval from 256 MiB", added(&mut stage, "v", BIG)?.0, rounded(BIG, 2))?;
    stage.release_cached()?;
    apply(&mut stage, "release_lock_on_cudamalloc:True")?;
    same("after a string of another key", added(&mut stage, "u", MIDDLING)?.0, whole)?;
    let mut text = stage.picture();
    for wrong in REFUSED {
        let error = Settings::default().apply(wrong).err();
        let error = error.ok_or_else(|| Trouble::fail(format!("{wrong:?} was accepted")))?;
        let is_value_error = matches!(error.kind(), ErrorKind::Value | ErrorKind::InvalidNumber);
        ensure(is_value_error, || format!("{wrong:?} is not a ValueError but {:?}", error.kind()))?;
        text += &format!("{wrong}: {}\n", error.message());
    }
    stage.finish()?;
    Ok(Evidence { text, operations: 20, ..Evidence::default() })
}

fn max_split(backend: &AnyBackend) -> Verdict {
    const ORDINARY: &str = "expandable_segments:False,max_split_size_mb:40";
    const EXPANDABLE: &str = "expandable_segments:True,max_split_size_mb:40";
    let mut stage = Stage::new(backend, &Needs::default(), "", Some(Bytes::mib(120)))?;
    for (name, settings) in [("a", ORDINARY), ("b", EXPANDABLE), ("c", ORDINARY)] {
        apply(&mut stage, settings)?;
        stage.alloc(name, Bytes::mib(40))?.served()?;
    }
    stage.alloc("d", Bytes::mib(40))?.refusal()?;
    let mut text = stage.picture();
    for name in ["a", "b", "c"] {
        stage.free(name)?;
    }
    stage.alloc("all", Bytes::mib(120))?.served()?;
    text += "\n";
    text += &stage.picture();
    stage.finish()?;
    Ok(Evidence { text, operations: 8, ..Evidence::default() })
}

fn garbage(backend: &AnyBackend) -> Verdict {
    let mut stage = Stage::new(backend, &Needs::default(), "", Some(Bytes::mib(120)))?;
    for (name, settings) in [
        ("a", "expandable_segments:False,garbage_collection_threshold:0.5"),
        ("b", "expandable_segments:True,garbage_collection_threshold:0.5"),
    ] {
        apply(&mut stage, settings)?;
        stage.alloc(name, Bytes::mib(40))?.served()?;
    }
    stage.free("a")?;
    stage.free("b")?;
    stage.alloc("c", Bytes::mib(80))?.served()?;
    let text = stage.picture();
    stage.finish()?;
    Ok(Evidence { text, operations: 5, ..Evidence::default() })
}

fn raw_alloc(backend: &AnyBackend) -> Verdict {
    let mut stage = Stage::new(backend, &Needs::default(), "", None)?;
    let core = stage.core();
    core.reset_accumulated_stats();
    let raw = core.raw_allocate(Bytes(MIB), StreamId::DEFAULT).map_err(|error| Trouble::fail(error.to_string()))?;
    same("requested bytes", core.stats().family(Family::RequestedBytes).all.allocated, MIB.cast_signed())?;
    core.free(raw).map_err(|error| Trouble::fail(error.to_string()))?;
    stage.finish()?;
    Ok(Evidence::operations(2))
}
