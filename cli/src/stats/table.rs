//! Statistics for people: PyTorch's summary with the measures beneath it, or a row a moment.

use std::io::{self, Write};

use parkade::texts::{format_bytes, memory_summary};
use parkade_analysis::measures::Measures;

use super::{Args, Device, Moment, Shown};
use crate::output;
use crate::size;

/// From here on the documents call fragmentation a risk.
const RISK: f64 = 0.3;

pub(super) fn print(out: &mut impl Write, args: &Args, shown: &Shown) -> io::Result<()> {
    for (place, device) in shown.devices.iter().enumerate() {
        if place > 0 {
            writeln!(out)?;
        }
        if let Some(end) = &device.end {
            writeln!(out, "device {}: no trace; its segments at the end", device.number)?;
            measures(out, end)?;
        } else if args.is_series() {
            series(out, device)?;
        } else {
            single(out, args, device)?;
        }
    }
    for remark in shown.remarks(args) {
        writeln!(out, "{remark}")?;
    }
    Ok(())
}

fn single(out: &mut impl Write, args: &Args, device: &Device) -> io::Result<()> {
    let Some(Moment { sample, .. }) = device.moments.first() else { return Ok(()) };
    if args.keys {
        for (key, value) in sample.stats.entries() {
            writeln!(out, "{key} {value}")?;
        }
    } else {
        write!(out, "{}", memory_summary(device.number, &sample.stats, false))?;
    }
    writeln!(out, "device {}, after entry {} of {}", device.number, sample.entry, device.entries)?;
    measures(out, &sample.measures)
}

fn measures(out: &mut impl Write, measures: &Measures) -> io::Result<()> {
    let size = format_bytes;
    let fragmentation = measures.fragmentation().map_or("-".to_owned(), |share| {
        format!("{}{}", percent(share), if share > RISK { ", a risk by the rule of 30 %" } else { "" })
    });
    let rows = [
        ("fragmentation", format!("{fragmentation} (1 - allocated / reserved)")),
        ("largest hole", size(measures.largest_hole_bytes)),
        ("stranded", format!("{} free beside blocks in use", size(measures.stranded_bytes))),
        ("free segments", format!("{} free as a whole", size(measures.free_segments_bytes))),
        ("pending", format!("{} given back, in use by other streams", size(measures.pending_bytes))),
        ("rounding", format!("{} beyond what was asked for", size(measures.rounding_bytes()))),
        ("holes", measures.holes.to_string()),
    ];
    for (name, value) in rows {
        writeln!(out, "  {name:<14} {value}")?;
    }
    Ok(())
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

const HEADS: [&str; 11] = [
    "step",
    "entry",
    "allocated",
    "reserved",
    "peak allocated",
    "peak reserved",
    "fragmentation",
    "largest hole",
    "stranded",
    "pending",
    "oom",
];

fn series(out: &mut impl Write, device: &Device) -> io::Result<()> {
    if let Some(mark) = &device.mark {
        write!(out, "device {}: steps end with {}", device.number, output::one_line(&output::shorten(mark, 80)))?;
        let lost =
            if device.lost_steps > 0 { format!("; {} ended before the first entry", device.lost_steps) } else { String::new() };
        writeln!(out, "{lost}")?;
    } else {
        writeln!(out, "device {}", device.number)?;
    }
    let rows: Vec<[String; HEADS.len()]> = device.moments.iter().map(cells).collect();
    let widths: Vec<usize> = (0..HEADS.len())
        .map(|column| rows.iter().map(|cells| cells[column].chars().count()).max().unwrap_or(0).max(HEADS[column].len()))
        .collect();
    let heads = HEADS.map(str::to_owned);
    // The first column is empty where the rows are no steps.
    let first = usize::from(device.mark.is_none());
    for row in std::iter::once(&heads).chain(&rows) {
        let cells: Vec<String> = row.iter().zip(&widths).skip(first).map(|(cell, &width)| format!("{cell:>width$}")).collect();
        writeln!(out, "{}", cells.join("  "))?;
    }
    Ok(())
}

fn cells(moment: &Moment) -> [String; HEADS.len()] {
    let (sample, measures) = (&moment.sample, &moment.sample.measures);
    [
        moment.step.map_or_else(String::new, |step| step.to_string()),
        sample.entry.to_string(),
        format_bytes(measures.allocated_bytes),
        format_bytes(measures.reserved_bytes),
        size::show(sample.peak_allocated_bytes),
        size::show(sample.peak_reserved_bytes),
        measures.fragmentation().map_or_else(|| "-".to_owned(), percent),
        format_bytes(measures.largest_hole_bytes),
        format_bytes(measures.stranded_bytes),
        format_bytes(measures.pending_bytes),
        sample.stats.num_ooms.to_string(),
    ]
}

/// All numbers of the rows, exact: the measures, then all keys of memory_stats().
pub(super) fn csv(out: &mut impl Write, devices: &[Device]) -> io::Result<()> {
    let moments = || devices.iter().flat_map(|device| device.moments.iter().map(move |moment| (device, moment)));
    let Some((_, first)) = moments().next() else { return Ok(()) };
    let keys: Vec<String> = first.sample.stats.entries().into_iter().map(|(key, _)| key).collect();
    let own = "device,step,entry,peak_allocated_bytes,peak_reserved_bytes,fragmentation,largest_hole_bytes,stranded_bytes,\
               free_segments_bytes,pending_bytes,rounding_bytes,holes";
    writeln!(out, "{own},{}", keys.join(","))?;
    for (device, Moment { step, sample }) in moments() {
        let measures = &sample.measures;
        let step = step.map_or_else(String::new, |step| step.to_string());
        let (allocated, reserved) = (sample.peak_allocated_bytes, sample.peak_reserved_bytes);
        let fragmentation = measures.fragmentation().map_or_else(String::new, |share| share.to_string());
        write!(out, "{},{step},{},{allocated},{reserved},{fragmentation}", device.number, sample.entry)?;
        let Measures { largest_hole_bytes, stranded_bytes, free_segments_bytes, pending_bytes, holes, .. } = measures;
        write!(
            out,
            ",{largest_hole_bytes},{stranded_bytes},{free_segments_bytes},{pending_bytes},{},{holes}",
            measures.rounding_bytes()
        )?;
        for (_, value) in sample.stats.entries() {
            write!(out, ",{value}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}
