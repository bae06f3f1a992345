//! The frontier as text: a heading for each device and way of training, and a row for each policy.

use std::io::{self, Write};

use parkade_research::study::largest_batch::{Case, Point, Why};

use super::Args;
use super::model::checkpointing_name;
use parkade_terminal::output;
use parkade_terminal::size::show_bytes;
use parkade_terminal::table::Table;

pub(super) fn print(out: &mut dyn Write, args: &Args, points: &[Point]) -> io::Result<()> {
    let context = show_bytes(args.context);
    writeln!(out, "{} of training; {context} of each device go to the driver's context", output::count(args.steps, "step"))?;
    for of_case in points.chunk_by(|a, b| a.case == b.case) {
        let Some(first) = of_case.first() else { continue };
        writeln!(out)?;
        heading(out, args, &first.case)?;
        match &first.why {
            Why::States { state_bytes } => {
                let times = *state_bytes as f64 / first.case.parameter_bytes().max(1) as f64;
                writeln!(
                    out,
                    "  nothing fits: parameters, gradients and the optimizer's states alone need {}, {times:.1} x the bytes of the parameters",
                    show_bytes(*state_bytes)
                )?;
            }
            _ if first.bound.batch == 0 => {
                let load = show_bytes(first.bound.load_bytes);
                writeln!(out, "  nothing fits: the smallest batch has {load} live at once")?;
            }
            _ => {
                let (batch, load) = (first.bound.batch, show_bytes(first.bound.load_bytes));
                writeln!(out, "  the load allows a batch of {batch}, with {load} live at once")?;
                rows(out, of_case)?;
            }
        }
    }
    let searched = points.iter().filter(|point| point.runs > 0).count();
    if searched > 0 {
        let count = not_monotone(points);
        writeln!(
            out,
            "\nthe batch is the largest tried that fits; in {count} of {searched} searches a smaller one does not fit"
        )?;
    }
    Ok(())
}

/// The number of searches in which a batch below the one found does not fit.
pub(super) fn not_monotone(points: &[Point]) -> usize {
    points.iter().filter(|point| point.fails_below_batch.is_some()).count()
}

fn heading(out: &mut dyn Write, args: &Args, case: &Case) -> io::Result<()> {
    let device = args.devices.iter().find(|device| device.bytes == case.device_bytes);
    let device = device.map_or_else(|| case.device_bytes.to_string(), |device| output::one_line(&device.text));
    let transformer = &case.transformer;
    let accumulation = match transformer.accumulation {
        1 => String::new(),
        count => format!(", {count} micro-batches"),
    };
    writeln!(
        out,
        "{} on {device} ({}): {:.2} billion parameters, {}, {}, checkpointing {}, sequence {}{accumulation}",
        output::one_line(&case.model),
        show_bytes(case.device_bytes),
        transformer.parameters() as f64 / 1e9,
        case.numbers.name(),
        format!("{:?}", transformer.optimizer).to_lowercase(),
        checkpointing_name(transformer.checkpointing),
        transformer.sequence,
    )
}

const HEADS: [&str; 5] = ["policy", "batch", "reserved", "live", "the next one"];

fn rows(out: &mut dyn Write, points: &[Point]) -> io::Result<()> {
    let mut table = Table::plain(2, HEADS);
    for point in points {
        table.row(cells(point));
    }
    write!(out, "{}", table.text_with_left(&[0, 4]))
}

fn cells(point: &Point) -> [String; HEADS.len()] {
    let (reserved, live) = match point.batch {
        0 => ("-".to_owned(), "-".to_owned()),
        _ => (show_bytes(point.reserved_bytes), show_bytes(point.load_bytes)),
    };
    [point.policy.to_owned(), point.batch.to_string(), reserved, live, why(&point.why)]
}

/// Why the next batch does not fit.
pub(super) fn why(why: &Why) -> String {
    match why {
        Why::States { state_bytes } => format!("the states alone need {}", show_bytes(*state_bytes)),
        Why::Load { batch, load_bytes: u64::MAX } => format!("{batch}: more than 1 PiB live"),
        Why::Load { batch, load_bytes } => format!("{batch}: {} live", show_bytes(*load_bytes)),
        Why::Stranded { batch, asked_bytes, live_bytes, reserved_bytes } => format!(
            "{batch}: {} live of {} reserved, {} more refused",
            show_bytes(*live_bytes),
            show_bytes(*reserved_bytes),
            show_bytes(*asked_bytes)
        ),
        Why::Fault { batch, reason } => format!("{batch}: {}", output::one_line(reason)),
        Why::NotTried => "not tried".to_owned(),
    }
}
