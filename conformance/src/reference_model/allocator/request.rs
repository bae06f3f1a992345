//! A request: its block's size, the search for a free block, the split, and the accounts of a block handed out (spec 1.2 to 1.6,
//! 2.4, 2.5, 3.1, 3.2).

use parkade::AllocError;
use parkade::stats::Family;
use parkade::trace::TraceAction;
use parkade::units::{Bytes, MIB, PoolClass, PoolId};

use super::Reference;
use super::accounts::add;
use super::blocks::{FreeBlock, State};

/// A request on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) requested: u64,
    pub(super) size: u64,
    pub(super) pool: PoolId,
    pub(super) class: PoolClass,
    pub(super) stream: u64,
    pub(super) is_expandable: bool,
}

impl Reference {
    /// The block size for a request; `None` beyond 64 bits (spec 1.2 to 1.4).
    pub fn rounded(&self, requested: u64) -> Option<u64> {
        if requested < 512 {
            return Some(512);
        }
        // 16 intervals: below 2 MiB, below 4 MiB, ..., below 32 GiB, and the rest.
        let interval = (1..16).take_while(|&slot| requested >= MIB << slot).count();
        let divisions = self.settings.roundup_power2_divisions[interval];
        if divisions == 1 && !self.rules.rounds_by_one_division {
            return Some(requested);
        }
        // The product wraps in PyTorch, too.
        if divisions > 1 && requested > divisions.wrapping_mul(512) {
            let mut power = 1_u64;
            while power <= requested / 2 {
                power *= 2;
            }
            if power == requested {
                return Some(power);
            }
            let step = u128::from(power / divisions);
            let up = if step == 0 { 2 * u128::from(power) } else { u128::from(requested).div_ceil(step) * step };
            return u64::try_from(up).ok();
        }
        u64::try_from(u128::from(requested).div_ceil(512) * 512).ok()
    }

    /// The segment size for a block (spec 1.6); the most that 64 bits hold if there is none.
    pub fn segment_for(&self, size: u64) -> u64 {
        if size <= MIB {
            return 2 * MIB;
        }
        if size < 10 * MIB {
            return self.settings.large_segment_bytes;
        }
        u64::try_from(u128::from(size).div_ceil(2 * MIB as u128) * 2 * MIB as u128).unwrap_or(u64::MAX)
    }

    /// Serves a request; `raw` ones have no bound (spec 2.1). Returns the block's address.
    pub fn allocate(&mut self, requested: u64, stream: u64, raw: bool) -> Result<u64, AllocError> {
        if !raw && requested >= 1 << 60 {
            return Err(AllocError::TooLarge { requested: Bytes(requested) });
        }
        if requested == 0 {
            return Err(AllocError::ZeroSize);
        }
        let size = self.rounded(requested).ok_or(AllocError::TooLarge { requested: Bytes(requested) })?;
        self.process_events()?;
        let needs_capture = self.rules.fails_outside_captures && self.settings.graph_capture_record_stream_reuse;
        if needs_capture && !self.routings.is_empty() && !self.is_capturing {
            return Err(AllocError::NotCaptured);
        }
        let pool = self.pool_for(stream);
        let class = if size > MIB { PoolClass::Large } else { PoolClass::Small };
        let is_expandable = self.settings.expandable_segments;
        let wanted = Wanted { requested, size, pool, class, stream, is_expandable };
        match self.search(&wanted) {
            Some(address) => Ok(self.hand_out(address, &wanted)),
            None => {
                let (address, wanted) = self.climb(&wanted)?;
                Ok(self.hand_out(address, &wanted))
            }
        }
    }

