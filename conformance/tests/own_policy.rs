//! A policy of one's own: first fit by address, with large blocks kept at the far end.
//!
//! Small and large blocks share segments of 256 MiB. Small ones are put as low as possible; a large one is put at the high end of the
//! highest free block that holds it. So what lives long and is small does not come to lie between large blocks.

use parkade::policy::{Attempt, Placement, Policy, Relief, Request};
use parkade::units::{Bytes, PoolClass};
use parkade::{BlockView, Heap};
use parkade_conformance::policies::check;
use parkade_conformance::suite::Effort;
