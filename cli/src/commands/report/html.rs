//! The page: words and tables as HTML, and the data for its script, one packed piece for each device.
//!
//! A piece is gzip of four bytes (the length of the next part, little-endian), a JSON object, and the columns that it lists.
//! All text from the recording is inside that object, so an HTML parser never sees it.
//!
//! A page stays below a given size: if all blocks take more, only those that are live at some chosen moments are kept. The page
//! says so, and its slider stops at those moments.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;

use anyhow::Result;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use flate2::Compression;
use flate2::write::GzEncoder;
use parkade_analysis::FrameKind;
use parkade_analysis::advise::Outcome;
use parkade_analysis::holders::Kind;
use parkade_analysis::timeline::{Column, Curve, HeapLog, MarkerKind, Packed, pack_numbers};
use parkade_recording::{Frame as StackFrame, StackId};
use serde_json::{Value, json};

use super::gather::{DEFAULT, Device, Fared, Report, Tried};
use super::holders::{self, Legend};
use super::palette;
use super::words::{self, OWN_MARK};
use crate::commands::advise::words::REACHES_BEYOND;
use crate::terminal::markup::{escape, fill, grouped};
use crate::terminal::output;
use crate::terminal::size::{self, show_bytes};

const PAGE: &str = include_str!("web/page.html");
const DEVICE: &str = include_str!("web/device.html");
const STYLE: &str = include_str!("web/style.css");
/// The parts of the script, in order.
const SCRIPT: [&str; 12] = [
    include_str!("web/decode.js"),
    include_str!("web/words.js"),
    include_str!("web/canvas.js"),
    include_str!("web/colours.js"),
    include_str!("web/timeline_picture.js"),
    include_str!("web/timeline.js"),
    include_str!("web/heap.js"),
    include_str!("web/holders.js"),
    include_str!("web/kinds.js"),
    include_str!("web/tried.js"),
    include_str!("web/device.js"),
    include_str!("web/main.js"),
];
/// The approximate size of the words and tables of a device.
const WORDS_BYTES: usize = 18 << 10;

pub(super) fn page(report: &Report) -> Result<String> {
    let share = share(usize::try_from(report.page_bytes).unwrap_or(usize::MAX), report.devices.len());
    let mut tabs = String::new();
    let mut sections = String::new();
    for (number, device) in report.devices.iter().enumerate() {
        let piece = piece(report, device, share)?;
        let is_shown = number == 0;
        let _ = write!(
            tabs,
            "<button type=\"button\" role=\"tab\" data-section=\"{number}\" aria-selected=\"{is_shown}\">device {}</button>",
            device.number
        );
        sections.push_str(&section(report, device, &piece, &Place { number, is_shown, name: "" }));
    }
    let name = report.file.file_name().unwrap_or(report.file.as_os_str()).to_string_lossy();
    Ok(frame(&Frame {
        title: &name,
        path: &report.file.display().to_string(),
        meta: &meta(report),
        tabs: if report.devices.len() > 1 { &tabs } else { "" },
        table: "",
        layout: "",
        sections: &sections,
    }))
}

/// The surroundings of a page's sections. Title and path are text; everything else is HTML.
pub(super) struct Frame<'a> {
    pub(super) title: &'a str,
    pub(super) path: &'a str,
    pub(super) meta: &'a str,
    pub(super) tabs: &'a str,
    /// The part above the sections.
    pub(super) table: &'a str,
    /// The attributes of the element around the sections.
    pub(super) layout: &'a str,
    pub(super) sections: &'a str,
}

/// The page.
pub(super) fn frame(frame: &Frame<'_>) -> String {
    let values = [
        ("mark", OWN_MARK),
        ("version", env!("CARGO_PKG_VERSION")),
        ("style", STYLE),
        ("title", &escape(frame.title)),
        ("path", &escape(frame.path)),
        ("meta", frame.meta),
        ("tabs", frame.tabs),
        ("table", frame.table),
        ("layout", frame.layout),
        ("sections", frame.sections),
        ("script", &SCRIPT.concat()),
    ];
    fill(PAGE, &values)
}

/// The settings and the version of a recording.
pub(super) fn meta(report: &Report) -> String {
    let (settings, version) = (escape(&words::settings(report)), escape(&words::version(report)));
    format!("<span>settings <code>{settings}</code></span><span>{version}</span>")
}

