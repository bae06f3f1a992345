//! Operations that save and restore private pools.

use parkade::CheckpointError;
use parkade::units::PoolId;

use super::failure::Failure;
use super::render;
use super::runner::{Answer, OpsRunner, release};
use super::state::Held;
use super::words::Line;

impl OpsRunner {
    /// `ckpt_save KEY A B`: keeps what pool (A, B) has handed out. After a failure the key's older checkpoint stays.
    pub(super) fn save_checkpoint(&mut self, line: &Line<'_>) -> Answer {
        let pool = PoolId(line.number(2)?, line.number(3)?);
        let checkpoint = self.allocator.checkpoint_pool(pool)?;
        self.checkpoints.insert(line.word(1)?.to_owned(), checkpoint);
        Ok(String::new())
    }

    /// `ckpt_load KEY`: restores the pool. What was taken back loses its name; what was handed out is called `ck_KEY_POINTER`.
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
