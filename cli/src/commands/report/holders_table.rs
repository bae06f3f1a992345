//! Who holds the memory at its peak, as rows of the page's tables. The script shows the same for other moments (`web/holders.js`,
//! `web/kinds.js`).

use std::fmt::Write as _;

use crate::terminal::size::show_bytes;
use parkade_analysis::holders::KindUse;
use parkade_analysis::timeline::HolderKey;
use parkade_recording::StackId;

use super::gather::{Device, Report};
use super::markup::{counted, escape, grouped};
use super::{kinds, labels, words};

/// How many holders a page lists.
const HOLDERS: usize = 14;

/// What the table of holders shows.
pub(super) fn title(device: &Device) -> String {
    let total = show_bytes(device.curves.allocated.peak());
    let is_by_stack = device.holders.iter().any(|holder| matches!(holder.key, HolderKey::Stack(_)));
    let by = if is_by_stack { "by where it was requested" } else { "by block size, as the file has no stacks" };
    if device.verdict.is_none() {
        return format!("{total} in use, {by}");
    }
    format!("{total} {}, {by}", words::after(device.peak_allocated_moment))
}

/// What tells the kinds.
pub(super) fn kinds_title(device: &Device) -> String {
    let found: Vec<String> = [Some(kinds::passes(device)), kinds::steps(device)].into_iter().flatten().collect();
    escape(&format!("By kind: {}.", found.join("; ")))
}

/// The kinds at the peak of allocated memory.
pub(super) fn kinds(device: &Device) -> String {
    let uses = if device.verdict.is_some() { kinds::at_peak(device) } else { Vec::new() };
    let total = device.curves.allocated.peak().max(1) as f64;
    let most = uses.first().map_or(1, |used| used.held.bytes.max(1)) as f64;
    let row = |used: &KindUse| {
        let how: Vec<String> = [kinds::told_by(used), kinds::lives(used)].into_iter().flatten().collect();
        let how =
            if how.is_empty() { String::new() } else { format!("<span class=\"called\">{}</span>", escape(&how.join("; "))) };
        let what = format!("{}{how}", escape(kinds::name(used.kind)));
        holder_row(&what, (used.held.bytes, used.held.blocks), total, most)
    };
    uses.iter().map(row).collect()
}

/// A row of a table of holders; what they are is HTML.
fn holder_row(what: &str, (bytes, blocks): (u64, u64), total: f64, most: f64) -> String {
    let (percent, bar) = (bytes as f64 / total * 100.0, bytes as f64 / most * 100.0);
    format!(
        "<tr><td class=\"what\">{what}</td><td class=\"number\" title=\"{} bytes\">{}</td><td class=\"share\"><i style=\"width:{bar:.1}%\"></i><span>{percent:.1} %</span></td>\
         <td class=\"number\">{}</td></tr>",
        grouped(bytes),
        show_bytes(bytes),
        grouped(blocks)
    )
}

/// The holders at that moment.
pub(super) fn rows(report: &Report, device: &Device) -> String {
    let total = device.curves.allocated.peak().max(1) as f64;
    let most = device.holders.first().map_or(1, |holder| holder.bytes.max(1)) as f64;
    let mut rows = String::new();
    for holder in device.holders.iter().take(HOLDERS) {
        let mut what = escape(&words::holder(report, holder.key));
        if let HolderKey::Stack(stack) = holder.key
            && stack != StackId::NONE
        {
            let frames: Vec<String> = report.stacks.frames(stack).take(60).map(|frame| escape(&labels::call(frame))).collect();
            if let Some(label) = report.labels.get(stack).filter(|label| !label.called.is_empty()) {
                what = format!("{}<span class=\"called\">{}</span>", escape(&label.own), escape(&label.called));
            }
            what = format!("<details><summary>{what}</summary><ol><li>{}</li></ol></details>", frames.join("</li><li>"));
        }
        rows.push_str(&holder_row(&what, (holder.bytes, holder.blocks), total, most));
    }
    if device.holders.len() > HOLDERS {
        let rest = &device.holders[HOLDERS..];
        let bytes: u64 = rest.iter().map(|holder| holder.bytes).sum();
        let _ = write!(
            rows,
            "<tr class=\"rest\"><td class=\"what\">{}</td><td class=\"number\">{}</td><td class=\"share\"><span>{:.1} %</span></td><td class=\"number\">{}</td></tr>",
            counted(rest.len() as u64, "other"),
            show_bytes(bytes),
            bytes as f64 / total * 100.0,
            grouped(rest.iter().map(|holder| holder.blocks).sum())
        );
    }
    rows
}