/// The number of bytes that a page of this size leaves for the data of each of its sections.
pub(super) fn share(page_bytes: usize, sections: usize) -> usize {
    let fixed = STYLE.len() + SCRIPT.iter().map(|part| part.len()).sum::<usize>();
    (page_bytes.saturating_sub(fixed) / sections.max(1)).saturating_sub(WORDS_BYTES)
}

/// The position of a section.
pub(super) struct Place<'a> {
    /// Its number, which selects it.
    pub(super) number: usize,
    /// Whether it is shown when the page is opened.
    pub(super) is_shown: bool,
    /// Its name, as HTML, if the page has several files.
    pub(super) name: &'a str,
}

/// A device's section.
pub(super) fn section(report: &Report, device: &Device, piece: &Piece, place: &Place<'_>) -> String {
    let has_trace = device.verdict.is_some();
    let values = [
        ("section", place.number.to_string()),
        ("hidden", if place.is_shown { "" } else { "hidden" }.to_owned()),
        ("name", place.name.to_owned()),
        ("kind", kind(device).to_owned()),
        ("happened", escape(&words::what_happened(device))),
        ("class", if words::count_of(device, MarkerKind::OutOfMemory) > 0 { "bad" } else { "" }.to_owned()),
        ("facts", facts(device)),
        ("notes", words::notes(report, device).iter().map(|note| format!("<li>{}</li>", escape(note))).collect()),
        ("moments", moments(piece)),
        ("peak", holders::title(device)),
        ("holders", holders::rows(report, device)),
        ("kinds_hidden", if has_trace { "" } else { "hidden" }.to_owned()),
        ("kinds_title", holders::kinds_title(device)),
        ("kinds", holders::kind_rows(device)),
        ("tried_with", tried_title(device)),
        ("tried", tried(device)),
        ("advice", advice_box(report, device)),
        ("data", BASE64_STANDARD.encode(&piece.bytes)),
    ];
    let values: Vec<(&str, &str)> = values.iter().map(|(name, value)| (*name, value.as_str())).collect();
    fill(DEVICE, &values)
}

/// The CSS classes of a section.
fn kind(device: &Device) -> &'static str {
    match (&device.simulated, &device.verdict) {
        (Some(_), _) => "traced simulated",
        (None, Some(_)) => "traced",
        (None, None) => "segments-only",
    }
}

fn facts(device: &Device) -> String {
    let mut facts = String::new();
    let mut fact = |name: &str, value: &str, more: &str, class: &str| {
        let _ = write!(
            facts,
            "<div class=\"fact {class}\"><dt>{}</dt><dd>{}</dd><p>{}</p></div>",
            escape(name),
            escape(value),
            escape(more)
        );
    };
    let (allocated, reserved) = (device.curves.allocated.peak(), device.curves.reserved.peak());
    if device.verdict.is_none() {
        fact("in use", &show_bytes(allocated), &format!("{} bytes", grouped(allocated)), "");
        fact("reserved", &show_bytes(reserved), &format!("{} bytes", grouped(reserved)), "");
        return facts;
    }
    let at = |moment: u32, bytes| format!("{} bytes, {}", grouped(bytes), words::brought_by(moment));
    fact("peak allocated", &show_bytes(allocated), &at(device.peak_allocated_moment, allocated), "");
    fact("peak reserved", &show_bytes(reserved), &at(device.peak_reserved_moment, reserved), "");
    if let Some(limit) = device.limit.run_bytes {
        let name = if device.limit.is_assumed() { "limit, assumed" } else { "limit" };
        fact(name, &show_bytes(limit), &format!("{} bytes", grouped(limit)), "");
    }
    let ooms = words::count_of(device, MarkerKind::OutOfMemory) as u64;
    fact(
        "out of memory",
        &grouped(ooms),
        match ooms {
            0 => "never",
            1 => "request failed",
            _ => "requests failed",
        },
        if ooms > 0 { "bad" } else { "" },
    );
    let is_exact = device.verdict.as_ref().is_some_and(|verdict| verdict.mismatches == 0);
    let retries = words::count_of(device, MarkerKind::Retry) as u64;
    let how = if is_exact { "after releasing all cached memory" } else { "in the replay, which differs from the recording" };
    fact("retries", &grouped(retries), how, "");
    let duration =
        device.times.as_ref().map_or_else(String::new, |times| format!("over {:.2} s", times.duration_us as f64 / 1e6));
    fact("entries", &grouped(device.timeline.entries as u64), &duration, "");
    let exactness = words::exactness(device);
    if let Some(simulated) = &device.simulated {
        fact("policy", &simulated.policy, "a simulation, not the recorded allocator", "");
        return facts;
    }
    let (word, more) = exactness.split_once(": ").unwrap_or(("inexact", &exactness));
    fact("replay", word, more, if is_exact && device.has_history { "good" } else { "bad" });
    facts
}

