//! Operations that set something: the allocator's settings and counters, and the state of the simulated device.

use parkade::device::DeviceBackend as _;
use parkade::units::Bytes;

use super::failure::Failure;
use super::line::Line;
use super::printed::Printed;
use super::render;
use super::session::{Answer, Session, handle};

impl Session {
    /// Operations on the allocator's settings and counters.
    pub(super) fn set(&mut self, line: &Line<'_>) -> Answer {
        match line.name() {
            "set_fraction" => {
                let set = self.allocator.set_memory_fraction(line.float(1)?);
                set.map_err(|error| Failure::c10(error.message(self.profile)))?;
            }
            "get_fraction" => {
                if self.profile.asks_for_total && self.allocator.heap().limit().is_some() {
                    // Only the log shows it.
                    let _ = self.allocator.device_mut().memory_info();
                }
                return Ok(format!(",\"fraction\":{}", render::number(self.allocator.memory_fraction(), 17)));
            }
            "reset_peak" => self.allocator.reset_peak_stats(),
            "reset_accumulated" => self.allocator.reset_accumulated_stats(),
            "conf" => self.allocator.policy_mut().settings.apply_as(&self.profile.dialect, line.tail())?,
            _ => self.caching = line.word(1)? == "1",
        }
        Ok(String::new())
    }

    /// Operations on the simulated device rather than on the allocator.
    pub(super) fn control_device(&mut self, line: &Line<'_>) -> Answer {
        let device = self.allocator.device_mut();
        match line.name() {
            "complete" if line.word(1)? == "all" => device.complete_all(),
            "complete" => device.complete(handle(line.stream(1)?)),
            "complete_one" => return Ok(format!(",\"n\":{}", device.complete_one(handle(line.stream(1)?)))),
            "sync" => device.synchronize(),
            "capacity" => device.set_capacity(Bytes(line.number(1)?)),
            "external" => device.set_external_bytes(Bytes(line.number(1)?)),
            "fail_next" => device.fail_next(line.number(1)?),
            "capture_begin" => {
                let number = device.begin_capture(handle(line.stream(1)?));
                self.look_at_capture();
                return Ok(format!(",\"capture\":{number}"));
            }
            "capture_end" => {
                device.end_capture(handle(line.stream(1)?));
                self.look_at_capture();
            }
            "capture_work" => {
                let number = line.stream(1)?;
                let node = device.capture_work(handle(number));
                let node = node.ok_or_else(|| Failure::std(format!("stream {number} is not captured")))?;
                return Ok(format!(",\"node\":{}", node.0));
            }
            "capture_wait" => {
                let (number, other) = (line.stream(1)?, line.stream(2)?);
                if !device.capture_wait(handle(number), handle(other)) {
                    return Err(Failure::std(format!("stream {number} cannot wait for stream {other} in its capture")));
                }
                self.look_at_capture();
            }
            "device" if line.number(1)? == 0 => self.printed = Printed::default(),
            name if KNOWN_ELSEWHERE.contains(&name) => return Err(unsupported(line)),
            name => return Err(Failure::std(format!("unknown op {name}"))),
        }
        Ok(String::new())
    }
}

/// Operations of the harness that the simulated device does not have.
const KNOWN_ELSEWHERE: [&str; 2] = ["device", "reserve_class"];

fn unsupported(line: &Line<'_>) -> Failure {
    Failure::std(format!("{} needs several devices or a newer PyTorch, and neither is simulated", line.name()))
}
