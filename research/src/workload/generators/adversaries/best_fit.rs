//! An attack on best fit: for each further live unit, the memory in use grows by nearly the largest size.
//!
//! Robson showed that such an attack exists (Worst case fragmentation of first fit and best fit storage allocation
//! strategies, Computer Journal 20, 1977; Knuth, The Art of Computer Programming 1, 2.5 exercise 42). Let `R j` be
//! a block in use and `F j` a free block of j units, and m the largest size. After each round memory is `R(m-2)
//! [F(m-3) R1] x k R(m-2)`, with k larger by one. Best fit takes the tightest gap, and the lowest of equal ones,
//! so each request below goes where the comment says. Other policies may place the same requests elsewhere.

use super::attack::AttackError;
use crate::workload::{Event, Workload};

/// The workload that ends with `gaps` gaps, with sizes up to `largest_units` units of `unit_bytes` bytes.
///
/// Best fit in one region, which grows by just what is missing, needs `(gaps + 2) (largest_units - 2)` units if it
/// does not round multiples of the unit. Fewer than `gaps + 6 largest_units` units are live at once. There are
/// about `6 gaps^2` events.
///
/// # Errors
/// [`AttackError::Shape`] for fewer than 6 units, or numbers that make too large a workload.
pub fn best_fit_attack(gaps: u32, largest_units: u64, unit_bytes: u64) -> Result<Workload, AttackError> {
    if !(6..=1 << 20).contains(&largest_units) {
        return Err(AttackError::Shape("the largest size must be from 6 to 2^20 units"));
    }
    if !(1..=2000).contains(&gaps) {
        return Err(AttackError::Shape("there must be from 1 to 2000 gaps"));
    }
    if unit_bytes == 0 || unit_bytes > 1 << 30 {
        return Err(AttackError::Shape("the unit must be from 1 byte to 1 GiB"));
    }
    let mut attack = BestFit::new(largest_units, unit_bytes);
    for _ in 1..gaps {
        attack.round();
    }
    let name = format!("best-fit-attack-{gaps}-{largest_units}");
    let says = format!("an attack on best fit: {gaps} gaps, sizes up to {largest_units} units of {unit_bytes} bytes");
    Ok(Workload { name, says, events: attack.events, ..Workload::default() })
}

/// The attack so far: the largest size, and the live buffers in the order of their addresses (the first, the
/// single units, the last).
struct BestFit {
    m: u64,
    unit_bytes: u64,
    events: Vec<Event>,
    buffers: u32,
    first: u32,
    ones: Vec<u32>,
    last: u32,
}

impl BestFit {
    /// The pattern with one gap.
    fn new(m: u64, unit_bytes: u64) -> BestFit {
        let mut attack = BestFit { m, unit_bytes, events: Vec::new(), buffers: 0, first: 0, ones: Vec::new(), last: 0 };
        attack.first = attack.allocate(m - 2);
        let gap = attack.allocate(m - 3);
        let one = attack.allocate_one();
        attack.ones.push(one);
        attack.last = attack.allocate(m - 2);
        attack.free(gap);
        attack
    }

    fn allocate(&mut self, units: u64) -> u32 {
        let buffer = self.buffers;
        self.events.push(Event::Allocate { buffer, bytes: units * self.unit_bytes, stream: 0 });
        self.buffers += 1;
        buffer
    }

    fn allocate_one(&mut self) -> u32 {
        self.allocate(1)
    }

    fn free(&mut self, buffer: u32) {
        self.events.push(Event::Free { buffer });
    }

    /// Turns `F(2m-4)`, the largest gap, into `F(m) R(m-5) R1`. Returns the two buffers that stay.
    fn cut_up(&mut self) -> (u32, u32) {
        let m = self.m;
        let whole = self.allocate(m); // leaves F(m-4), the tightest gap
        let pair = (self.allocate(m - 5), self.allocate_one());
        self.free(whole);
        pair
    }

    /// Adds a gap.
    fn round(&mut self) {
        let m = self.m;
        // No gap has m-2 units, so this one goes to the end.
        let behind = self.allocate(m - 2);
        // The last gap, its single unit and the last buffer become F(2m-4).
        if let Some(one) = self.ones.pop() {
            self.free(one);
        }
        self.free(self.last);
        self.last = behind;
        let (mut short, mut one) = self.cut_up();
        // F(m) R(m-5) R1 changes places with each F(m-3) R1 below it.
        let mut above = Vec::with_capacity(self.ones.len() + 2);
        while let Some(below) = self.ones.pop() {
            let (long, two) = (self.allocate(m - 2), self.allocate(2)); // fill F(m) exactly
            self.free(below);
            self.free(long); // F(m-3), the unit and R(m-2) become F(2m-4)
            let next = self.cut_up();
            self.free(two);
            self.free(short); // F(m-3); the single unit above it stays
            above.push(one);
            (short, one) = next;
        }
        self.free(self.first);
        self.free(short); // R(m-2) F(m) R(m-5) become F(3m-7), below an R1
        let (a, b) = (self.allocate(m - 2), self.allocate(m - 2));
        let fill = self.allocate(m - 3); // the lowest gap of m-3 units
        self.free(a);
        self.free(b);
        let (short, lowest) = self.cut_up();
        self.free(short); // F(2m-5) R1 R(m-3) R1
        self.first = self.allocate(m - 2);
        self.free(fill);
        self.ones.extend([lowest, one]);
        self.ones.extend(above.into_iter().rev());
    }
}
