//! D5: the memory helpers of the guide, as calls of an allocator that we run.

use crate::backend::{AnyBackend, TestDevice};
use crate::suite::{Entry, Trouble, Verdict};
use parkade::stats::Family;

use crate::scenarios::story::{Story, claim, failed, format_bytes, mib, scenario};

pub(super) fn entries() -> Vec<Entry> {
    vec![scenario(
        "D5/helpers",
        "print, copy to the CPU, clear, reset, fraction and cleanup: what each does to the figures",
        helpers,
    )]
}

/// Allocated, reserved, and the most that was allocated and reserved: what the guide's `info` prints.
fn info(story: &mut Story, after: &str) -> [i64; 4] {
    let stats = story.stage.stats();
    let [allocated, reserved] = [Family::AllocatedBytes, Family::ReservedBytes].map(|family| stats.family(family).all);
    let figures = [allocated.current, reserved.current, allocated.peak, reserved.peak];
    let [allocated, reserved, most_allocated, most_reserved] = figures.map(|bytes| format_bytes(bytes.unsigned_abs()));
    story.say(&format!("{after:<28} {allocated:>12} {reserved:>12} {most_allocated:>14} {most_reserved:>14}"));
    figures
}

fn helpers(backend: &AnyBackend) -> Verdict {
    let mut story = Story::new(backend, "", None)?;
    story.say(&format!("{:<28} {:>12} {:>12} {:>14} {:>14}", "", "allocated", "reserved", "max allocated", "max reserved"));
    for name in ["first", "live", "third"] {
        story.alloc(name, mib(64))?;
    }
    for name in ["first", "third"] {
        story.free(name)?;
    }
    expect(info(&mut story, "two of three tensors freed"), [64, 192, 192, 192])?;
    copy_to_the_cpu(&mut story)?;
    expect(info(&mut story, "safe_tensor_to_cpu"), [64, 192, 192, 192])?;
    story.stage.release_cached()?;
    expect(info(&mut story, "clear_cuda_memory"), [64, 64, 192, 192])?;
    story.stage.core().reset_peak_stats();
    expect(info(&mut story, "reset"), [64, 64, 64, 64])?;
    story.stage.core().set_memory_fraction(0.002).map_err(failed)?;
    let _ = story.stage.alloc("512 MiB", mib(512))?.refusal()?;
    claim(story.stage.core().set_memory_fraction(1.5).is_err(), || "a fraction of 1.5 was accepted".to_owned())?;
    expect(info(&mut story, "fraction 0.002: 512 MiB fail"), [64, 64, 64, 64])?;
    story.stage.core().set_memory_fraction(1.0).map_err(failed)?;
    story.alloc("512 MiB", mib(512))?;
    story.free("512 MiB")?;
    expect(info(&mut story, "fraction 1: they are served"), [64, 576, 576, 576])?;
    story.free("live")?;
    story.stage.release_cached()?;
    expect(info(&mut story, "cleanup_model_memory"), [0, 0, 576, 576])?;
    story.finish()
}

fn expect(found: [i64; 4], mib: [i64; 4]) -> Result<(), Trouble> {
    claim(found == mib.map(|count| count << 20), || format!("expected {mib:?} MiB, found {found:?} bytes"))
}

/// Every byte arrives, and nothing moves on the device.
fn copy_to_the_cpu(story: &mut Story) -> Result<(), Trouble> {
    const WORD: u32 = 0x600d_f00d;
    let (address, stream) = (story.stage.address("live")?, story.stage.streams()[0]);
    let mut copy = vec![0; 64 << 20];
    let mut device = story.stage.device().steer();
    device.fill(address, mib(64), WORD, stream)?;
    device.read(address, &mut copy)?;
    claim(copy.chunks_exact(4).all(|word| word == WORD.to_le_bytes()), || "the copy is not what was written".to_owned())
}
