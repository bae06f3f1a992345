//! A8, A9, A12, A14 and A18: what the allocator tries when no cached block serves a request, call by call.
//!
//! The steps are the *retry ladder*: release some segments, wait for other streams, ask the device, release everything,
//! ask once more.

use std::sync::{Arc, Mutex};

use crate::backend::{AnyBackend, MadeCall, TestDevice};
use crate::suite::{Entry, Trouble, Verdict};
use parkade::device::DeviceBackend;
use parkade::units::Bytes;

use crate::scenarios::story::{Story, claim, mib, scenario};

/// How long the work runs that a step waits for.
const SPIN_NS: u64 = 50_000_000;

pub(super) fn entries() -> Vec<Entry> {
    vec![
        scenario(
            "A8/device",
            "when cudaMalloc fails, the cache is released and cudaMalloc called once more; then it is out of memory",
            ladder_on_the_device,
        ),
        scenario("A8/limit", "at a limit, the driver is not asked before the cache has been released", ladder_at_the_limit),
        scenario("A8/waits", "blocks that other streams still use are waited for before the cache is released", ladder_waits),
        scenario(
            "A8/oversize",
            "oversize blocks are released first, only as many as needed, and that is not counted as a retry",
            ladder_of_oversize_blocks,
        ),
        scenario("A9", "num_alloc_retries is a counter; each request is retried once", retries_are_counted),
        scenario(
            "A12/limited",
            "above its part of the limit, garbage collection releases blocks that were not used lately",
            |backend| collect(backend, Some(mib(700))),
        ),
        scenario("A12/unlimited", "without a limit garbage_collection_threshold does nothing", |backend| collect(backend, None)),
        scenario("A14", "beyond the memory fraction a request is refused before the driver is asked", fraction),
        scenario(
            "A18",
            "callbacks that free memory run on a miss, before the driver is asked; Python's collector is not among them",
            callbacks,
        ),
    ]
}

/// 400 MiB cached and 300 MiB in use, of 1 GiB.
fn cached_and_used(story: &mut Story) -> Result<(), Trouble> {
    story.alloc("cached", mib(400))?;
    story.alloc("used", mib(300))?;
    story.free("cached")?;
    story.show("before");
    let _ = story.stage.calls();
    Ok(())
}

fn ladder_on_the_device(backend: &AnyBackend) -> Verdict {
    let mut story = Story::within(backend, mib(1024), "")?;
    cached_and_used(&mut story)?;
    story.alloc("large", mib(600))?;
    story.expect_calls("600 MiB", &["cudaMalloc 600.00 MiB refused", "cudaFree", "cudaMalloc 600.00 MiB"])?;
    story.expect("served", [900 << 20, 900 << 20, 0, 1, 0, 2, 3, 1])?;
    story.show("served by the retry");
    story.refuse("too large", mib(200))?;
    let refused = "cudaMalloc 200.00 MiB refused";
    story.expect_calls("200 MiB", &[refused, refused, "cudaMemGetInfo"])?;
    story.expect("refused", [900 << 20, 900 << 20, 0, 2, 1, 2, 3, 1])?;
    story.show("after");
    story.finish()
}

fn ladder_at_the_limit(backend: &AnyBackend) -> Verdict {
    let mut story = Story::new(backend, "", Some(mib(1024)))?;
    cached_and_used(&mut story)?;
    story.alloc("large", mib(600))?;
    story.expect_calls("600 MiB", &["cudaFree", "cudaMalloc 600.00 MiB"])?;
    story.expect("served", [900 << 20, 900 << 20, 0, 1, 0, 2, 3, 1])?;
    story.refuse("too large", mib(200))?;
    story.expect_calls("200 MiB", &["cudaMemGetInfo"])?;
    story.expect("refused", [900 << 20, 900 << 20, 0, 2, 1, 2, 3, 1])?;
    story.show("after");
    story.finish()
}

