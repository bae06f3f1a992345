#![doc = include_str!("README.md")]

mod answers;
mod bounds;
mod clones;
mod devices;
mod free_blocks;
mod policies;
mod restores;
mod run;
mod settings;
mod tables;
mod two_devices;

pub use run::{Draws, Failure, Outcome};

/// A law.
#[derive(Clone, Copy, Debug)]
pub struct CoreLaw {
    /// Its name, as entries of the suite show it.
    pub name: &'static str,
    /// The property, in one line.
    pub says: &'static str,
    /// Checks the law. The outcome depends only on the draws.
    pub check: fn(&Draws) -> Outcome,
}

/// Every law.
pub const LAWS: [CoreLaw; 22] = [
    CoreLaw {
        name: "settings",
        says: "every settings string sets what the specification says, and fails with its error",
        check: settings::check,
    },
    CoreLaw {
        name: "sizes",
        says: "blocks, segments, pages and reserved ranges have the sizes that the rules say, up to 2^64",
        check: tables::check_sizes,
    },
    CoreLaw {
        name: "texts",
        says: "sizes, numbers, the memory summary and the list of statistics read as PyTorch writes them",
        check: tables::check_texts,
    },
    CoreLaw { name: "texts/errors", says: "every error says what it must, whatever it names", check: tables::check_errors },
    CoreLaw {
        name: "reference/free-blocks",
        says: "thousands of free blocks of any size stay in order, and each request gets the first that is large enough",
        check: free_blocks::check,
    },
    CoreLaw {
        name: "reference/by-address",
        says: "free blocks that coalesce are found by address, from wherever the search begins",
        check: free_blocks::by_address,
    },
    CoreLaw {
        name: "reference/most-streams",
        says: "the heap has room for 65,536 streams and refuses the next",
        check: bounds::streams,
    },
    CoreLaw {
        name: "reference/most-pools",
        says: "there may be 32,767 private pools, and the next is refused",
        check: bounds::pools,
    },
    CoreLaw {
        name: "reference/clones",
        says: "a clone takes back what its originals had, is independent of them, and takes nothing else",
        check: clones::check,
    },
    CoreLaw {
        name: "endings/clones",
        says: "a clone goes on as its original does, from any state; whoever is dropped gives everything back, after its users",
        check: clones::copies,
    },
    CoreLaw {
        name: "reference/handles",
        says: "two allocations are equal if they are the same block, and what a restore took back stays void",
        check: restores::handles,
    },
    CoreLaw {
        name: "reference/page-runs",
        says: "a device that takes many pages at once sees the same decisions as one that takes them one by one",
        check: two_devices::page_runs,
    },
    CoreLaw {
        name: "reference/events-by-handle",
        says: "a device whose events complete by their streams' handles may say so: no decision changes",
        check: two_devices::events_by_handle,
    },
    CoreLaw {
        name: "reference/most-bytes",
        says: "the allocator holds up to 2^63 - 1 bytes, adopted or its own, and not one more",
        check: bounds::bytes,
    },
    CoreLaw {
        name: "reference/any-size",
        says: "requests of up to 2^64 bytes are decided as the reference allocator does, up to 2^63 bytes in all",
        check: bounds::any_size,
    },
    CoreLaw {
        name: "faults/any-address",
        says: "each range that a device hands out is refused if it meets one that is held, and only then; clones know them too",
        check: answers::check,
    },
    CoreLaw {
        name: "policy/borders",
        says: "an answer of a policy that cannot be carried out is refused in its words and changes nothing; the nearest one is carried out",
        check: policies::check_borders,
    },
    CoreLaw {
        name: "policy/defaults",
        says: "devices and policies that say only what they must have the default answers; a box changes none",
        check: policies::check_defaults,
    },
    CoreLaw {
        name: "policy/on-the-way",
        says: "what is searched once more counts, and pages that are remapped are neither created nor released",
        check: policies::check_on_the_way,
    },
    CoreLaw {
        name: "pools/restores",
        says: "a restore that fails gives back all the same; a segment that has grown is restored if one block was added at most",
        check: restores::check,
    },
    CoreLaw {
        name: "limit/fractions",
        says: "every fraction sets the limit that the rules say, or is refused",
        check: bounds::fractions,
    },
    CoreLaw {
        name: "counters/from-a-file",
        says: "statistics from a file keep every value, and a reset changes what it should",
        check: tables::check_statistics,
    },
];
