//! Operations on private pools, and on the device rather than the allocator.

use parkade::PoolFilter;
use parkade::units::{Bytes, PoolId};

use super::failure::Failure;
use super::render;
use super::runner::{Answer, OpsRunner, handle};
use super::words::{Line, Unreadable};

impl OpsRunner {
    pub(super) fn pool(&mut self, line: &Line<'_>) -> Answer {
        let pool = PoolId(line.number(1)?, line.number(2)?);
        let profile = self.profile;
        let core = &mut self.allocator;
        match line.name() {
            "pool_create" => {
                core.create_pool(pool).map_err(Failure::pool(profile))?;
                for &option in line.rest(3) {
                    match option {
                        "use_on_oom" => core.set_pool_use_on_oom(pool, true),
                        "no_use_on_oom" => core.set_pool_use_on_oom(pool, false),
                        "no_split" => core.set_pool_no_split(pool),
                        _ => {}
                    }
                }
            }
            "pool_begin" => {
                let of_stream = line.len() > 4 && line.word(3)? == "stream";
                let filter = if of_stream { PoolFilter::Stream(handle(line.stream(4)?)) } else { PoolFilter::All };
                core.begin_pool(pool, filter).map_err(Failure::pool(profile))?;
            }
            "pool_end" => core.end_pool(pool).map_err(Failure::pool(profile))?,
            "pool_release" => core.release_pool(pool).map_err(Failure::pool(profile))?,
            "pool_use_count" => return Ok(format!(",\"n\":{}", core.pool_use_count(pool).map_err(Failure::pool(profile))?)),
            name => return Err(Failure::std(format!("unknown op {name}"))),
        }
        Ok(String::new())
    }

    /// Operations on the device rather than on the allocator.
    pub(super) fn steer(&mut self, line: &Line<'_>) -> Answer {
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
                let number = self.captures.begin(line.stream(1)?);
                self.allocator.set_capturing(self.captures.is_capturing());
                return Ok(format!(",\"capture\":{number}"));
            }
            "capture_end" => {
                self.captures.end(line.stream(1)?);
                self.allocator.set_capturing(self.captures.is_capturing());
            }
            "device" if line.number(1)? == 0 => self.printed = render::Printed::default(),
            name if KNOWN_ELSEWHERE.contains(&name) => return Err(unsupported(line)),
            name => return Err(Failure::std(format!("unknown op {name}"))),
        }
        Ok(String::new())
    }
}

/// Operations of the harness that need several devices or a newer PyTorch.
const KNOWN_ELSEWHERE: [&str; 3] = ["alloc_at", "device", "reserve_class"];

fn unsupported(line: &Line<'_>) -> Failure {
    Failure::std(format!("{} needs several devices or a newer PyTorch, which are not simulated yet", line.name()))
}

/// The pool that the second and third words name, if there are so many.
pub(super) fn pool_of(line: &Line<'_>) -> Result<PoolId, Unreadable> {
    if line.len() > 2 { Ok(PoolId(line.number(1)?, line.number(2)?)) } else { Ok(PoolId::DEFAULT) }
}