fn moments(piece: &Piece) -> String {
    piece.chosen_moments.map_or_else(String::new, |count| {
        format!(
            "<p class=\"note\">The recording is too long for one page to hold every block: the heap is shown at {} selected \
             points (the peaks, markers, and others spread evenly), and the slider stops only there.</p>",
            grouped(count as u64)
        )
    })
}

fn tried(device: &Device) -> String {
    let recorded = device.curves.reserved.peak();
    let mut rows = String::new();
    for (number, (tried, _)) in device.tried.iter().enumerate() {
        let Tried { label, is_own, is_recommended, outcome, .. } = tried;
        let Fared { peak_reserved_bytes, retries, driver_calls, driver_ns, .. } = tried.run();
        let change = (*peak_reserved_bytes as f64 / recorded.max(1) as f64 - 1.0) * 100.0;
        let (fits, class) = words::outcome(device, tried);
        let hint =
            if *outcome == Outcome::Unknown { " title=\"the memory is not known: --limit or --capacity sets it\"" } else { "" };
        let fits = format!("<span class=\"{class}\"{hint}>{fits}</span>");
        let own = match (is_own, is_recommended) {
            (true, true) => " <em>the run’s own, recommended</em>",
            (true, false) => " <em>the run’s own</em>",
            (false, true) => " <em>recommended</em>",
            (false, false) => "",
        };
        let _ = write!(
            rows,
            "<tr data-tried=\"{number}\"><td class=\"what\">{}{own}</td>\
             <td class=\"number\" data-name=\"peak reserved\" title=\"{} bytes\">{}</td>\
             <td class=\"number\" data-name=\"to recorded\">{change:+.1} %</td><td data-name=\"fits\">{fits}</td>\
             <td class=\"number\" data-name=\"retries\">{}</td><td class=\"number\" data-name=\"driver calls\">{}</td>\
             <td class=\"number\" data-name=\"driver time\">{:.1} ms</td></tr>",
            tried_label(name(label)),
            grouped(u64::try_from(*peak_reserved_bytes).unwrap_or(0)),
            size::show(*peak_reserved_bytes),
            grouped(u64::try_from(*retries).unwrap_or(0)),
            grouped(*driver_calls),
            *driver_ns as f64 / 1e6
        );
    }
    rows
}

/// The name of settings on the page.
fn name(label: &str) -> &str {
    if label == DEFAULT { "default settings" } else { label }
}

/// A name with the colour of its line. Long settings may break after `_`, `:` and `,`, but the colour stays with the first part.
fn tried_label(label: &str) -> String {
    let end = label.find(['_', ':', ',']).map_or(label.len(), |at| at + 1);
    let rest = escape(&label[end..]).replace('_', "_<wbr>").replace(':', ":<wbr>").replace(',', ",<wbr>");
    let first = escape(&label[..end]);
    format!("<span class=\"key-label\"><i class=\"swatch\"></i><code>{first}</code></span><wbr><code>{rest}</code>")
}

/// The box with the answer. All devices share one process, so they share the answer too.
fn advice_box(report: &Report, device: &Device) -> String {
    let against = device.simulated.as_ref().and_then(|simulated| simulated.against.as_ref());
    if let Some((against, table)) = against.and_then(|against| Some((against, against.table()?))) {
        let notes: String = against.table_notes().iter().map(|note| format!("<p class=\"note\">{}</p>", escape(note))).collect();
        return format!("<div class=\"advice\"><h2>The largest blocks in the way</h2>{}{notes}</div>", table.html());
    }
    let Some(found) = report.found.as_ref().filter(|_| device.verdict.is_some()) else { return String::new() };
    let advice = words::advice_on(found, device);
    what_to_do("What to do", advice.command.as_deref(), &advice.lines)
}

