//! Runs a script line by line and prints the answers.

use parkade::device::DeviceBackend;
use parkade::profile::HandleTypes;
use parkade::settings::SettingsError;
use parkade_sim::{CallName, CallSubject};

use super::digest;
use super::failure::Failure;
use super::line::Line;
use super::printed;
use super::render;
use super::session::{Answer, OpsOptions, Session};

/// Runs a script on one allocator.
pub struct OpsRunner {
    session: Session,
    /// Operations so far.
    count: u64,
    /// Whether the next memory handle is created after a look at the device's properties.
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
    /// An operation that fails or cannot be read is answered with `"ok":0` and the exception that the harness would have caught.
    pub fn run_line(&mut self, line: &str) -> Option<String> {
        let out = self.answer(line)?;
        let Session { allocator, printed, profile, .. } = &mut self.session;
        Some(finished(out, &printed.changes(allocator.stats(), profile)))
    }

    /// Runs one line of the script as [`OpsRunner::run_line`] does. Returns 16 hexadecimal digits that stand for its answer.
    ///
    /// Two runs whose digests are equal gave the same answers and have the same statistics. It takes a third of the time.
    pub fn run_line_to_digest(&mut self, line: &str) -> Option<String> {
        let out = self.answer(line)?;
        let Session { allocator, printed, profile, .. } = &mut self.session;
        let out = finished(out, &printed.changes_of_pools(allocator.stats(), profile));
        Some(format!("{:016x}", digest::of(&out, &printed::values(allocator.stats(), profile))))
    }

    /// Runs one line. Returns its answer up to the statistics.
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
        // The real allocator reads the device's properties when it is created, which the first line shows, and before it reserves
        // addresses.
        let (index, total) = (device.index(), device.total_memory());
        let properties = || format!("[\"cudaGetDeviceProperties\",0,{index},{total}]");
        // Earlier releases do so elsewhere and as often as they like; they show none of it.
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

/// The answer with the statistics that changed, and its end.
fn finished(mut answer: String, changes: &str) -> String {
    if !changes.is_empty() {
        answer.push_str(&format!(",\"st\":{{{changes}}}"));
    }
    answer.push('}');
    answer
}

/// Runs the line's operation, which its first word names.
fn operate(session: &mut Session, line: &Line<'_>) -> Answer {
    match line.name() {
        "alloc" => session.alloc(line),
        "alloc_at" => session.alloc_at(line),
        "free" => session.free(line),
        "rawalloc" => session.raw_alloc(line),
        "rawfree" => session.raw_free(line),
        "record_stream" => session.record_stream(line),
        "empty_cache" => session.empty_cache(line),
        "free_all" => session.free_all(),
        "base" => session.base(line),
        "oom_free" => {
            session.names.lock().freed_on_miss = line.rest(1).iter().map(ToString::to_string).collect();
            Ok(String::new())
        }
        "snapshot" | "trace" | "history" | "stats" | "cache_info" | "meminfo" | "expandable_sizes" | "driver" | "name" => {
            session.query(line)
        }
        "set_fraction" | "get_fraction" | "reset_peak" | "reset_accumulated" | "conf" | "enable" => session.set(line),
        name if name.starts_with("pool_") => session.pool(line),
        "ckpt_save" => session.save_checkpoint(line),
        "ckpt_load" => session.load_checkpoint(line),
        _ => session.control_device(line),
    }
}
