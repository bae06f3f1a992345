//! A6 to A10, A12, A14 and A18: how the driver handles pages and holes, and what the allocator requests from it when no cached
//! block serves a request.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use parkade::device::{BackendError, DeviceBackend};
use parkade::units::{Bytes, DeviceAddress, MIB};

use crate::backend::{AnyBackend, AnyDevice, MadeCall, Needs, TestDevice};
use crate::scenarios::story::{Story, claim, mib, scenario};
use crate::suite::{Entry, Evidence, Requirement, Trouble, Verdict};

/// The duration of the work that a step waits for, and of the kernel in A10.
const SPIN_NS: u64 = 50_000_000;
/// The driver's page.
const PAGE: u64 = 2 * MIB;
/// The capacity for A7, small enough to fill quickly.
const SMALL_DEVICE: Bytes = mib(4096);

/// A6, A7 and A10: how the driver handles pages and holes, both below the allocator and without it.
pub(super) fn pages_and_holes() -> Vec<Entry> {
    vec![
        scenario(
            "A6/default",
            "2 GiB and 4 GiB are allocated on an 8 GiB device, and the 2 GiB is freed: a 3 GiB request succeeds after the \
             cached 2 GiB has been returned to the driver",
            |backend| remap(backend, ""),
        ),
        scenario(
            "A6/expandable",
            "with expandable segments, the pages of the freed 2 GiB are mapped for the 3 GiB request",
            |backend| remap(backend, "expandable_segments:True"),
        ),
        scenario("A7/pages", "holes of whole pages do not matter: the driver backs any addresses with any pages", |backend| {
            holes_of_pages(backend, 64)
        }),
        scenario(
            "A7/below-a-page",
            "1 MiB blocks share pages: freeing one block of each pair does not increase the driver's free memory",
            holes_below_a_page,
        ),
        scenario("A7/three-quarters", "1.5 MiB blocks take one page each: each freed block returns 2 MiB", three_quarters),
        scenario("A10", "cudaFree waits for a running kernel, cudaMalloc does not", waiting).requires(Requirement::PendingWork),
    ]
}

fn remap(backend: &AnyBackend, settings: &str) -> Verdict {
    let mut story = Story::within(backend, mib(8192), settings)?;
    let is_expandable = !settings.is_empty();
    story.alloc("2 GiB", mib(2048))?;
    story.alloc("4 GiB", mib(4096))?;
    story.free("2 GiB")?;
    let (before, after) = if is_expandable {
        ([4_294_967_296, 6_459_228_160, 0, 0, 0, 0, 2, 0], [7_516_192_768, 7_528_775_680, 0, 1, 0, 0, 3, 1])
    } else {
        ([4_294_967_296, 6_442_450_944, 0, 0, 0, 2, 2, 0], [7_516_192_768, 7_516_192_768, 0, 1, 0, 2, 3, 1])
    };
    story.expect("with the hole", before)?;
    story.show("before");
    let _ = story.stage.calls();
    story.alloc("3 GiB", mib(3072))?;
    if !is_expandable {
        story.expect_calls("3 GiB", &["cudaMalloc 3.00 GiB refused", "cudaFree", "cudaMalloc 3.00 GiB"])?;
    }
    story.expect("after 3 GiB", after)?;
    story.show("after");
    story.finish()
}

/// A device that was filled with blocks of one size until it refused one. `held` contains the
/// blocks.
struct Filled {
    device: AnyDevice,
    held: Vec<DeviceAddress>,
}