/// A box with a line to paste and remarks on it.
pub(super) fn what_to_do(title: &str, command: Option<&str>, lines: &[String]) -> String {
    let command = command.map_or_else(String::new, |command| format!("<pre>{}</pre>", escape(command)));
    let lines: String = lines.iter().map(|line| format!("<p>{}</p>", escape(line))).collect();
    format!("<div class=\"advice\"><h2>{title}</h2>{command}{lines}</div>")
}

/// How much memory the settings were tried in.
fn tried_title(device: &Device) -> String {
    let memory = match device.limit.tried_bytes {
        None => "as much memory as is needed".to_owned(),
        Some(bytes) if device.limit.is_assumed() => format!("{} (assumed, see above)", show_bytes(bytes)),
        Some(bytes) => show_bytes(bytes),
    };
    let (requests, more) = match (&device.rest, device.ending.death()) {
        (Some(_), _) => (
            "The requests up to the error, and the estimated ones after it,",
            " Peaks, retries, calls and times include the estimate, as in parkade advise.",
        ),
        (None, Some(_)) => ("The same requests in the file", ""),
        (None, None) => ("The same requests", ""),
    };
    let reaches = device.tried.iter().any(|(tried, _)| tried.reaches_beyond(device.limit.tried_bytes));
    let reaches = if reaches { format!(" {}", output::sentence(REACHES_BEYOND)) } else { String::new() };
    format!("{requests} under each setting, on a simulated device with {memory}: bytes reserved over the run.{more}{reaches}")
}

/// The number of moments chosen at first, if not all can be shown.
const CHOSEN_MOMENTS: usize = 400;
/// The most text of stacks in a page, in bytes.
const MOST_STACK_TEXT: usize = 2 << 20;

/// A device's piece.
pub(super) struct Piece {
    /// The bytes before base64.
    bytes: Vec<u8>,
    /// The number of chosen moments, if not all can be shown.
    chosen_moments: Option<usize>,
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
        let moments = chosen_moments(device, count);
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
fn chosen_moments(device: &Device, count: usize) -> Vec<u32> {
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

/// The blocks included in a page.
struct Shown<'a> {
    log: &'a HeapLog,
    kinds: &'a Legend,
    /// The moments that are shown, if not all are.
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
            // As text, because handles have 64 bits and JavaScript numbers 53.
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
            "label": name(&tried.label), "is_own": tried.is_own, "is_recommended": tried.is_recommended, "fails_at_entry": tried.run().fails_at_entry,
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
        // JavaScript numbers have 53 bits, and no block is larger than that.
        "sizes": palette::SIZES.iter().map(|class| json!([class.below_bytes.min(1 << 53), class.words, class.colour])).collect::<Vec<_>>(),
        "ages": palette::AGES.iter().map(|&(below, words, colour)| json!([below.min(1e9), words, colour])).collect::<Vec<_>>(),
        "stacks": palette::STACKS,
        "kinds": Kind::ALL.iter().zip(palette::KINDS).map(|(&kind, colour)| json!([holders::kind_name(kind), colour])).collect::<Vec<_>>(),
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
    /// The index in each stack of the user's own call, if it has one.
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
        let telling = report.names.telling(table, stack);
        for &number in &telling {
            let Some(StackFrame { filename, line, name }) = table.frame(number).filter(|_| text <= MOST_STACK_TEXT) else {
                break;
            };
            let short = report.names.short(number);
            let (name, filename) = short.as_deref().map_or((&**name, &**filename), |short| (short, ""));
            let place = *places.entry(number).or_insert_with(|| {
                text += filename.len() + name.len();
                all.frames.push(json!([
                    name,
                    filename,
                    line,
                    u8::from(matches!(report.names.kind(number), FrameKind::Program | FrameKind::Text))
                ]));
                all.frames.len() - 1
            });
            text += 4;
            calls.push(place);
        }
        let own = report.names.own_place(table, stack).map(|place| table.calls(stack)[place]);
        all.own.push(telling.iter().position(|&number| Some(number) == own).filter(|&place| place < calls.len()));
        all.stacks.push(calls);
    }
    all
}