    /// The free block that serves a request, taken out of its list (spec 2.5).
    pub(super) fn search(&mut self, wanted: &Wanted) -> Option<u64> {
        let counts = self.limit.is_some() && self.settings.garbage_collection_threshold > 0.0;
        if counts && (wanted.pool, wanted.class) == (PoolId::DEFAULT, PoolClass::Large) {
            self.searches += 1;
        }
        let mut free = self.free_blocks(wanted.pool, wanted.class);
        free.retain(|block| block.stream == wanted.stream && block.size >= wanted.size);
        let first = *free.first()?;
        let chosen = if first.is_expandable { choose_expandable(&free, wanted.is_expandable)? } else { first };
        let max_split = self.settings.max_split_bytes;
        let may_serve = if wanted.size < max_split {
            chosen.size < max_split
        } else {
            // The sum wraps in PyTorch, too.
            chosen.size < wanted.size.wrapping_add(self.settings.max_non_split_rounding_bytes)
        };
        if !may_serve {
            return None;
        }
        self.block_mut(chosen.address).state = State::Taken;
        Some(chosen.address)
    }

    /// Whether what a block of `whole` bytes has beyond the request is split off (spec 3.1).
    fn splits(&self, whole: u64, wanted: &Wanted) -> bool {
        let rest = whole - wanted.size;
        if rest == 0 || (wanted.pool != PoolId::DEFAULT && self.whole.contains(&wanted.pool)) {
            return false;
        }
        match wanted.class {
            _ if wanted.is_expandable => rest >= 512,
            PoolClass::Small => rest >= 512,
            PoolClass::Large => wanted.size < self.settings.max_split_bytes && rest > MIB,
        }
    }

    fn hand_out(&mut self, address: u64, wanted: &Wanted) -> u64 {
        let splits = self.splits(self.block(address).size, wanted);
        self.hand_out_part(address, wanted, splits)
    }

    /// Hands out a block, or its first bytes (spec 3.2).
    pub(super) fn hand_out_part(&mut self, address: u64, wanted: &Wanted, splits: bool) -> u64 {
        let (class, whole) = (wanted.class, self.block(address).size);
        let segment = self.segment_at(address);
        let (is_expandable, was_split, stream) = (segment.is_expandable(), segment.blocks.len() > 1, segment.stream);
        let stamp = self.stamp(segment.pool, segment.class);
        if splits {
            self.split(address, wanted.size, stamp);
        }
        let block = self.block_mut(address);
        (block.state, block.requested) = (State::Allocated, wanted.requested);
        let size = block.size as i64;
        if !is_expandable && splits {
            // What was split before is one free block less and one more.
            let left = if was_split { -size } else { whole as i64 - size };
            self.accounts.change(Family::InactiveSplit, class, i64::from(!was_split));
            self.accounts.change(Family::InactiveSplitBytes, class, left);
        } else if !is_expandable && was_split {
            self.accounts.change(Family::InactiveSplit, class, -1);
            self.accounts.change(Family::InactiveSplitBytes, class, -size);
        }
        self.tell(TraceAction::Alloc, address, wanted.requested, stream, wanted.pool);
        self.accounts.change(Family::Allocation, class, 1);
        self.accounts.change(Family::AllocatedBytes, class, size);
        self.accounts.change(Family::Active, class, 1);
        self.accounts.change(Family::ActiveBytes, class, size);
        self.accounts.change(Family::RequestedBytes, class, wanted.requested as i64);
        if self.is_oversize(size as u64) {
            add(&mut self.accounts.oversize_allocations, 1);
        }
        address
    }
}

/// Where the first block that is large enough is of an expandable segment, another may be used instead (spec 2.5, step 3).
fn choose_expandable(free: &[FreeBlock], is_expandable: bool) -> Option<FreeBlock> {
    if !is_expandable {
        return free.iter().find(|block| !block.is_expandable).copied();
    }
    let reach = |block: &FreeBlock| block.size + block.room_behind;
    let (mut chosen, mut place) = (free[0], 1);
    while chosen.is_expandable && place < free.len() && reach(&free[place]) < reach(&chosen) {
        chosen = free[place];
        place += 1;
    }
    Some(chosen)
}
