//! Rows as comma-separated values.

use std::fmt::Write as _;

use parkade_research::study::sweep::Row;

/// A line of names, then a line for each row.
pub(super) fn of(rows: &[Row]) -> String {
    let mut text = String::from(
        "job,workload,seed,policy,capacity,load_bytes,events,hash,capacity_bytes,fails_above_bytes,fits,problem,failed_at_event,peak_reserved_bytes,\
         peak_allocated_bytes,retries,driver_calls,driver_ns,waited_ns,runs,program\n",
    );
    let optional = |value: Option<u64>| value.map_or_else(String::new, |value| value.to_string());
    for row in rows {
        let _ = writeln!(
            text,
            "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}",
            row.job,
            quoted(&row.workload),
            row.seed,
            quoted(&row.policy),
            row.capacity,
            row.load_bytes,
            row.events,
            row.hash,
            optional(row.capacity_bytes),
            optional(row.fails_above_bytes),
            row.fits,
            quoted(row.problem.as_deref().unwrap_or_default()),
            optional(row.failed_at_event),
            row.peak_reserved_bytes,
            row.peak_allocated_bytes,
            row.retries,
            row.driver_calls,
            row.driver_ns,
            row.waited_ns,
            row.runs,
            quoted(&row.build)
        );
    }
    text
}

/// A field of CSV (RFC 4180).
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}
