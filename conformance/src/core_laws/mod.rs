#![doc = include_str!("README.md")]

mod answers;
mod bounds;
mod devices;
mod free_blocks;
mod handles;
mod orders;
mod policies;
mod restores;
pub(crate) mod settings;
mod tables;
mod two_devices;

pub use crate::drawn::{Draws, Failure, Outcome};
pub use settings::check_settings;

/// A law.
#[derive(Clone, Copy, Debug)]
pub struct CoreLaw {
    /// The law's name, as the suite's entries show it.
    pub name: &'static str,
    /// The property, in one line.
    pub says: &'static str,
    /// Checks the law. The outcome depends only on the draws.
    pub check: fn(&Draws) -> Outcome,
}

/// Every law.
pub const LAWS: [CoreLaw; 24] = [
    CoreLaw {
        name: "settings",
        says: "every settings string sets what the specification says or fails with the specified error",
        check: settings::check,
    },
    CoreLaw {
        name: "sizes",
        says: "blocks, segments, pages and reserved ranges have the sizes that the rules specify, up to 2^64",
        check: tables::check_sizes,
    },
    CoreLaw {
        name: "texts",
        says: "sizes, numbers, the memory summary and the list of statistics are formatted as PyTorch writes them",
        check: tables::check_texts,
    },
    CoreLaw {
        name: "texts/errors",
        says: "every error has the specified text, for all the values that it can contain",
        check: tables::check_errors,
    },
    CoreLaw {
        name: "releases/alike",
        says: "two releases count as deciding alike exactly if every rule that the program can meet is the same in both",
        check: tables::check_alike,
    },
    CoreLaw {
        name: "reference/free-blocks",
        says: "thousands of free blocks of any size stay sorted, and each request gets the first one that is large enough",
        check: free_blocks::check,
    },
    CoreLaw {
        name: "reference/by-address",
        says: "free blocks that coalesce are found by address, wherever the search begins",
        check: free_blocks::by_address,
    },
    CoreLaw {
        name: "reference/orders",
        says: "events are recorded and checked, and private pools serve and are released, in the order of PyTorch's hash tables, for \
               any stream handles and pool ids",
        check: orders::check,
    },
    CoreLaw {
        name: "reference/most-streams",
        says: "the heap has room for 65,536 streams and refuses the next one",
        check: bounds::streams,
    },
    CoreLaw {
        name: "reference/most-pools",
        says: "the allocator accepts 32,767 private pools and refuses the next one",
        check: bounds::pools,
    },
    CoreLaw {
        name: "reference/handles",
        says: "two allocations are equal only if they are the same block, and allocations that a restore freed stay invalid",
        check: restores::handles,
    },
    CoreLaw {
        name: "reference/page-runs",
        says: "a device that takes many pages at once leads to the same decisions as one that takes pages one by one",
        check: two_devices::page_runs,
    },
    CoreLaw {
        name: "reference/events-by-handle",
        says: "a device whose events complete in the order of their streams' handles may declare this without changing any \
               decision",
        check: two_devices::events_by_handle,
    },
    CoreLaw {
        name: "reference/most-bytes",
        says: "the allocator holds up to 2^63 - 1 bytes, adopted or its own, and not one byte more",
        check: bounds::bytes,
    },
    CoreLaw {
        name: "sweep/requested-bytes",
        says: "the heap check rejects a block for which more bytes were requested than it has, and only such a block",
        check: bounds::requested,
    },
    CoreLaw {
        name: "reference/any-size",
        says: "the decisions match the reference allocator's for requests of up to 2^64 bytes and allocation totals of up to 2^63 bytes",
        check: bounds::any_size,
    },
    CoreLaw {
        name: "faults/any-address",
        says: "each range that a device hands out is refused if and only if it overlaps one that is held, also in clones",
        check: answers::check,
    },
    CoreLaw {
        name: "policy/borders",
        says: "a policy's answer that cannot be carried out is refused with the right message and changes nothing; the \
               nearest possible answer is carried out",
        check: policies::check_borders,
    },
    CoreLaw {
        name: "policy/defaults",
        says: "devices and policies that implement only the required methods give the default answers, and boxing does not \
               change them",
        check: policies::check_defaults,
    },
    CoreLaw {
        name: "policy/on-the-way",
        says: "after a repeated search, only its result counts, and pages that are remapped are neither created nor released",
        check: policies::check_on_the_way,
    },
    CoreLaw {
        name: "policy/handles",
        says: "handles move wherever they fit, memory grows up to the limit exactly, and whatever can be broken is broken",
        check: handles::check,
    },
    CoreLaw {
        name: "pools/restores",
        says: "a restore that fails still frees everything; a segment that has grown is restored if at most one block was added",
        check: restores::check,
    },
    CoreLaw {
        name: "limit/fractions",
        says: "every fraction sets the limit that the rules specify, or is refused",
        check: bounds::fractions,
    },
    CoreLaw {
        name: "counters/from-a-file",
        says: "statistics from a file keep every value, and a reset changes exactly what it should",
        check: tables::check_statistics,
    },
];
