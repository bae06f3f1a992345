//! The data of a page's script: one packed piece for each device.
//!
//! A piece is gzip of four bytes (the length of the next part, little-endian), a JSON object, and the columns that it lists. All text
//! from the recording is in that object, so an HTML parser sees none of it.
//!
//! A page stays below a given size: if all blocks take more, only those that show at some chosen moments are kept. The page says so,
//! and its slider stops at those moments.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::Result;
use flate2::Compression;
use flate2::write::GzEncoder;
use parkade_analysis::holders::Kind;
use parkade_analysis::timeline::{Column, Curve, HeapLog, Packed, pack_numbers};
use parkade_analysis::{is_library, own_frame};
use parkade_recording::{Frame, StackId};
use serde_json::{Value, json};

use super::gather::{Device, Report};
use super::kinds::Legend;
use super::{kinds, palette};

/// The number of moments chosen at first, if not all can be shown.
const CHOSEN_MOMENTS: usize = 400;
/// The most text of stacks in a page, in bytes.
const MOST_STACK_TEXT: usize = 2 << 20;

/// A device's piece.
pub(super) struct Piece {
    /// The bytes before base64.
    pub(super) bytes: Vec<u8>,
    /// The number of chosen moments, if not all can be shown.
    pub(super) chosen_moments: Option<usize>,
}

/// Packs a device into at most `most_bytes` of base64.
pub(super) fn piece(report: &Report, device: &Device, most_bytes: usize) -> Result<Piece> {
    let most_bytes = most_bytes / 4 * 3;
    let kinds = Legend::of(device);
    let whole = pack(report, device, &Shown { log: &device.timeline.log, kinds: &kinds, moments: None })?;
    if whole.len() <= most_bytes {
        return Ok(Piece { bytes: whole, chosen_moments: None });
    }
    let mut count = CHOSEN_MOMENTS;
    loop {
        let moments = chosen(device, count);
        let (log, places) = device.timeline.log.only(&moments);
        let blocks = places.iter().filter_map(|&place| kinds.blocks.get(place).copied()).collect();
        let kinds = Legend { told: kinds.told.clone(), blocks };
        let bytes = pack(report, device, &Shown { log: &log, kinds: &kinds, moments: Some(&moments) })?;
        if bytes.len() <= most_bytes || count <= 1 {
            return Ok(Piece { bytes, chosen_moments: Some(moments.len()) });
        }
        count /= 2;
    }
}

/// Some moments in order: the end, the peaks, the first markers, and others evenly spread.
fn chosen(device: &Device, count: usize) -> Vec<u32> {
    let entries = device.timeline.entries;
    let mut moments = vec![entries as u32, device.peak_allocated_moment, device.peak_reserved_moment];
    moments.extend(device.timeline.markers.iter().map(|marker| marker.moment).take(count / 4));
    moments.truncate(count.max(1));
    let rest = count.saturating_sub(moments.len());
    moments.extend((0..rest).map(|i| (i * entries / rest) as u32));
    moments.sort_unstable();
    moments.dedup();
    moments
}

/// The blocks that a page has.
struct Shown<'a> {
    log: &'a HeapLog,
    kinds: &'a Legend,
    /// The only moments that are shown, if not all are.
    moments: Option<&'a [u32]>,
}

fn pack(report: &Report, device: &Device, shown: &Shown<'_>) -> Result<Vec<u8>> {
    let mut packed = shown.log.pack();
    let mut columns = std::mem::take(&mut packed.columns);
    columns.push(Column { name: "block_told".to_owned(), bytes: pack_numbers(shown.kinds.blocks.iter().copied()) });
    add_curves(&mut columns, device);
    if let Some(times) = &device.times {
        columns.push(Column { name: "times".to_owned(), bytes: times.bytes.clone() });
    }
    let object = serde_json::to_vec(&object(report, device, shown, &packed, &columns))?;
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(6));
    encoder.write_all(&u32::try_from(object.len())?.to_le_bytes())?;
    encoder.write_all(&object)?;
    for column in &columns {
        encoder.write_all(&column.bytes)?;
    }
    Ok(encoder.finish()?)
}

fn add_curves(columns: &mut Vec<Column>, device: &Device) {
    let mut add = |name: String, numbers: &mut dyn Iterator<Item = u64>| {
        columns.push(Column { name, bytes: pack_numbers(numbers) });
    };
    let mut add_curve = |name: &str, curve: &Curve| {
        add(format!("{name}_min"), &mut curve.buckets.iter().map(|bucket| bucket.min));
        add(format!("{name}_max"), &mut curve.buckets.iter().map(|bucket| bucket.max));
    };
    add_curve("allocated", &device.curves.allocated);
    add_curve("active", &device.curves.active);
    add_curve("reserved", &device.curves.reserved);
    for (number, (tried, curve)) in device.tried.iter().enumerate() {
        add_curve(&format!("tried_{number}"), tried.with_rest.as_ref().map_or(curve, |(_, curve)| curve));
    }
    if let Some(rest) = &device.rest {
        add_curve("rest", &rest.in_use);
    }
}

