//! What an entry requires of a device beyond memory, streams and events.

use parkade::units::{Bytes, MIB};

use crate::backend::DeviceFacts;

/// The smallest page of PyTorch's expandable segments (spec 4.2).
const EXPANDABLE_PAGE: Bytes = Bytes(2 * MIB);

/// What an entry requires of a device. On a device without it the entry is skipped with a reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Requirement {
    /// Addresses can be reserved and memory mapped at them.
    VirtualMemory,
    /// Memory can be mapped in the pages that the allocator and its policies map: 2 MiB and multiples.
    ExpandableSegments,
    /// Ranges of up to a page divided by this number share pages: 2 means half a page.
    SharedPages(u64),
    /// Any free pages can serve any range.
    RemappedPages,
    /// The facts equal those of the simulated device that the entry compares with.
    ReferenceFacts,
}

impl Requirement {
    /// Why a device with these facts does not meet it; `None` if it does.
    #[must_use]
    pub fn unmet(self, facts: &DeviceFacts) -> Option<&'static str> {
        let unless = |holds: bool, reason| (!holds).then_some(reason);
        let without = unless(facts.has_virtual_memory, "this device has no virtual memory");
        match self {
            Requirement::VirtualMemory => without,
            Requirement::ExpandableSegments => without.or(unless(
                EXPANDABLE_PAGE.get().is_multiple_of(facts.page.get()),
                "expandable segments map pages of 2 MiB, which are not whole pages of this device",
            )),
            Requirement::SharedPages(part) => match facts.sharing {
                None => Some("ranges share no pages on this device"),
                Some(sharing) => {
                    unless(sharing.largest.get() >= facts.page.get() / part, "ranges of this size share no pages on this device")
                }
            },
            Requirement::RemappedPages => unless(facts.remaps_pages, "this device needs contiguous memory for a range"),
            Requirement::ReferenceFacts => unless(
                facts.behaves_as(&DeviceFacts::H200),
                "this device's facts are not those of the simulated device it is compared with",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Sharing;

    #[test]
    fn each_requirement_is_met_by_an_h200_and_unmet_without_its_fact() {
        let h200 = DeviceFacts::H200;
        let eighths = Sharing { largest: Bytes(MIB / 4), spacing: Bytes(512) };
        let large = DeviceFacts { page: Bytes(64 * MIB), ..h200 };
        for (requirement, without) in [
            (Requirement::VirtualMemory, DeviceFacts { has_virtual_memory: false, ..h200 }),
            (Requirement::ExpandableSegments, DeviceFacts { has_virtual_memory: false, ..h200 }),
            (Requirement::ExpandableSegments, large),
            (Requirement::SharedPages(2), DeviceFacts { sharing: None, ..h200 }),
            (Requirement::SharedPages(2), DeviceFacts { sharing: Some(eighths), ..h200 }),
            (Requirement::RemappedPages, DeviceFacts { remaps_pages: false, ..h200 }),
            (Requirement::ReferenceFacts, large),
        ] {
            assert_eq!(requirement.unmet(&h200), None, "{requirement:?}");
            assert!(requirement.unmet(&without).is_some(), "{requirement:?}");
        }
        assert_eq!(Requirement::VirtualMemory.unmet(&large), None);
    }
}
