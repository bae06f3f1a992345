//! Runs a script line by line and prints the answers or digests of them.

use parkade::device::DeviceBackend;
use parkade::profile::HandleTypes;
use parkade::settings::SettingsError;
use parkade_sim::{CallName, CallSubject};

use super::line::Line;
use super::render::{self, stat_values};
use super::session::{Failure, OpsOptions, Session, operate};

/// Runs a script on one allocator.
pub struct OpsRunner {
    session: Session,
    /// The number of operations so far.
    count: u64,
    /// Whether the allocator reads the device's properties before it creates the next memory handle.
    asks_for_handle_types: bool,
}

impl OpsRunner {
    /// A runner on a fresh device.
    ///
    /// # Errors
    /// PyTorch's error if it refuses the settings string.
    pub fn new(options: &OpsOptions) -> Result<OpsRunner, SettingsError> {
        let asks_for_handle_types = options.profile.handle_types == HandleTypes::Asked;
        Ok(OpsRunner { session: Session::new(options)?, count: 0, asks_for_handle_types })
    }

    /// Runs one line of the script. Returns its answer, a JSON object, or `None` for a line without an operation.
    ///
    /// If an operation fails or cannot be read, the answer has `"ok":0` and the exception that the harness would have
    /// caught.
    pub fn run_line(&mut self, line: &str) -> Option<String> {
        let out = self.answer(line)?;
        let Session { allocator, printed, profile, .. } = &mut self.session;
        Some(finished(out, &printed.changes(allocator.stats(), profile)))
    }

    /// Runs one line of the script, like [`OpsRunner::run_line`]. Returns a digest of its answer, as 16 hexadecimal digits.
    ///
    /// Two runs with equal digests produced the same answers and have the same statistics. A digest takes a third of the
    /// time.
    pub fn run_line_to_digest(&mut self, line: &str) -> Option<String> {
        let out = self.answer(line)?;
        let Session { allocator, printed, profile, .. } = &mut self.session;
        let out = finished(out, &printed.changes_of_pools(allocator.stats(), profile));
        Some(format!("{:016x}", digest(&out, &stat_values(allocator.stats(), profile))))
    }

    /// Runs one line. Returns its answer up to, but not including, the statistics.
    fn answer(&mut self, line: &str) -> Option<String> {
        let line = Line::read(line)?;
        self.session.allocator.observer_mut().seen.clear();
        let answer = operate(&mut self.session, &line);
        let mut out =
            format!("{{\"i\":{},\"op\":{},\"ok\":{}", self.count, render::quoted(&line.joined()), u8::from(answer.is_ok()));
        match answer {
            Ok(fields) => out.push_str(&fields),
            Err(Failure { kind, message }) => {
                out.push_str(&format!(",\"err\":\"{kind}\",\"msg\":{}", render::quoted(&message)));
            }
        }
        self.append_record(&mut out);
        self.count += 1;
        Some(out)
    }

    /// Appends what the operation caused: trace entries and driver calls.
    fn append_record(&mut self, out: &mut String) {
        let Session { allocator, calls_with_null, profile, .. } = &mut self.session;
        let device = allocator.device();
        let seen = &allocator.observer().seen;
        if !seen.is_empty() {
            out.push_str(&format!(",\"ev\":[{}]", render::seen(device, seen, profile)));
        }
        let mut calls: Vec<String> = Vec::new();
        // The real allocator reads the device's properties when it is created, which shows in the first line, and before it
        // reserves addresses.
        let (index, total) = (device.index(), device.total_memory());
        let properties = || format!("[\"cudaGetDeviceProperties\",0,{index},{total}]");
        // Earlier releases read the properties at different points and any number of times; their answers do not show it.
        let shows_properties = !profile.asks_for_total;
        if self.count == 0 && shows_properties {
            calls.push(properties());
        }
        for mut call in allocator.device_mut().take_log() {
            let asks = call.name == CallName::MemCreate && std::mem::take(&mut self.asks_for_handle_types);
            if shows_properties && (asks || call.name == CallName::AddressReserve) {
                calls.push(properties());
            }
            if let CallSubject::Creation { handle_type, .. } = &mut call.subject
                && profile.handle_types == HandleTypes::Unshared
            {
                *handle_type = 0;
            }
            calls.push(call.render());
        }
        calls.extend(calls_with_null.drain(..).map(str::to_owned));
        if !calls.is_empty() {
            out.push_str(&format!(",\"drv\":[{}]", calls.join(",")));
        }
    }
}

/// Completes the answer: appends the statistics that changed and the closing text.
fn finished(mut answer: String, changes: &str) -> String {
    if !changes.is_empty() {
        answer.push_str(&format!(",\"st\":{{{changes}}}"));
    }
    answer.push('}');
    answer
}

/// The digest of an answer's text and numbers: a few digits that represent the answer so that two runs can be compared
/// without their text.
///
/// The harness has the same function, `put_digest` in `pytorch_harness/src/oracle.cpp`. Text is cheap to compare but
/// expensive to make. Most of it is statistics, which the digest includes as numbers; it includes all of them, not only those
/// that changed. Every step is invertible, so answers that differ in a single word have different digests.
fn digest(text: &str, numbers: &[i64]) -> u64 {
    let words = text.as_bytes().chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    words.chain(numbers.iter().map(|&number| number as u64)).fold(text.len() as u64, |digest, word| {
        let mixed = (digest ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 32
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_and_each_number_counts() {
        let text = "{\"i\":0,\"op\":\"free a\",\"ok\":1}";
        let known = digest(text, &[1, 2, 3]);
        for place in 0..text.len() {
            let mut other = text.to_owned();
            other.replace_range(place..=place, "#");
            assert_ne!(digest(&other, &[1, 2, 3]), known, "{other}");
        }
        for other in [&[1, 2, 4][..], &[1, 2], &[2, 1, 3], &[1, 2, 3, 0]] {
            assert_ne!(digest(text, other), known, "{other:?}");
        }
        assert_ne!(digest("a", &[]), digest("a\0", &[]));
    }
}