fn object(report: &Report, device: &Device, shown: &Shown<'_>, packed: &Packed, columns: &[Column]) -> Value {
    let markers = device.timeline.markers.iter().map(|marker| json!([marker.moment, marker.kind.name(), marker.bytes]));
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    let mut phase_names: Vec<&str> = Vec::new();
    let phases: Vec<Value> = device
        .phases
        .iter()
        .map(|phase| {
            let number = *names.entry(&phase.name).or_insert_with(|| {
                phase_names.push(&phase.name);
                phase_names.len() - 1
            });
            json!([number, phase.from, phase.to, phase.depth])
        })
        .collect();
    let Stacks { frames, stacks, labels, own } = stacks(report, &packed.stacks);
    json!({
        "device": device.number,
        "entries": device.timeline.entries,
        "log": {
            "base": format!("{:x}", packed.base), "unit": packed.unit, "blocks": packed.blocks, "segments": packed.segments,
            // As text, since handles have 64 bits and JavaScript numbers 53.
            "streams": packed.streams.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "pools": packed.pools.iter().map(|(a, b)| [a.to_string(), b.to_string()]).collect::<Vec<_>>(),
        },
        "frames": frames,
        "stacks": stacks,
        "stack_names": labels,
        "own_calls": own,
        "palette": palette(),
        "columns": columns.iter().map(|column| json!([column.name, column.bytes.len()])).collect::<Vec<_>>(),
        "times": device.times.as_ref().map(|times| json!({
            "start_us": times.start_us, "every": times.every, "count": times.count, "duration_us": times.duration_us,
        })),
        "buckets": device.curves.reserved.buckets.len(),
        "markers": markers.collect::<Vec<_>>(),
        "phase_names": phase_names,
        "phases": phases,
        "moments": shown.moments,
        "told": shown.kinds.told,
        "passes": device.told.passes,
        "peak_allocated": device.peak_allocated_moment,
        "peak_reserved": device.peak_reserved_moment,
        "limit_bytes": device.limit.run_bytes,
        "limit_is_assumed": device.limit.is_assumed(),
        "tried_bytes": device.limit.tried_bytes,
        "tried": device.tried.iter().map(|(tried, curve)| json!({
            "label": tried.label, "is_own": tried.is_own, "is_recommended": tried.is_recommended, "fails_at_entry": tried.run().fails_at_entry,
            "buckets": tried.with_rest.as_ref().map_or(curve, |(_, curve)| curve).buckets.len(),
        })).collect::<Vec<_>>(),
        "rest": device.rest.as_ref().map(|rest| json!({
            "died_at": rest.died_at, "entries": rest.span.entries, "buckets": rest.in_use.buckets.len(),
        })),
    })
}

/// The colours of the page's graphs.
fn palette() -> Value {
    json!({
        // JavaScript's numbers have 53 bits, and no block is larger.
        "sizes": palette::SIZES.iter().map(|class| json!([class.below_bytes.min(1 << 53), class.words, class.colour])).collect::<Vec<_>>(),
        "ages": palette::AGES.iter().map(|&(below, words, colour)| json!([below.min(1e9), words, colour])).collect::<Vec<_>>(),
        "stacks": palette::STACKS,
        "kinds": Kind::ALL.iter().zip(palette::KINDS).map(|(&kind, colour)| json!([kinds::name(kind), colour])).collect::<Vec<_>>(),
        "other_stacks": palette::OTHER_STACKS,
        "no_stack": palette::NO_STACK,
        "phases": palette::PHASES,
        "other_phases": palette::OTHER_PHASES,
        "settings": palette::SETTINGS,
    })
}

/// The stacks that blocks use.
#[derive(Default)]
struct Stacks {
    /// Function, file, line, and whether it is the user's own code.
    frames: Vec<Value>,
    /// Each stack as numbers of frames, innermost first. Stacks beyond the limit on text are empty.
    stacks: Vec<Vec<usize>>,
    /// Each stack's name: the user's own call, and what it called.
    labels: Vec<[String; 2]>,
    /// The place in each stack of the user's own call, if it has one.
    own: Vec<Option<usize>>,
}

fn stacks(report: &Report, used: &[StackId]) -> Stacks {
    let table = &report.stacks;
    let (mut all, mut text, mut places) = (Stacks::default(), 0, BTreeMap::new());
    for &stack in used {
        let (own, called) = report.labels.get(stack).map_or(("", ""), |label| (&*label.own, &*label.called));
        text += own.len() + called.len();
        let is_too_much = text > MOST_STACK_TEXT;
        all.labels.push(if is_too_much {
            [format!("stack {}", all.labels.len() + 1), String::new()]
        } else {
            [own, called].map(str::to_owned)
        });
        let mut calls = Vec::new();
        for frame in table.frames(stack) {
            if text > MOST_STACK_TEXT {
                break;
            }
            let Frame { filename, line, name } = frame;
            let place = *places.entry((filename, *line, name)).or_insert_with(|| {
                text += filename.len() + name.len();
                all.frames.push(json!([&**name, &**filename, line, u8::from(!is_library(filename))]));
                all.frames.len() - 1
            });
            text += 4;
            calls.push(place);
        }
        let own = own_frame(table, stack);
        all.own.push(table.frames(stack).position(|frame| Some(frame) == own).filter(|&place| place < calls.len()));
        all.stacks.push(calls);
    }
    all
}
