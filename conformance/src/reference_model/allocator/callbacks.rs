//! Free-memory callbacks (spec 2.6): each frees a block, makes a request of its own, or changes pools and the cache, while the
//! request that called it is on its way.

use parkade::device::BackendError;
use parkade::units::PoolId;
use parkade::{AllocError, PoolError, PoolFilter};

use super::Reference;

/// What a callback does.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Deed {
    /// Frees the block at an address.
    Free(u64),
    /// Requests bytes for a stream.
    Allocate(u64, u64),
    /// Empties the cache.
    ReleaseCached,
    /// Creates a pool, or adds a use.
    Create(PoolId),
    /// Routes requests to a pool.
    Begin(PoolId, PoolFilter),
    /// Stops routing requests to a pool.
    End(PoolId),
    /// Removes a use of a pool.
    Release(PoolId),
    /// Empties the cache of a pool.
    ReleaseCachedPool(PoolId),
    /// Registers one more callback, for the stock of this number.
    Register(usize),
}

/// What a callback was answered.
#[derive(Clone, PartialEq, Debug)]
pub enum Made {
    /// The address that it gave back, and the device's error.
    Freed(u64, Option<BackendError>),
    /// The address that it got.
    Allocated(Result<u64, AllocError>),
    /// The answer to a release.
    Done(Result<(), AllocError>),
    /// The answer of a pool.
    Pool(Result<(), PoolError>),
}

impl Reference {
    /// Runs the callbacks: each does the next deed of its stock. Returns whether any says that it freed something.
    ///
    /// Meanwhile only those are registered that the callbacks register; afterwards they come behind the others.
    pub(super) fn run_callbacks(&mut self) -> bool {
        let mut freed = false;
        let mut called = std::mem::take(&mut self.registered);
        for &place in &called {
            if let Some((deed, says)) = self.stocks[place].pop_front() {
                let made = self.perform(deed);
                self.callback_answers.push(made);
                freed |= says;
            }
        }
        called.append(&mut self.registered);
        self.registered = called;
        freed
    }

    fn perform(&mut self, deed: Deed) -> Made {
        match deed {
            Deed::Free(address) => Made::Freed(address, self.free(address).err()),
            Deed::Allocate(bytes, stream) => Made::Allocated(self.allocate(bytes, stream, false)),
            Deed::ReleaseCached => Made::Done(self.release_cached()),
            Deed::Create(pool) => Made::Pool(self.create_pool(pool)),
            Deed::Begin(pool, filter) => Made::Pool(self.begin_pool(pool, filter)),
            Deed::End(pool) => Made::Pool(self.end_pool(pool)),
            Deed::Release(pool) => Made::Pool(self.release_pool(pool)),
            Deed::ReleaseCachedPool(pool) => Made::Done(self.release_cached_pool(pool)),
            Deed::Register(stock) => {
                self.registered.push(stock);
                Made::Pool(Ok(()))
            }
        }
    }

    /// Whether a request is on its way to the pool, which must not be forgotten meanwhile.
    pub(super) fn is_awaited(&self, pool: PoolId) -> bool {
        self.awaited.contains(&pool)
    }
}
