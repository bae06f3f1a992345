//! A6, A7 and A10: what the driver does with pages and holes, below the allocator and without it.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::backend::{AnyBackend, AnyDevice, Needs, TestDevice};
use crate::suite::{Entry, Evidence, Trouble, Verdict};
use parkade::device::{BackendError, DeviceBackend};
use parkade::units::{Bytes, DeviceAddress, MIB};

use crate::scenarios::story::{Story, claim, mib, scenario};

/// How long the kernel of A10 runs.
const SPIN_NS: u64 = 50_000_000;
/// The driver's page.
const PAGE: u64 = 2 * MIB;
/// The capacity for A7, small enough to fill quickly.
const SMALL_DEVICE: Bytes = mib(4096);

pub(super) fn entries() -> Vec<Entry> {
    vec![
        scenario(
            "A6/default",
            "2 and 4 GiB on 8 GiB, the 2 freed: 3 GiB are served once the cached 2 GiB have gone back to the driver",
            |backend| remap(backend, ""),
        ),
        scenario(
            "A6/expandable",
            "the same with expandable segments: the pages of the 2 GiB are mapped under the 3 GiB",
            |backend| remap(backend, "expandable_segments:True"),
        ),
        scenario("A7/pages", "holes of whole pages do not matter: the driver backs any addresses with any pages", |backend| {
            holes_of_pages(backend, 64)
        }),
        scenario(
            "A7/below-a-page",
            "blocks of 1 MiB share pages: with one of each pair freed, the driver has no more free memory than before",
            holes_below_a_page,
        ),
        scenario(
            "A7/three-quarters",
            "blocks of 1.5 MiB have a page each: each one that is freed gives 2 MiB back",
            three_quarters,
        ),
        scenario("A10", "cudaFree waits for a running kernel, cudaMalloc does not", waiting),
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

/// A device filled with blocks of one size until it refuses. `held` are the blocks.
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

    /// Frees the blocks for which `goes` answers yes, and returns how many those were.
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

    /// Whether a malloc of this size is served. What it gives is kept.
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
        claim(left.is_empty(), || format!("the device keeps {left:?}"))?;
        Ok(Evidence { text, operations, ..Evidence::default() })
    }
}

fn holes_of_pages(backend: &AnyBackend, block_mib: u64) -> Verdict {
    let mut filled = Filled::new(backend, mib(block_mib))?;
    let (most, count) = (SMALL_DEVICE.get() / (block_mib * MIB), filled.held.len() as u64);
    // A real driver may take some memory for itself meanwhile.
    claim(count == most || count + 1 == most, || format!("{count} blocks of {block_mib} MiB fit; {most} should"))?;
    let freed = filled.free_where(|number, _| number % 2 == 1)?;
    let one = Bytes(freed * block_mib * MIB);
    claim(filled.is_served(one)?, || format!("one malloc of all {one} bytes of the holes is refused"))?;
    claim(!filled.is_served(mib(2 * block_mib))?, || "the device is not full".to_owned())?;
    filled.finish(format!(
        "blocks of {block_mib} MiB fill the device; every other one is freed; one malloc takes all of the holes\n"
    ))
}

fn holes_below_a_page(backend: &AnyBackend) -> Verdict {
    let mut filled = Filled::new(backend, mib(1))?;
    let full = filled.free_bytes()?;
    // One block of each page stays, in whatever order the driver gave them out.
    let mut kept = BTreeMap::new();
    let freed = filled.free_where(|_, address| kept.insert(address.get() / PAGE, ()).is_some())?;
    claim(freed >= SMALL_DEVICE.get() / PAGE - 32, || format!("only {freed} blocks share a page with another"))?;
    let after = filled.free_bytes()?;
    claim(after == full, || format!("{full} bytes were free when full, {after} with {freed} blocks freed"))?;
    claim(!filled.is_served(mib(8))?, || "8 MiB are served".to_owned())?;
    claim(filled.is_served(mib(1))?, || "1 MiB is refused".to_owned())?;
    filled.finish(
        "blocks of 1 MiB fill the device, two to a page; one of each two is freed\n\
         the driver's free memory stays the same to the byte; 8 MiB are refused; 1 MiB is served\n"
            .to_owned(),
    )
}

fn three_quarters(backend: &AnyBackend) -> Verdict {
    let block = Bytes(PAGE * 3 / 4);
    let mut filled = Filled::new(backend, block)?;
    let full = filled.free_bytes()?;
    let freed = filled.free_where(|number, _| number % 2 == 1)?;
    let gained = filled.free_bytes()? - full;
    claim(gained == freed * PAGE, || format!("{freed} blocks freed gave {gained} bytes back"))?;
    claim(filled.is_served(mib(8))?, || "8 MiB are refused".to_owned())?;
    filled.finish(
        "blocks of 1.5 MiB fill the device; every other one is freed: each gives 2 MiB back, and 8 MiB are served\n".to_owned(),
    )
}

/// How long something took: by the device's clock if it is simulated, else by the host's.
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
    let text = "a kernel of 50 ms runs on another stream\n\
        after cudaMalloc of 256 MiB it still runs\n\
        after cudaFree of 256 MiB it is done\n";
    let measured = format!(
        "256 MiB, in microseconds: cudaMalloc {:.0} idle, {:.0} beside the kernel; cudaFree {:.0} idle, {:.0} beside it\n",
        us(idle_malloc_ns),
        us(malloc_ns),
        us(idle_free_ns),
        us(free_ns)
    );
    Ok(Evidence { text: text.to_owned(), measured, operations: 6 })
}