impl Filled {
    fn new(backend: &AnyBackend, block: Bytes) -> Result<Filled, Trouble> {
        let needs = Needs { capacity: Some(SMALL_DEVICE), ..Needs::default() };
        let mut filled = Filled { device: backend.open(&needs)?, held: Vec::new() };
        loop {
            match filled.device.malloc(block) {
                Ok(address) => filled.held.push(address),
                Err(BackendError::OutOfMemory { .. }) => return Ok(filled),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn free_bytes(&mut self) -> Result<u64, Trouble> {
        Ok(self.device.memory_info()?.free.get())
    }

    /// Frees the blocks for which `goes` returns true, and returns their number.
    fn free_where(&mut self, mut goes: impl FnMut(usize, DeviceAddress) -> bool) -> Result<u64, Trouble> {
        let held = std::mem::take(&mut self.held);
        let mut freed = 0;
        for (number, address) in held.into_iter().enumerate() {
            if goes(number, address) {
                self.device.free(address)?;
                freed += 1;
            } else {
                self.held.push(address);
            }
        }
        Ok(freed)
    }

    /// Returns whether a malloc of this size is served. The range is kept.
    fn is_served(&mut self, bytes: Bytes) -> Result<bool, Trouble> {
        match self.device.malloc(bytes) {
            Ok(address) => self.held.push(address),
            Err(BackendError::OutOfMemory { .. }) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        Ok(true)
    }

    fn finish(mut self, text: String) -> Verdict {
        let operations = self.held.len() as u64;
        self.free_where(|_, _| true)?;
        let left = self.device.holdings();
        claim(left.is_empty(), || format!("these were not returned to the device: {left:?}"))?;
        Ok(Evidence { text, operations, ..Evidence::default() })
    }
}

fn holes_of_pages(backend: &AnyBackend, block_mib: u64) -> Verdict {
    let mut filled = Filled::new(backend, mib(block_mib))?;
    let (most, count) = (SMALL_DEVICE.get() / (block_mib * MIB), filled.held.len() as u64);
    // A real driver may take some memory for itself in the meantime.
    claim(count == most || count + 1 == most, || format!("{count} blocks of {block_mib} MiB fit, but {most} should fit"))?;
    let freed = filled.free_where(|number, _| number % 2 == 1)?;
    let one = Bytes(freed * block_mib * MIB);
    claim(filled.is_served(one)?, || format!("one malloc of all {one} bytes in the holes is refused"))?;
    claim(!filled.is_served(mib(2 * block_mib))?, || "the device is not full".to_owned())?;
    filled
        .finish(format!("{block_mib} MiB blocks fill the device; every other one is freed; one malloc takes all of the holes\n"))
}

fn holes_below_a_page(backend: &AnyBackend) -> Verdict {
    let mut filled = Filled::new(backend, mib(1))?;
    let full = filled.free_bytes()?;
    // Keep one block in each page, in whatever order the driver handed the blocks out.
    let mut kept = BTreeMap::new();
    let freed = filled.free_where(|_, address| kept.insert(address.get() / PAGE, ()).is_some())?;
    claim(freed >= SMALL_DEVICE.get() / PAGE - 32, || format!("only {freed} blocks share a page with another block"))?;
    let after = filled.free_bytes()?;
    claim(after == full, || format!("{full} bytes were free when the device was full, {after} with {freed} blocks freed"))?;
    claim(!filled.is_served(mib(8))?, || "8 MiB is served".to_owned())?;
    claim(filled.is_served(mib(1))?, || "the 1 MiB request was refused".to_owned())?;
    filled.finish(
        "1 MiB blocks fill the device, two to a page; one of each pair is freed\n\
         the driver's free memory is the same to the byte; an 8 MiB request fails; a 1 MiB request succeeds\n"
            .to_owned(),
    )
}

fn three_quarters(backend: &AnyBackend) -> Verdict {
    let block = Bytes(PAGE * 3 / 4);
    let mut filled = Filled::new(backend, block)?;
    let full = filled.free_bytes()?;
    let freed = filled.free_where(|number, _| number % 2 == 1)?;
    let gained = filled.free_bytes()? - full;
    claim(gained == freed * PAGE, || format!("freeing {freed} blocks returned {gained} bytes"))?;
    claim(filled.is_served(mib(8))?, || "the 8 MiB request was refused".to_owned())?;
    filled.finish(
        "1.5 MiB blocks fill the device; every other one is freed: each returns 2 MiB, and an 8 MiB request succeeds\n"
            .to_owned(),
    )
}

/// Returns how long an action took, by the device's clock if the device is simulated, by the host's
/// clock if not.
fn timed<T>(device: &mut AnyDevice, act: impl FnOnce(&mut AnyDevice) -> Result<T, BackendError>) -> Result<(T, u64), Trouble> {
    let clock = |device: &mut AnyDevice| device.insight().map(|simulated| simulated.now_ns());
    let (start, start_ns) = (Instant::now(), clock(device));
    let answer = act(device)?;
    let took_ns = match (start_ns, clock(device)) {
        (Some(start_ns), Some(end_ns)) => end_ns - start_ns,
        _ => u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX),
    };
    Ok((answer, took_ns))
}

fn waiting(backend: &AnyBackend) -> Verdict {
    let mut device = backend.open(&Needs::default())?;
    let stream = device.streams()[1];
    let (warm, size) = (device.malloc(mib(256))?, mib(256));
    let ((), idle_free_ns) = timed(&mut device, |device| device.free(warm))?;
    let (kept, idle_malloc_ns) = timed(&mut device, |device| device.malloc(size))?;
    let mut event = device.create_event()?;
    device.spin(stream, SPIN_NS)?;
    device.record_event(&mut event, stream)?;
    let (other, malloc_ns) = timed(&mut device, |device| device.malloc(size))?;
    let runs_after_malloc = !device.is_complete(&event)?;
    let ((), free_ns) = timed(&mut device, |device| device.free(kept))?;
    let runs_after_free = !device.is_complete(&event)?;
    device.free(other)?;
    device.destroy_event(event);
    claim(runs_after_malloc, || "cudaMalloc waited for the kernel".to_owned())?;
    claim(!runs_after_free, || "cudaFree did not wait for the kernel".to_owned())?;
    let us = |ns: u64| ns as f64 / 1000.0;
    let text = "a 50 ms kernel runs on another stream\n\
                after cudaMalloc of 256 MiB it is still running\n\
                after cudaFree of 256 MiB it is done\n";
    let measured = format!(
        "256 MiB, in microseconds: cudaMalloc {:.0} idle, {:.0} during the kernel; cudaFree {:.0} idle, {:.0} during it\n",
        us(idle_malloc_ns),
        us(malloc_ns),
        us(idle_free_ns),
        us(free_ns)
    );
    Ok(Evidence { text: text.to_owned(), measured, operations: 6 })
}

/// A8, A9, A12, A14 and A18: what the allocator tries when no cached block serves a request, call by call.
///
/// The steps are the *retry ladder*: release some segments, wait for other streams, ask the device for memory, release
/// everything, and ask again.
pub(super) fn retry_ladder() -> Vec<Entry> {
    vec![
        scenario(
            "A8/device",
            "when cudaMalloc fails, the cache is released and cudaMalloc is called once more; if that fails, the request runs \
             out of memory",
            ladder_on_the_device,
        ),
        scenario(
            "A8/limit",
            "at a limit, the driver is not asked for memory until the cache has been released",
            ladder_at_the_limit,
        ),
        scenario(
            "A8/waits",
            "the allocator waits for blocks that other streams still use before it releases the cache",
            ladder_waits,
        )
        .requires(Requirement::PendingWork),
        scenario(
            "A8/oversize",
            "oversize blocks are released first, only as many as needed, which does not count as a retry",
            ladder_of_oversize_blocks,
        ),
        scenario("A9", "num_alloc_retries is a counter; each request is retried only once", retries_are_counted),
        scenario(
            "A12/limited",
            "when reserved memory exceeds a fraction of the limit, garbage collection releases blocks that have not been used \
             recently",
            |backend| collect(backend, Some(mib(700))),
        ),
        scenario("A12/unlimited", "without a limit, garbage_collection_threshold has no effect", |backend| {
            collect(backend, None)
        }),
        scenario("A14", "a request beyond the memory fraction is refused before the driver is asked", fraction),
        scenario(
            "A18",
            "callbacks that free memory run on a miss, before the driver is asked; Python's garbage collector is not one of them",
            callbacks,
        ),
    ]
}

/// Leaves 400 MiB cached and 300 MiB in use, on a device of 1 GiB.
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
    // 800 MiB are reserved. The largest blocks are released until 500 MiB are free; the 50 MiB block is not oversize
    // and stays.
    story.expect_calls("500 MiB", &["cudaFree", "cudaFree", "cudaMalloc 500.00 MiB"])?;
    story.expect("served", [500 << 20, 750 << 20, 0, 0, 0, 3, 5, 2])?;
    story.show("after");
    story.finish()
}

fn retries_are_counted(backend: &AnyBackend) -> Verdict {
    let mut story = Story::new(backend, "", Some(mib(300)))?;
    for step in 1..=4 {
        // Each request is larger than the cached segment, and the two together exceed the limit.
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
    // The largest block is used once more, so it is young when memory runs short.
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
        story.expect("not garbage-collected", [270 << 20, 600 << 20, 0, 0, 0, 5, 5, 0])?;
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
    claim((0.799_999..=0.8).contains(&set), || format!("the memory fraction reads back as {set}"))?;
    // This request depends on the device's size, so its size and the message differ between devices.
    let message = story.stage.alloc("too large", too_large)?.refusal()?;
    claim(message.contains(" allowed; "), || format!("the message has no limit: {message}"))?;
    story.measure(&message);
    story.say("a request for 9/10 of the device when at most 8/10 are allowed: out of memory");
    story.expect_calls("calls to the driver", &["cudaMemGetInfo"])?;
    story.expect("refused", [0, 0, 0, 1, 1, 0, 0, 0])?;
    story.alloc("1 GiB", mib(1024))?;
    story.expect_calls("1 GiB", &["cudaMalloc 1024.00 MiB"])?;
    story.stage.core().set_memory_fraction(1.0).map_err(|error| Trouble::fail(format!("{error:?}")))?;
    let beyond = Bytes(total.get() + mib(2).get());
    let _ = story.stage.alloc("more than the device has", beyond)?.refusal()?;
    let calls = story.stage.calls();
    let refused = calls.iter().filter(|call| call.starts_with("cudaMalloc") && call.ends_with("refused")).count();
    claim(refused == 2, || format!("without a limit, the driver should be asked twice, but the calls are {calls:?}"))?;
    story.say("without the limit, a request for more than the device has: the driver refuses it twice");
    story.show("after");
    story.finish()
}

/// For each callback, the driver calls made before it.
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
    story.say("one callback holds 600 MiB, which it frees when it is called; another callback frees nothing");
    story.alloc("first", mib(300))?;
    let after = story.stage.calls();
    claim(after.is_empty(), || format!("driver calls after the callbacks: {after:?}"))?;
    let runs = |seen: &Seen| seen.lock().map(|mut seen| std::mem::take(&mut *seen)).unwrap_or_default();
    let first = runs(&seen);
    claim(first.len() == 2, || format!("{} callbacks ran on the miss", first.len()))?;
    story.expect("served from the memory that the callback freed", [300 << 20, 600 << 20, 300 << 20, 0, 0, 1, 1, 0])?;
    story.say(
        "first miss: both callbacks ran, and the request was served from the memory that one of them freed, without a \
               driver call",
    );
    claim(first.iter().skip(1).all(Vec::is_empty), || format!("the driver was called before the callbacks ran: {first:?}"))?;
    story.alloc("hit", mib(200))?;
    claim(runs(&seen).is_empty(), || "callbacks ran although a cached block served the request".to_owned())?;
    story.say("a hit: no callback ran");
    story.alloc("miss", mib(400))?;
    let second = runs(&seen);
    claim(second.len() == 2 && second.iter().all(Vec::is_empty), || {
        format!("the driver was called before the callbacks ran: {second:?}")
    })?;
    story.say("second miss: both callbacks ran before the driver was called, and freed nothing");
    story.expect_calls("then", &["cudaMalloc 400.00 MiB"])?;
    story.show("after");
    story.finish()
}
