//! Tables: buffers to pack as CSV, statistics and the rows of a sweep as JSON.

use std::fmt::Write;

use parkade::stats::Stats;

use crate::choices::Choices;

/// Buffers to pack, as CSV.
pub(crate) fn buffers(choices: &mut Choices<'_>) -> String {
    let wrong =
        choices.pick(&["id,lower,size", "lower;upper;size", "size, upper ,lower,id", "lower,upper,size,alignment,size", ""]);
    let is_aligned = choices.once_in(3);
    let header = if is_aligned { "lower,upper,size,alignment" } else { "id,lower,upper,size" };
    let mut text = if choices.once_in(8) { wrong } else { header }.to_owned();
    text.push_str(choices.pick(&["\n", "\r\n", "\n\n"]));
    for number in 0..choices.below(24) {
        let lower = choices.below(40) as u64;
        let upper = lower + 1 + choices.below(20) as u64;
        let size = if choices.once_in(6) { choices.size() } else { 512 * (1 + choices.below(64) as u64) };
        let end = if choices.once_in(40) { u64::MAX } else { upper };
        let alignment = choices.pick(&["1", "512", "3", "4096", "1048576", "18446744073709551615"]);
        // Writing to a string cannot fail.
        let _ = match choices.below(200) {
            0 => writeln!(text, "{number},{lower}"),
            1 => writeln!(text, "\"{number},{lower},{end},{size}"),
            2 => writeln!(text, "{number},{end},{lower},0"),
            _ if is_aligned => writeln!(text, "{lower},{end},{size},{alignment}"),
            _ => writeln!(text, "{number},{lower},{end},{size}"),
        };
    }
    damaged(text, choices, 8)
}

/// The statistics of a run, as JSON.
pub(crate) fn statistics(choices: &mut Choices<'_>) -> String {
    let mut entries: Vec<String> =
        Stats::default().entries().into_iter().map(|(key, _)| format!("\"{key}\":{}", choices.below(1000))).collect();
    for _ in 0..choices.below(8) {
        let value = choices.pick(&["0", "1", "-1", "9223372036854775807", "-9223372036854775808", "12884901888"]);
        let wrong = choices.pick(&["9223372036854775808", "1e3", "null", "1.5", "true"]);
        let value = if choices.once_in(12) { wrong } else { value };
        let key = choices.pick(&["num_oom_rejections", "a_key_of_tomorrow", "reserved_bytes.all.peak", "num_ooms"]);
        entries.push(format!("\"{key}\":{value}"));
    }
    if choices.once_in(8) {
        entries.remove(choices.below(entries.len()));
    }
    damaged(format!("{{{}}}", entries.join(",")), choices, 10)
}

/// The rows of a sweep, as `parkade sweep -o` writes them. `sound` is such a file.
pub(crate) fn rows(sound: &str, choices: &mut Choices<'_>) -> String {
    let mut lines: Vec<String> = sound.lines().map(str::to_owned).collect();
    for _ in 0..choices.below(3) {
        let Some(at) = choices.place(lines.len()) else { break };
        match choices.below(12) {
            0 => drop(lines.remove(at)),
            1 => lines.insert(at, lines[at].clone()),
            2 => {
                let other = choices.below(lines.len());
                lines.swap(at, other);
            }
            _ => another_number(&mut lines[at], choices),
        }
    }
    let mut text = lines.join("\n");
    text.push('\n');
    damaged(text, choices, 12)
}

/// Replaces one of a line's numbers.
fn another_number(line: &mut String, choices: &mut Choices<'_>) {
    let starts: Vec<usize> = line.match_indices(|c: char| c.is_ascii_digit()).map(|(at, _)| at).collect();
    let Some(start) = choices.place(starts.len()).map(|place| starts[place]) else { return };
    let end = line[start..].find(|c: char| !c.is_ascii_digit()).map_or(line.len(), |length| start + length);
    let numbers = ["0", "1", "2", "-1", "18446744073709551615", "1e400", "0.5", "null", "\"\"", "9007199254740993"];
    line.replace_range(start..end, choices.pick(&numbers));
}

fn damaged(text: String, choices: &mut Choices<'_>, once_in: usize) -> String {
    if !choices.once_in(once_in) {
        return text;
    }
    let mut bytes = text.into_bytes();
    choices.damage(&mut bytes, 4);
    String::from_utf8_lossy(&bytes).into_owned()
}
