//! Operations on private pools, and on checkpoints of them.

use parkade::units::PoolId;
use parkade::{CheckpointError, PoolFilter};

use super::failure::Failure;
use super::line::Line;
use super::render;
use super::session::{Answer, Session, handle, release};
use super::state::Held;

impl Session {
    /// `pool_create`, `pool_begin`, `pool_end`, `pool_release` and `pool_use_count`.
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

    /// `ckpt_save KEY A B`: saves the live blocks of pool (A, B) as KEY. If that fails, KEY keeps its older checkpoint.
    pub(super) fn save_checkpoint(&mut self, line: &Line<'_>) -> Answer {
        let pool = PoolId(line.number(2)?, line.number(3)?);
        let checkpoint = self.allocator.checkpoint_pool(pool)?;
        self.checkpoints.insert(line.word(1)?.to_owned(), checkpoint);
        Ok(String::new())
    }

    /// `ckpt_load KEY`: restores the pool. Freed blocks lose their names; restored ones are called `ck_KEY_POINTER`.
    pub(super) fn load_checkpoint(&mut self, line: &Line<'_>) -> Answer {
        let key = line.word(1)?;
        let checkpoint = self.checkpoints.get(key).ok_or_else(|| Failure::std("map::at"))?;
        let restored = self.allocator.restore_pool(checkpoint)?;
        let names = self.names.clone();
        let mut freed = Vec::new();
        for address in restored.freed {
            let live = &mut names.lock().live;
            let name = live.iter().find(|(_, held)| held.address() == Some(address)).map(|(name, _)| name.clone());
            name.and_then(|name| live.remove(&name));
            freed.push(render::pointer(self.allocator.device(), address.0));
        }
        let mut allocated = Vec::new();
        for allocation in restored.allocations {
            let name = format!("ck_{key}_{}", self.allocator.device().name_address(allocation.address()));
            allocated.push(render::quoted(&name));
            let before = names.lock().live.insert(name, Held::Block(allocation));
            if let Some(before) = before {
                release(&mut self.allocator, before)?;
            }
        }
        Ok(format!(",\"freed\":[{}],\"allocd\":[{}]", freed.join(","), allocated.join(",")))
    }
}

impl From<CheckpointError> for Failure {
    fn from(error: CheckpointError) -> Failure {
        Failure::c10(error)
    }
}
