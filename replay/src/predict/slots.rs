//! Where a run keeps the memory of requests: in as few slots as requests are live at once, so that a copy of a run is small.

use std::sync::Arc;

use super::requests::{Operation, Requests};

/// The slot of each request, by its number. Requests that are live at the same time have different slots.
#[derive(Clone, Debug, Default)]
pub struct Slots(Arc<[u32]>);

impl Slots {
    /// The slot of requests that are never live: they failed in the recording, so their memory is given back at once.
    const NONE: u32 = u32::MAX;

    /// Gives each request the slot that was freed last before it.
    #[must_use]
    pub fn of(requests: &Requests) -> Slots {
        let mut slots: Vec<u32> = Vec::new();
        let mut is_freed: Vec<bool> = Vec::new();
        let (mut unused, mut most): (Vec<u32>, u32) = (Vec::new(), 0);
        for &(_, operation) in &requests.operations {
            match operation {
                Operation::Allocate { failed, .. } => {
                    is_freed.push(failed);
                    let slot = if failed { Slots::NONE } else { unused.pop().unwrap_or(most) };
                    most += u32::from(slot == most);
                    slots.push(slot);
                }
                Operation::Free { id, .. } => {
                    if let (Some(&slot), Some(false)) = (slots.get(id), is_freed.get(id)) {
                        is_freed[id] = true;
                        unused.push(slot);
                    }
                }
                Operation::EmptyCache | Operation::AbandonPool(_) | Operation::ReleasePool(_) => {}
            }
        }
        Slots(slots.into())
    }

    /// The slot of a request; `None` if it is never live.
    #[inline]
    pub(crate) fn of_request(&self, id: usize) -> Option<usize> {
        self.0.get(id).filter(|&&slot| slot != Slots::NONE).map(|&slot| slot as usize)
    }
}

#[cfg(test)]
mod tests {
    use parkade::units::PoolId;

    use super::super::requests::Completion;
    use super::*;

    #[test]
    fn a_slot_is_used_again_once_its_request_is_freed() {
        let allocate = |id, failed| Operation::Allocate { id, bytes: 512, stream: 0, pool: PoolId::DEFAULT, failed };
        let free = |id| Operation::Free { id, completion: Completion::AtOnce };
        // A number that is freed twice frees its slot once.
        let operations = [
            allocate(0, false),
            allocate(1, false),
            free(0),
            free(0),
            allocate(2, true),
            allocate(3, false),
            allocate(4, false),
            free(9),
        ];
        let requests = Requests { operations: operations.into_iter().enumerate().collect(), ..Requests::default() };
        let slots = Slots::of(&requests);
        assert_eq!([0, 1, 2, 3, 4, 9].map(|id| slots.of_request(id)), [Some(0), Some(1), None, Some(0), Some(2), None]);
    }
}