fn ladder_waits(backend: &AnyBackend) -> Verdict {
    let mut story = Story::new(backend, "", Some(mib(1024)))?;
    let other = story.stage.streams()[1];
    story.alloc("shared", mib(400))?;
    story.alloc("used", mib(300))?;
    story.stage.record_stream("shared", other)?;
    story.stage.device().steer().spin(other, SPIN_NS)?;
    story.free("shared")?;
    story.show("before");
    let _ = story.stage.calls();
    story.alloc("large", mib(600))?;
    let calls = ["cudaEventQuery", "cudaEventSynchronize", "cudaFree", "cudaMalloc 600.00 MiB"];
    story.expect_calls("600 MiB", &calls)?;
    story.expect("served", [900 << 20, 900 << 20, 0, 1, 0, 2, 3, 1])?;
    story.show("after");
    story.finish()
}

fn ladder_of_oversize_blocks(backend: &AnyBackend) -> Verdict {
    let mut story = Story::new(backend, "max_split_size_mb:100", Some(mib(1024)))?;
    for (name, size) in [("a", 200), ("b", 250), ("c", 300), ("small", 50)] {
        story.alloc(name, mib(size))?;
    }
    for name in ["a", "b", "c", "small"] {
        story.free(name)?;
    }
    story.show("before");
    let _ = story.stage.calls();
    story.alloc("large", mib(500))?;
    // 800 MiB are reserved. The largest blocks are released until there are 500 MiB; the 50 MiB are not oversize and stay.
    story.expect_calls("500 MiB", &["cudaFree", "cudaFree", "cudaMalloc 500.00 MiB"])?;
    story.expect("served", [500 << 20, 750 << 20, 0, 0, 0, 3, 5, 2])?;
    story.show("after");
    story.finish()
}

fn retries_are_counted(backend: &AnyBackend) -> Verdict {
    let mut story = Story::new(backend, "", Some(mib(300)))?;
    for step in 1..=4 {
        // Each request is larger than the cached segment, and both together exceed the limit.
        story.alloc("block", mib(150 + 2 * step))?;
        let served = story.figures();
        story.say(&format!("after request {step}: num_alloc_retries {}", served.retries));
        claim(served.retries == step as i64 - 1, || format!("{} retries after request {step}", served.retries))?;
        story.free("block")?;
    }
    let _ = story.stage.calls();
    story.refuse("too large", mib(301))?;
    story.expect_calls("a request that no retry can help", &["cudaFree", "cudaMemGetInfo"])?;
    story.expect("at the end", [0, 0, 0, 4, 1, 0, 4, 4])?;
    story.show_figures("after");
    story.finish()
}

fn collect(backend: &AnyBackend, limit: Option<Bytes>) -> Verdict {
    let mut story = Story::new(backend, "garbage_collection_threshold:0.5", limit)?;
    for (name, size) in [("a", 100), ("b", 110), ("c", 120), ("d", 130)] {
        story.alloc(name, mib(size))?;
    }
    for name in ["a", "b", "c"] {
        story.free(name)?;
    }
    // The largest is used once more, so it is young when memory gets short.
    story.alloc("c", mib(120))?;
    story.free("c")?;
    story.show("before");
    let _ = story.stage.calls();
    story.alloc("large", mib(140))?;
    if limit.is_some() {
        story.expect_calls("140 MiB", &["cudaFree", "cudaFree", "cudaMalloc 140.00 MiB"])?;
        story.expect("collected", [270 << 20, 390 << 20, 0, 0, 0, 3, 5, 2])?;
    } else {
        story.expect_calls("140 MiB", &["cudaMalloc 140.00 MiB"])?;
        story.expect("not collected", [270 << 20, 600 << 20, 0, 0, 0, 5, 5, 0])?;
    }
    story.show("after");
    story.finish()
}

