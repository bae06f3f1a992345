//! The page: words and tables as HTML, and the data for its script.

use std::fmt::Write as _;

use crate::commands::advise::words::REACHES_BEYOND;
use crate::terminal::size::show_bytes;
use anyhow::Result;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use parkade_analysis::advise::Outcome;
use parkade_analysis::timeline::MarkerKind;

use super::advice;
use super::data::{self, Piece};
use super::gather::{Device, Report};
use super::markup::{escape, fill, grouped};
use super::tries::{Fared, Tried};
use super::{OWN_MARK, holders_table, words};
use crate::terminal::size;

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
/// Roughly what the words and tables of a device take.
const WORDS_BYTES: usize = 18 << 10;

pub(super) fn page(report: &Report) -> Result<String> {
    let share = share(usize::try_from(report.page_bytes).unwrap_or(usize::MAX), report.devices.len());
    let mut tabs = String::new();
    let mut sections = String::new();
    for (number, device) in report.devices.iter().enumerate() {
        let piece = data::piece(report, device, share)?;
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

/// What is around the sections of a page. Title and path are text, all else is HTML.
pub(super) struct Frame<'a> {
    pub(super) title: &'a str,
    pub(super) path: &'a str,
    pub(super) meta: &'a str,
    pub(super) tabs: &'a str,
    /// What is above the sections.
    pub(super) table: &'a str,
    /// The attributes of what holds the sections.
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

/// How many bytes of a page of this size are left for the data of each of so many sections.
pub(super) fn share(page_bytes: usize, sections: usize) -> usize {
    let fixed = STYLE.len() + SCRIPT.iter().map(|part| part.len()).sum::<usize>();
    (page_bytes.saturating_sub(fixed) / sections.max(1)).saturating_sub(WORDS_BYTES)
}

/// Where a section stands.
pub(super) struct Place<'a> {
    /// Its number, by which it is chosen.
    pub(super) number: usize,
    /// Whether it is shown when the page is opened.
    pub(super) is_shown: bool,
    /// What it is called, as HTML, if the page has several files.
    pub(super) name: &'a str,
}

/// A device's section.
pub(super) fn section(report: &Report, device: &Device, piece: &Piece, place: &Place<'_>) -> String {
    let has_trace = device.verdict.is_some();
    let values = [
        ("section", place.number.to_string()),
        ("hidden", if place.is_shown { "" } else { "hidden" }.to_owned()),
        ("name", place.name.to_owned()),
        ("kind", if has_trace { "traced" } else { "segments-only" }.to_owned()),
        ("happened", escape(&words::what_happened(device))),
        ("class", if words::count_of(device, MarkerKind::OutOfMemory) > 0 { "bad" } else { "" }.to_owned()),
        ("facts", facts(device)),
        ("notes", words::notes(report, device).iter().map(|note| format!("<li>{}</li>", escape(note))).collect()),
        ("moments", moments(piece)),
        ("peak", holders_table::title(device)),
        ("holders", holders_table::rows(report, device)),
        ("kinds_hidden", if has_trace { "" } else { "hidden" }.to_owned()),
        ("kinds_title", holders_table::kinds_title(device)),
        ("kinds", holders_table::kinds(device)),
        ("tried_with", tried_title(device)),
        ("tried", tried(device)),
        ("advice", advice_box(report, device)),
        ("data", BASE64_STANDARD.encode(&piece.bytes)),
    ];
    let values: Vec<(&str, &str)> = values.iter().map(|(name, value)| (*name, value.as_str())).collect();
    fill(DEVICE, &values)
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
    let (word, more) = exactness.split_once(": ").unwrap_or(("inexact", &exactness));
    fact("replay", word, more, if is_exact { "good" } else { "bad" });
    facts
}

fn moments(piece: &Piece) -> String {
    piece.chosen_moments.map_or_else(String::new, |count| {
        format!(
            "<p class=\"note\">The recording is too long for one page to hold every block: the heap is shown at {} chosen moments (the \
             peaks, markers, and others evenly spread), and the slider stops there.</p>",
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
            tried_label(label),
            grouped(u64::try_from(*peak_reserved_bytes).unwrap_or(0)),
            size::show(*peak_reserved_bytes),
            grouped(u64::try_from(*retries).unwrap_or(0)),
            grouped(*driver_calls),
            *driver_ns as f64 / 1e6
        );
    }
    rows
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
    let Some(found) = report.found.as_ref().filter(|_| device.verdict.is_some()) else { return String::new() };
    let advice = advice::of_device(found, device);
    what_to_do("What to do", advice.command.as_deref(), &advice.lines)
}

/// A box with a line to paste and what is said of it.
pub(super) fn what_to_do(title: &str, command: Option<&str>, lines: &[String]) -> String {
    let command = command.map_or_else(String::new, |command| format!("<pre>{}</pre>", escape(command)));
    let lines: String = lines.iter().map(|line| format!("<p>{}</p>", escape(line))).collect();
    format!("<div class=\"advice\"><h2>{title}</h2>{command}{lines}</div>")
}

/// With how much memory the settings were tried.
fn tried_title(device: &Device) -> String {
    let memory = match device.limit.tried_bytes {
        None => "as much memory as is needed".to_owned(),
        Some(bytes) if device.limit.is_assumed() => format!("{} (assumed, as said above)", show_bytes(bytes)),
        Some(bytes) => show_bytes(bytes),
    };
    let (requests, more) = match (&device.rest, device.ending.death()) {
        (Some(_), _) => (
            "The requests up to the error, and those that are estimated to follow,",
            " Peaks, retries, calls and times include the estimate, as in parkade advise.",
        ),
        (None, Some(_)) => ("The same requests in the file", ""),
        (None, None) => ("The same requests", ""),
    };
    let reaches = device.tried.iter().any(|(tried, _)| tried.reaches_beyond(device.limit.tried_bytes));
    let reaches = if reaches { format!(" {}", words::sentence(REACHES_BEYOND)) } else { String::new() };
    format!("{requests} under each setting, on a simulated device with {memory}: bytes reserved over the run.{more}{reaches}")
}
