//! Patterns that were reported against PyTorch's allocator.

use super::attack::AttackError;
use crate::workload::{Event, Workload};

const MIB: u64 = 1 << 20;

/// The fence of pytorch#193400. 64 MiB are live from the start; each cycle allocates 91 MiB and 45.5 MiB, then 2
/// MiB that stay, and frees the first two. With `max_split_size_mb:128` and `expandable_segments:True`, reserved
/// memory grows by 138 MiB per cycle: the free block is too large to be split, and the 2 MiB that stay separate it
/// from the end of the segment.
///
/// # Errors
/// [`AttackError::Shape`] for no cycles, or more than a million.
pub fn fence(cycles: u32) -> Result<Workload, AttackError> {
    if !(1..=1_000_000).contains(&cycles) {
        return Err(AttackError::Shape("there must be from 1 to 1,000,000 cycles"));
    }
    let allocate = |buffer, bytes| Event::Allocate { buffer, bytes, stream: 0 };
    let mut events = vec![allocate(0, 64 * MIB)];
    for cycle in 0..cycles {
        let first = 1 + 3 * cycle;
        events.extend([allocate(first, 91 * MIB), allocate(first + 1, 91 * MIB / 2), allocate(first + 2, 2 * MIB)]);
        events.extend([Event::Free { buffer: first }, Event::Free { buffer: first + 1 }]);
    }
    let says = format!("91 MiB and 45.5 MiB come and go {cycles} times, and 2 MiB stay each time (pytorch#193400)");
    Ok(Workload { name: format!("fence-{cycles}"), says, events, ..Workload::default() })
}

/// The comb of torchrec#4584 ("hard" fragmentation): `teeth` pairs of buffers of `tooth_bytes`, every other buffer
/// freed, then one request as large as all gaps together. A policy that does not move memory needs half as much
/// again.
///
/// # Errors
/// [`AttackError::Shape`] for no teeth, no bytes, or more than 2^60 bytes.
pub fn comb(teeth: u32, tooth_bytes: u64) -> Result<Workload, AttackError> {
    let all = u64::from(teeth).checked_mul(tooth_bytes).filter(|&all| all > 0 && all < 1 << 60);
    let Some(gaps_bytes) = all.filter(|_| teeth <= 1 << 20) else {
        return Err(AttackError::Shape(
            "there must be from 1 to 2^20 teeth, with fewer than 2^60 bytes together and at least 1 each",
        ));
    };
    let mut events: Vec<Event> = (0..2 * teeth).map(|buffer| Event::Allocate { buffer, bytes: tooth_bytes, stream: 0 }).collect();
    events.extend((0..teeth).map(|tooth| Event::Free { buffer: 2 * tooth }));
    events.push(Event::Allocate { buffer: 2 * teeth, bytes: gaps_bytes, stream: 0 });
    let says =
        format!("every other of {} buffers of {tooth_bytes} bytes is freed; then one request is as large as all gaps", 2 * teeth);
    Ok(Workload { name: format!("comb-{teeth}"), says, events, ..Workload::default() })
}

/// New streams for each call (vllm#52951). Each call allocates two buffers of `bytes`, each on the next of
/// `streams` streams, which are used in rotation like PyTorch's 32; it waits for the work and frees the buffers. A
/// free block serves only its own stream, so every stream keeps one.
///
/// # Errors
/// [`AttackError::Shape`] for no calls, no streams, no bytes, or more than 2^60 bytes.
pub fn stream_per_buffer(calls: u32, streams: u16, bytes: u64) -> Result<Workload, AttackError> {
    if !(1..=1_000_000).contains(&calls) || streams == 0 || bytes == 0 || bytes > 1 << 59 {
        return Err(AttackError::Shape(
            "there must be from 1 to 1,000,000 calls, at least 1 stream, and buffers of 1 to 2^59 bytes",
        ));
    }
    let mut events = Vec::new();
    for call in 0..calls {
        let buffers = [2 * call, 2 * call + 1];
        // Stream 0 is the default stream, which is never new.
        let of = buffers.map(|buffer| (buffer, 1 + (buffer % u32::from(streams)) as u16));
        events.extend(of.map(|(buffer, stream)| Event::Allocate { buffer, bytes, stream }));
        events.extend(of.map(|(_, stream)| Event::Launch { stream, us: 100 }));
        events.extend(of.map(|(_, stream)| Event::Synchronize { stream }));
        events.extend(of.map(|(buffer, _)| Event::Free { buffer }));
    }
    let says = format!("{calls} calls allocate two buffers of {bytes} bytes, each on the next of {streams} streams (vllm#52951)");
    Ok(Workload { name: format!("stream-per-buffer-{calls}-{streams}"), says, events, ..Workload::default() })
}
