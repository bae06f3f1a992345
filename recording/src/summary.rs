//! The table of `torch.cuda.memory_summary()` (spec 6.4).

use parkade::stats::{Family, Stat, Stats};

/// The format in which a metric's numbers are printed.
#[derive(Clone, Copy)]
enum Quantity {
    Size,
    Count,
}

/// The metrics that are kept per pool, in table order.
const METRICS: [(Family, &str, Quantity); 9] = [
    (Family::AllocatedBytes, "Allocated memory", Quantity::Size),
    (Family::ActiveBytes, "Active memory", Quantity::Size),
    (Family::RequestedBytes, "Requested memory", Quantity::Size),
    (Family::ReservedBytes, "GPU reserved memory", Quantity::Size),
    (Family::InactiveSplitBytes, "Non-releasable memory", Quantity::Size),
    (Family::Allocation, "Allocations", Quantity::Count),
    (Family::Active, "Active allocs", Quantity::Count),
    (Family::Segment, "GPU reserved segments", Quantity::Count),
    (Family::InactiveSplit, "Non-releasable allocs", Quantity::Count),
];

/// Returns the text of `torch.cuda.memory_summary(device, abbreviated)`, including the last newline. If abbreviated, it has
/// no rows for the small and large pools.
#[must_use]
pub fn memory_summary(device: u32, stats: &Stats, abbreviated: bool) -> String {
    let mut table = Table { text: String::new() };
    table.rule('=');
    table.line(&format!(" {:16} PyTorch CUDA memory summary, device ID {device:<17} ", ""));
    table.rule('-');
    let (ooms, retries) = (stats.num_ooms, stats.num_alloc_retries);
    table.line(&format!("  {:9} CUDA OOMs: {ooms:<12} | {:6} cudaMalloc retries: {retries:<8}  ", "", ""));
    table.rule('=');
    table.line("        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  ");
    for (family, name, quantity) in METRICS {
        let set = stats.family(family);
        table.rule('-');
        table.row(name, &set.all, &set.all, quantity);
        if !abbreviated {
            table.row("      from large pool", &set.large, &set.all, quantity);
            table.row("      from small pool", &set.small, &set.all, quantity);
        }
    }
    for (stat, name) in
        [(&stats.oversize_allocations, "Oversize allocations"), (&stats.oversize_segments, "Oversize GPU segments")]
    {
        table.rule('-');
        table.row(name, stat, stat, Quantity::Count);
    }
    table.rule('=');
    table.text
}

/// Lines of 75 characters between bars.
struct Table {
    text: String,
}

impl Table {
    fn line(&mut self, content: &str) {
        self.text.push('|');
        self.text.push_str(content);
        self.text.push_str("|\n");
    }

    fn rule(&mut self, mark: char) {
        self.line(&std::iter::repeat_n(mark, 75).collect::<String>());
    }

    /// Appends a row of four numbers. `scale` determines each column's unit; all rows of a metric share it.
    fn row(&mut self, name: &str, stat: &Stat, scale: &Stat, quantity: Quantity) {
        let mut content = format!(" {name:<21} ");
        for (value, scale) in stat.values().into_iter().zip(scale.values()) {
            content.push_str("| ");
            content.push_str(&quantity.cell(value, scale));
            content.push(' ');
        }
        self.line(&content);
    }
}

impl Quantity {
    /// Formats `value` in the unit that suits `scale`.
    fn cell(self, value: i64, scale: i64) -> String {
        match self {
            Quantity::Size => {
                let (value, unit) = scaled(value, scale, 768.0 * 1024.0, 1024, &["B  ", "KiB", "MiB", "GiB", "TiB", "PiB"]);
                format!("{value:6} {unit}")
            }
            Quantity::Count => {
                let (value, unit) = scaled(value, scale, 750.0 * 1000.0, 1000, &[" ", "K", "M"]);
                format!("{value:7} {unit} ")
            }
        }
    }
}

/// Takes the first unit in which `scale` is below `threshold`, or the last. The value is rounded down at each step, as by
/// Python's `//`, while the scale keeps its fraction.
fn scaled<'a>(value: i64, scale: i64, threshold: f64, divisor: i64, units: &[&'a str]) -> (i64, &'a str) {
    let (mut value, mut scale) = (value, scale as f64);
    let mut units = units.iter();
    let mut unit = units.next().copied().unwrap_or("");
    for larger in units {
        if scale < threshold {
            break;
        }
        unit = larger;
        // The divisor is positive, so the Euclidean quotient is the floor.
        value = value.div_euclid(divisor);
        scale /= divisor as f64;
    }
    (value, unit)
}