fn fraction(backend: &AnyBackend) -> Verdict {
    let mut story = Story::new(backend, "", None)?;
    let total = story.stage.device().look().total_memory();
    let too_large = Bytes(total.get() / 10 * 9);
    let core = story.stage.core();
    core.set_memory_fraction(0.8).map_err(|error| Trouble::fail(format!("{error:?}")))?;
    let set = core.memory_fraction();
    claim((0.799_999..=0.8).contains(&set), || format!("the fraction reads back as {set}"))?;
    // This request depends on the device's size, so its size and the message differ between devices.
    let message = story.stage.alloc("too large", too_large)?.refusal()?;
    claim(message.contains(" allowed; "), || format!("the message has no limit: {message}"))?;
    story.measure(&message);
    story.say("a request of 9/10 of the device, at most 8/10 allowed: out of memory");
    story.expect_calls("what the driver was asked", &["cudaMemGetInfo"])?;
    story.expect("refused", [0, 0, 0, 1, 1, 0, 0, 0])?;
    story.alloc("1 GiB", mib(1024))?;
    story.expect_calls("1 GiB", &["cudaMalloc 1024.00 MiB"])?;
    story.stage.core().set_memory_fraction(1.0).map_err(|error| Trouble::fail(format!("{error:?}")))?;
    let beyond = Bytes(total.get() + mib(2).get());
    let _ = story.stage.alloc("more than there is", beyond)?.refusal()?;
    let calls = story.stage.calls();
    let refused = calls.iter().filter(|call| call.starts_with("cudaMalloc") && call.ends_with("refused")).count();
    claim(refused == 2, || format!("without a limit the driver is asked twice, not {calls:?}"))?;
    story.say("without the limit, a request of more than the device: the driver refuses it, twice");
    story.show("after");
    story.finish()
}

/// For each callback, the calls that had been made before it.
type Seen = Arc<Mutex<Vec<Vec<MadeCall>>>>;

fn callbacks(backend: &AnyBackend) -> Verdict {
    let mut story = Story::new(backend, "", Some(mib(1024)))?;
    let seen = Seen::default();
    let kept = Arc::new(Mutex::new(Some(story.stage.core().allocate(mib(600), parkade::units::StreamId::DEFAULT))));
    for frees in [false, true] {
        let (seen, kept) = (Arc::clone(&seen), Arc::clone(&kept));
        story.stage.core().register_free_memory_callback(Box::new(move |allocator| {
            let calls = allocator.device().list_calls();
            seen.lock().map(|mut seen| seen.push(calls)).ok();
            let taken = if frees { kept.lock().ok().and_then(|mut kept| kept.take()) } else { None };
            taken.and_then(Result::ok).is_some_and(|allocation| allocator.free(allocation).is_ok())
        }));
    }
    story.say("600 MiB are held by a callback, which frees them when it is called; another callback frees nothing");
    story.alloc("first", mib(300))?;
    let after = story.stage.calls();
    claim(after.is_empty(), || format!("calls after the callbacks: {after:?}"))?;
    let runs = |seen: &Seen| seen.lock().map(|mut seen| std::mem::take(&mut *seen)).unwrap_or_default();
    let first = runs(&seen);
    claim(first.len() == 2, || format!("{} callbacks ran on the miss", first.len()))?;
    story.expect("served by what the callback freed", [300 << 20, 600 << 20, 300 << 20, 0, 0, 1, 1, 0])?;
    story.say(
        "first miss: both callbacks ran, and the request was served from what one of them freed, with no call of the driver",
    );
    claim(first.iter().skip(1).all(Vec::is_empty), || format!("calls before the callbacks: {first:?}"))?;
    story.alloc("hit", mib(200))?;
    claim(runs(&seen).is_empty(), || "callbacks ran although a cached block served".to_owned())?;
    story.say("a hit: no callback ran");
    story.alloc("miss", mib(400))?;
    let second = runs(&seen);
    claim(second.len() == 2 && second.iter().all(Vec::is_empty), || format!("calls before the callbacks: {second:?}"))?;
    story.say("second miss: both callbacks ran before the driver was called, and freed nothing");
    story.expect_calls("then", &["cudaMalloc 400.00 MiB"])?;
    story.show("after");
    story.finish()
}
