//! A packing as a few lines.

use std::io::{self, Write};
use std::path::Path;

use crate::terminal::size::show_bytes;

use super::Packed;
use crate::terminal::recording::short_name;
use crate::terminal::{output, release};

pub(super) fn print(out: &mut dyn Write, file: &Path, packed: &[Packed]) -> io::Result<()> {
    let name = short_name(file);
    for one in packed {
        let device = one.device.filter(|_| packed.len() > 1).map_or_else(String::new, |device| format!(" device {device}"));
        let found = &one.found;
        writeln!(out, "{name}{device}: {}", output::count(one.instance.buffers().len(), "buffer"))?;
        writeln!(out, "  load     {:>12}  the most live bytes at once", show_bytes(one.instance.load()))?;
        let verdict = if one.is_best() {
            output::good("no packing needs less")
        } else {
            format!("no packing needs less than {}", show_bytes(found.bound))
        };
        let height = show_bytes(found.packing.height);
        writeln!(out, "  packing  {height:>12}  {:.4} of the load: {verdict}", one.ratio())?;
        writeln!(out, "{}", output::dim(&format!("  {} steps, {:.1} s", found.steps, one.seconds)))?;
        if let Some(line) = refused(one) {
            writeln!(out, "  {line}")?;
        }
        if one.has_lost_beginning {
            writeln!(out, "  The recording lost its beginning: what was live then counts as requested before its first entry.")?;
        }
    }
    match packed.iter().find_map(|one| one.made_by.as_ref()) {
        Some(made_by) => write!(out, "{}", output::paragraph(&release::words(made_by), 2)),
        None => Ok(()),
    }
}

/// The requests of the recorded run that failed.
fn refused(packed: &Packed) -> Option<String> {
    let (refused, load) = (packed.refused?, show_bytes(packed.load_with_last_refused()?));
    let bytes = show_bytes(refused.bytes);
    match refused.requests {
        0 => None,
        1 => Some(format!("Left out: 1 request for {bytes} that ran out of memory; with it the load is {load}.")),
        count => Some(format!(
            "Left out: {count} requests for {bytes} in all that ran out of memory; with the last of them the load is {load}."
        )),
    }
}
