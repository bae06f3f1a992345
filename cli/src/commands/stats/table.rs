//! Statistics as text: PyTorch's summary with measures of fragmentation, or a row for each moment.

use std::io::{self, Write};

use anyhow::Result;
use parkade_analysis::fragmentation::Fragmentation;
use parkade_recording::memory_summary;

use super::{Args, Device, Moment, Shown};
use crate::terminal::size::{self, show_bytes};
use crate::terminal::table::Table;
use crate::terminal::{output, release};

/// The documents call fragmentation above this a risk.
const RISK: f64 = 0.3;

pub(super) fn print(out: &mut dyn Write, args: &Args, shown: &Shown) -> io::Result<()> {
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
    write!(out, "{}", output::paragraph(&release::words(&shown.made_by), 0))?;
    for remark in shown.remarks(args) {
        writeln!(out, "{remark}")?;
    }
    Ok(())
}

fn single(out: &mut dyn Write, args: &Args, device: &Device) -> io::Result<()> {
    let Some(Moment { sample, .. }) = device.moments.first() else { return Ok(()) };
    if args.keys {
        for (key, value) in sample.stats.entries() {
            writeln!(out, "{key} {value}")?;
        }
    } else {
        write!(out, "{}", memory_summary(device.number, &sample.stats, false))?;
    }
    writeln!(out, "device {}, after entry {} of {}", device.number, sample.entry, device.entries)?;
    measures(out, &sample.fragmentation)
}

fn measures(out: &mut dyn Write, measures: &Fragmentation) -> io::Result<()> {
    let size = show_bytes;
    let fragmentation = measures.ratio().map_or("-".to_owned(), |share| {
        format!("{}{}", percent(share), if share > RISK { ", a risk by the 30 % rule" } else { "" })
    });
    let rows = [
        ("fragmentation", format!("{fragmentation} (1 - allocated / reserved)")),
        ("largest hole", size(measures.largest_hole_bytes)),
        ("partial segments", format!("{} free in segments that are partly in use", size(measures.partial_segments_bytes))),
        ("free segments", format!("{} in wholly free segments", size(measures.free_segments_bytes))),
        ("pending", format!("{} freed, but still in use by other streams", size(measures.pending_bytes))),
        ("rounding", format!("{} beyond what was requested", size(measures.rounding_bytes()))),
        ("holes", measures.holes.to_string()),
    ];
    for (name, value) in rows {
        writeln!(out, "  {name:<16} {value}")?;
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
    "partial segments",
    "pending",
    "oom",
];

fn series(out: &mut dyn Write, device: &Device) -> io::Result<()> {
    if let Some(mark) = &device.mark {
        write!(out, "device {}: steps end with {}", device.number, output::one_line(&output::shorten(mark, 80)))?;
        let lost =
            if device.lost_steps > 0 { format!("; {} ended before the first entry", device.lost_steps) } else { String::new() };
        writeln!(out, "{lost}")?;
    } else {
        writeln!(out, "device {}", device.number)?;
    }
    // Without steps the first column is left out.
    let first = usize::from(device.mark.is_none());
    let mut table = Table::plain(0, HEADS.into_iter().skip(first));
    for moment in &device.moments {
        table.row(cells(moment).into_iter().skip(first));
    }
    write!(out, "{}", table.text_with_left(&[]))
}

fn cells(moment: &Moment) -> [String; HEADS.len()] {
    let (sample, measures) = (&moment.sample, &moment.sample.fragmentation);
    [
        moment.step.map_or_else(String::new, |step| step.to_string()),
        sample.entry.to_string(),
        show_bytes(measures.allocated_bytes),
        show_bytes(measures.reserved_bytes),
        size::show(sample.peak_allocated_bytes),
        size::show(sample.peak_reserved_bytes),
        measures.ratio().map_or_else(|| "-".to_owned(), percent),
        show_bytes(measures.largest_hole_bytes),
        show_bytes(measures.partial_segments_bytes),
        show_bytes(measures.pending_bytes),
        sample.stats.num_ooms.to_string(),
    ]
}

/// The columns before all keys of memory_stats().
const COLUMNS: [&str; 12] = [
    "device",
    "step",
    "entry",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "fragmentation",
    "largest_hole_bytes",
    "stranded_bytes",
    "free_segments_bytes",
    "pending_bytes",
    "rounding_bytes",
    "holes",
];

/// All numbers of the rows, exact: the file if there are several, the measures, then all keys of memory_stats().
pub(super) fn csv(out: &mut dyn Write, args: &Args, devices: &[Device]) -> Result<()> {
    let mut writer = csv::Writer::from_writer(out);
    let moments = devices.iter().flat_map(|device| device.moments.iter().map(move |moment| (device, moment)));
    for (place, (device, Moment { step, sample })) in moments.enumerate() {
        let (measures, (keys, values)): (_, (Vec<_>, Vec<_>)) =
            (&sample.fragmentation, sample.stats.entries().into_iter().unzip());
        if place == 0 {
            let columns = COLUMNS.map(str::to_owned).into_iter().chain(keys);
            writer.write_record(args.is_one_of_several.then(|| "file".to_owned()).into_iter().chain(columns))?;
        }
        let own: [String; COLUMNS.len()] = [
            device.number.to_string(),
            step.map_or_else(String::new, |step| step.to_string()),
            sample.entry.to_string(),
            sample.peak_allocated_bytes.to_string(),
            sample.peak_reserved_bytes.to_string(),
            measures.ratio().map_or_else(String::new, |share| share.to_string()),
            measures.largest_hole_bytes.to_string(),
            measures.partial_segments_bytes.to_string(),
            measures.free_segments_bytes.to_string(),
            measures.pending_bytes.to_string(),
            measures.rounding_bytes().to_string(),
            measures.holes.to_string(),
        ];
        let file = args.is_one_of_several.then(|| args.file.display().to_string());
        writer.write_record(file.into_iter().chain(own).chain(values.iter().map(i64::to_string)))?;
    }
    Ok(writer.flush()?)
}
