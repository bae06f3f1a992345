//! A chain of equal layers, whose peak is given by a formula.
//!
//! Layer `i` has an input of `X` bytes (its *checkpoint*) and allocates another `Y` bytes (*inner*) that its backward pass
//! needs. Gradients are left out, as in the formulas in the notes on activation checkpointing and nano-batching that this
//! module follows (E2, E3).
//!
//! | the program | peak, for N layers |
//! |---|---|
//! | keeps everything | (X + Y) N |
//! | recomputes every layer | X N + Y |
//! | recomputes groups of M layers | X N / M + X (M - 1) + Y M |
//! | recomputes every layer in pieces (nano-batching) | X N + Y / pieces |
//! | runs forward only | X + Y: a layer's input and inner bytes, then the inner bytes and the next input |
//!
//! [`Chain::peak_bytes`] is the formula for any M. If M does not divide N, the last group is shorter; the peak is then the
//! larger of two peaks: that of the last group, with all checkpoints, and that of the group before it, with one checkpoint
//! fewer.
//!
//! **E1.** With X = B S H 4 bytes and Y = 0 the peak is L B S H 4: 1,610,612,736 bytes for 24 layers, 8 samples of 2,048
//! tokens, width 1,024. The formula for checkpointing, sqrt(L) B S H 4 = 328,765,000 bytes, counts only what is *kept*, using
//! a root that is not an integer: groups of 5 layers keep 5 checkpoints, 335,544,320 bytes. At the peak, a recomputed group
//! is also live: 8 activations, 536,870,912 bytes.
//!
//! **E4.** The notes do not state the sizes of their toy programs. With these values of N and pieces, the other numbers
//! follow:
//!
//! | toy | measured | fitted | the chain's peak, and ratios |
//! |---|---|---|---|
//! | checkpointing | 940.07, 688.08 MB | N 5, X 125.00, Y 63.00, fixed 0.07 | 940.07, 688.07; 1.366 |
//! | nano-batching | 1516.14, 880.14, 748.14 MB | N 5, X 144.20, Y 159.00, 6 pieces, fixed 0.14 | 1516.14, 880.14, 747.64; 1.723 and 1.177 |
//! | memory usage | 4.11, 15.83, 8.24 GB | N 4, X 1.377, Y 2.530, fixed 0.203 | 4.11, 15.83, 8.24; 1.921 |
//!
//! Only the third number of the second row, and the round sizes of the first, are evidence; the other rows fit as many sizes as
//! there are numbers. 748.14 MB comes out 0.07 % too small.

use super::Work;
use super::options::{self, Done, Generator, Key, MAX_BYTES, Program, Tensor, WorkloadError, bytes_of, shares, within};
use crate::workload::Workload;

/// What a chain keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Keeping {
    /// All results.
    #[default]
    All,
    /// The input of each group of this many layers; each group is recomputed.
    Groups(u64),
    /// The input of each layer; each layer is recomputed in this many pieces.
    Pieces(u64),
    /// Nothing: there is no backward pass.
    Nothing,
}

/// A chain of equal layers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Chain {
    /// The number of layers (N).
    pub layers: u64,
    /// The input of a layer, in bytes (X).
    pub checkpoint_bytes: u64,
    /// The additional bytes that a layer allocates (Y).
    pub inner_bytes: u64,
    /// The bytes that are live all the time.
    pub fixed_bytes: u64,
    /// What is kept.
    pub keeping: Keeping,
}

impl Chain {
    /// Groups whose size is the square root of the number of layers, rounded.
    #[must_use]
    pub fn sqrt(layers: u64) -> Keeping {
        Keeping::Groups(((layers as f64).sqrt().round() as u64).max(1))
    }

    /// Returns the peak according to the formula, in bytes; saturating.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        let Chain { layers, checkpoint_bytes: outer, inner_bytes: inner, .. } = *self;
        let group = |checkpoints: u64, members: u64| {
            outer.saturating_mul(checkpoints + members - 1).saturating_add(inner.saturating_mul(members))
        };
        let peak = match self.keeping {
            Keeping::All => outer.saturating_add(inner).saturating_mul(layers),
            Keeping::Groups(members) if members > 0 && layers > 0 => {
                let (whole, rest) = (layers / members, layers % members);
                let last = if rest == 0 { 0 } else { group(whole + 1, rest) };
                last.max(if whole == 0 { 0 } else { group(whole, members) })
            }
            Keeping::Pieces(pieces) if pieces > 0 => outer.saturating_mul(layers).saturating_add(inner.div_ceil(pieces)),
            Keeping::Nothing => outer.saturating_add(inner),
            Keeping::Groups(_) | Keeping::Pieces(_) => 0,
        };
        peak.saturating_add(self.fixed_bytes)
    }

    /// Returns the requests of one step.
    ///
    /// # Errors
    /// Returns [`WorkloadError`] for no layers, groups larger than the chain, sizes beyond [`MAX_BYTES`], or too many events.
    pub fn workload(&self) -> Result<Workload, WorkloadError> {
        let says = format!("A chain of {} layers: {:?}", self.layers, self.keeping);
        Ok(self.run()?.program.finish("chain", says))
    }

    /// Returns the arithmetic of one step; a layer's forward pass is one unit.
    ///
    /// # Errors
    /// Fails in the same cases as [`Chain::workload`].
    pub fn work(&self) -> Result<Work, WorkloadError> {
        Ok(self.run()?.work)
    }

    fn run(&self) -> Result<Run, WorkloadError> {
        within("layers", self.layers, 1, 1 << 20)?;
        within("checkpoint_bytes", self.checkpoint_bytes, 1, MAX_BYTES)?;
        within("inner_bytes", self.inner_bytes, 0, MAX_BYTES)?;
        within("fixed_bytes", self.fixed_bytes, 0, MAX_BYTES)?;
        bytes_of("the activations", &[self.checkpoint_bytes.max(self.inner_bytes), self.layers])?;
        let mut run = Run { chain: *self, program: Program::default(), work: Work::default() };
        if self.fixed_bytes > 0 {
            run.program.allocate(self.fixed_bytes)?;
        }
        run.program.begin_step();
        match self.keeping {
            Keeping::All => run.keep_all()?,
            Keeping::Groups(members) => {
                within("keeping", members, 1, self.layers)?;
                run.groups(members)?;
            }
            Keeping::Pieces(pieces) => {
                within("keeping", pieces, 1, self.inner_bytes.clamp(1, 1 << 20))?;
                run.pieces(pieces)?;
            }
            Keeping::Nothing => run.forward_only()?,
        }
        Ok(run)
    }
}

struct Run {
    chain: Chain,
    program: Program,
    work: Work,
}

impl Run {
    fn outer(&mut self) -> Result<Tensor, WorkloadError> {
        self.program.allocate(self.chain.checkpoint_bytes)
    }

    /// Returns the memory that a layer allocates in addition to its output, or `None` for 0 bytes.
    fn inner(&mut self, bytes: u64) -> Result<Option<Tensor>, WorkloadError> {
        if bytes == 0 { Ok(None) } else { self.program.allocate(bytes).map(Some) }
    }

    fn free(&mut self, tensors: impl IntoIterator<Item = Tensor>) -> Result<(), WorkloadError> {
        tensors.into_iter().try_for_each(|tensor| self.program.free(tensor))
    }

    fn keep_all(&mut self) -> Result<(), WorkloadError> {
        let mut kept = Vec::new();
        for _ in 0..self.chain.layers {
            let outer = self.outer()?;
            kept.push((outer, self.inner(self.chain.inner_bytes)?));
            self.work.forward += 1;
        }
        for (outer, inner) in kept.into_iter().rev() {
            self.work.backward += 2;
            self.free(inner)?;
            self.free([outer])?;
        }
        Ok(())
    }

    fn groups(&mut self, members: u64) -> Result<(), WorkloadError> {
        let mut checkpoints = Vec::new();
        for first in (0..self.chain.layers).step_by(members as usize) {
            checkpoints.push(self.outer()?);
            let count = members.min(self.chain.layers - first);
            let mut previous = None;
            for layer in 0..count {
                let inner = self.inner(self.chain.inner_bytes)?;
                // A group's last output is the next group's checkpoint.
                let next = if layer + 1 < count { Some(self.outer()?) } else { None };
                self.free(inner)?;
                self.free(previous.take())?;
                previous = next;
                self.work.forward += 1;
            }
        }
        let mut count = (self.chain.layers - 1) % members + 1;
        for checkpoint in checkpoints.into_iter().rev() {
            self.group_backward(count)?;
            self.free([checkpoint])?;
            count = members;
        }
        Ok(())
    }

    fn group_backward(&mut self, members: u64) -> Result<(), WorkloadError> {
        let mut made = Vec::new();
        for layer in 0..members {
            let outer = if layer > 0 { Some(self.outer()?) } else { None };
            made.push((outer, self.inner(self.chain.inner_bytes)?));
            self.work.recomputed += 1;
        }
        for (outer, inner) in made.into_iter().rev() {
            self.work.backward += 2;
            self.free(inner)?;
            self.free(outer)?;
        }
        Ok(())
    }

    fn in_pieces(&mut self, pieces: u64) -> Result<(), WorkloadError> {
        for (count, bytes) in shares(self.chain.inner_bytes, pieces) {
            for _ in 0..count {
                let inner = self.inner(bytes)?;
                self.free(inner)?;
            }
        }
        Ok(())
    }

    fn pieces(&mut self, pieces: u64) -> Result<(), WorkloadError> {
        let mut checkpoints = Vec::new();
        for _ in 0..self.chain.layers {
            checkpoints.push(self.outer()?);
            self.in_pieces(pieces)?;
            self.work.forward += 1;
        }
        for checkpoint in checkpoints.into_iter().rev() {
            self.in_pieces(pieces)?;
            self.work.recomputed += 1;
            self.work.backward += 2;
            self.free([checkpoint])?;
        }
        Ok(())
    }

    fn forward_only(&mut self) -> Result<(), WorkloadError> {
        let mut outer = self.outer()?;
        for _ in 0..self.chain.layers {
            let inner = self.inner(self.chain.inner_bytes)?;
            self.program.free(outer)?;
            outer = self.outer()?;
            self.free(inner)?;
            self.work.forward += 1;
        }
        self.program.free(outer)
    }
}

/// A chain as described by an option list: `keeping=sqrt` may precede the number of layers that determines it.
pub(super) struct DescribedChain {
    chain: Chain,
    is_sqrt: bool,
}

impl Default for DescribedChain {
    fn default() -> DescribedChain {
        let chain = Chain { layers: 24, checkpoint_bytes: 64 << 20, inner_bytes: 256 << 20, ..Chain::default() };
        DescribedChain { chain, is_sqrt: false }
    }
}

impl Generator for DescribedChain {
    fn keys(&self) -> Vec<Key> {
        vec!["layers", "checkpoint_bytes", "inner_bytes", "fixed_bytes", "keeping", "seed"]
    }

    fn set(&mut self, key: Key, value: &str) -> Done {
        match key {
            "layers" => self.chain.layers = options::number(key, value)?,
            "checkpoint_bytes" => self.chain.checkpoint_bytes = options::bytes(key, value)?,
            "inner_bytes" => self.chain.inner_bytes = options::bytes(key, value)?,
            "fixed_bytes" => self.chain.fixed_bytes = options::bytes(key, value)?,
            "keeping" => match keeping(key, value)? {
                Some(keeping) => (self.chain.keeping, self.is_sqrt) = (keeping, false),
                None => self.is_sqrt = true,
            },
            _ => options::unused_seed(key, value)?,
        }
        Ok(())
    }

    fn make(&self) -> Result<Workload, WorkloadError> {
        let keeping = if self.is_sqrt { Chain::sqrt(self.chain.layers) } else { self.chain.keeping };
        Chain { keeping, ..self.chain }.workload()
    }
}

/// Reads what a chain keeps. `None` means groups whose size is the square root of the number of layers.
fn keeping(option: Key, value: &str) -> Result<Option<Keeping>, WorkloadError> {
    match (value.split_once('/'), value) {
        (None, "all") => Ok(Some(Keeping::All)),
        (None, "nothing") => Ok(Some(Keeping::Nothing)),
        (None, "sqrt") => Ok(None),
        (Some(("groups", count)), _) => Ok(Some(Keeping::Groups(options::number(option, count)?))),
        (Some(("pieces", count)), _) => Ok(Some(Keeping::Pieces(options::number(option, count)?))),
        _ => options::refused(option, value, "all, nothing, sqrt, groups/LAYERS or pieces/PIECES"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(layers: u64, checkpoint_bytes: u64, inner_bytes: u64, keeping: Keeping) -> Chain {
        Chain { layers, checkpoint_bytes, inner_bytes, fixed_bytes: 0, keeping }
    }

    fn load(chain: &Chain) -> u64 {
        let workload = chain.workload().unwrap();
        assert_eq!(workload.check(), Ok(()));
        workload.load_bytes(1)
    }

    /// E2 and E3, written out as in the notes.
    #[test]
    fn the_peak_is_the_closed_form() {
        for (n, x, y) in (1..=24).flat_map(|n| [(n, 1, 1), (n, 10, 3), (n, 3, 100), (n, 7, 0), (n, 1000, 1001)]) {
            assert_eq!(load(&chain(n, x, y, Keeping::All)), (x + y) * n);
            assert_eq!(load(&chain(n, x, y, Keeping::Groups(1))), x * n + y);
            assert_eq!(load(&chain(n, x, y, Keeping::Nothing)), if y == 0 { x } else { x + y });
            for m in (1..=n).filter(|m| n % m == 0) {
                assert_eq!(load(&chain(n, x, y, Keeping::Groups(m))), x * (n / m) + x * (m - 1) + y * m, "{n} {m} {x} {y}");
            }
            for pieces in (1..=y).filter(|pieces| y % pieces == 0) {
                assert_eq!(load(&chain(n, x, y, Keeping::Pieces(pieces))), x * n + y / pieces, "{n} {x} {y} {pieces}");
            }
        }
    }

    #[test]
    fn the_peak_is_the_formula_where_groups_and_pieces_do_not_divide() {
        for n in 1..=24 {
            for (x, y) in [(1, 1), (10, 3), (3, 100), (7, 7)] {
                for keeping in (1..=n).map(Keeping::Groups).chain((1..=y).map(Keeping::Pieces)) {
                    let chain = Chain { fixed_bytes: 5, ..chain(n, x, y, keeping) };
                    assert_eq!(load(&chain), chain.peak_bytes(), "{chain:?}");
                }
            }
        }
    }

    #[test]
    fn a_transformers_activations_are_as_the_formula_says() {
        let (layers, batch, sequence, hidden) = (24_u64, 8, 2048, 1024);
        let x = batch * sequence * hidden * 4;
        let whole = chain(layers, x, 0, Keeping::All);
        assert_eq!(load(&whole), layers * x);
        assert_eq!(layers * x, 1_610_612_736);
        let formula = (layers as f64).sqrt() * x as f64;
        assert_eq!((formula / 1e3).round(), 328_765.0);
        let groups = chain(layers, x, 0, Chain::sqrt(layers));
        assert_eq!(groups.keeping, Keeping::Groups(5));
        // The forward pass leaves five checkpoints.
        let left = groups.workload().unwrap().curve().into_iter().take_while(|&live| live < 6 * x).max();
        assert_eq!(left, Some(5 * x));
        assert!((5.0 * x as f64 / formula - 1.0) < 0.021);
        assert_eq!(load(&groups), 8 * x);
        assert_eq!(8 * x, 536_870_912);
    }

    /// The fits of the module's table, in units of 10 kB (for MB) and 10 MB (for GB).
    #[test]
    fn the_toy_numbers_come_out() {
        let peak = |chain: Chain, keeping| load(&Chain { keeping, ..chain }) as f64;
        let near = |found: f64, measured: f64| assert!((found / measured - 1.0).abs() < 0.001, "{found} {measured}");
        let toy = Chain { layers: 5, checkpoint_bytes: 12_500, inner_bytes: 6_300, fixed_bytes: 7, keeping: Keeping::All };
        near(peak(toy, Keeping::All), 94_007.0);
        near(peak(toy, Keeping::Groups(1)), 68_808.0);
        near(peak(toy, Keeping::All) / peak(toy, Keeping::Groups(1)), 940.07 / 688.08);
        let nano = Chain { layers: 5, checkpoint_bytes: 14_420, inner_bytes: 15_900, fixed_bytes: 14, keeping: Keeping::All };
        near(peak(nano, Keeping::All), 151_614.0);
        near(peak(nano, Keeping::Groups(1)), 88_014.0);
        near(peak(nano, Keeping::Pieces(6)), 74_814.0);
        near(peak(nano, Keeping::All) / peak(nano, Keeping::Groups(1)), 1516.14 / 880.14);
        near(peak(nano, Keeping::Groups(1)) / peak(nano, Keeping::Pieces(6)), 880.14 / 748.14);
        let usage = Chain { layers: 4, checkpoint_bytes: 13_767, inner_bytes: 25_300, fixed_bytes: 2_033, keeping: Keeping::All };
        near(peak(usage, Keeping::Nothing), 41_100.0);
        near(peak(usage, Keeping::All), 158_300.0);
        near(peak(usage, Keeping::Groups(1)), 82_400.0);
        near(peak(usage, Keeping::All) / peak(usage, Keeping::Groups(1)), 15.83 / 8.24);
    }

    #[test]
    fn recomputation_costs_a_third() {
        for keeping in [Keeping::Groups(1), Keeping::Groups(4), Keeping::Groups(5), Keeping::Pieces(3)] {
            let work = chain(12, 10, 30, keeping).work().unwrap();
            assert_eq!(work, Work { forward: 12, backward: 24, recomputed: 12 });
            assert!((work.overhead() - 1.0 / 3.0).abs() < 1e-12);
        }
        assert_eq!(chain(12, 10, 30, Keeping::All).work().unwrap().recomputed, 0);
    }

    #[test]
    fn the_curves_are_those_of_the_notes() {
        let drawn = |chain: Chain, rows| chain.workload().unwrap().drawn(100, rows);
        let all = drawn(chain(5, 10, 0, Keeping::All), 5);
        assert_eq!(
            all,
            ["    #", "   ###", "  #####", " #######", "#########", ""].join("\n"),
            "forward up up up, backward down down down"
        );
        let forward_only = drawn(chain(5, 10, 10, Keeping::Nothing), 2);
        assert_eq!(forward_only, [" # # # # # # # # # #", "#####################", ""].join("\n"), "up and down");
        let recomputing = [
            "          # #",
            "       #  # #  #",
            "    #  # ##### #  #",
            " #  # ########### #  #",
            " # ################# #",
            "#######################",
            "",
        ];
        let groups = drawn(chain(4, 10, 20, Keeping::Groups(1)), 6);
        assert_eq!(groups, recomputing.join("\n"), "up (up down) up (up down), then down (up down) down");
    }

    #[test]
    fn bad_options_are_errors() {
        let refused = |chain: Chain| chain.workload().unwrap_err().to_string();
        assert_eq!(refused(chain(0, 1, 1, Keeping::All)), "layers is 0; allowed: 1 to 1048576");
        assert_eq!(refused(chain(3, 1, 1, Keeping::Groups(4))), "keeping is 4; allowed: 1 to 3");
        assert_eq!(refused(chain(3, 1, 1, Keeping::Groups(0))), "keeping is 0; allowed: 1 to 3");
        assert_eq!(refused(chain(3, 1, 9, Keeping::Pieces(10))), "keeping is 10; allowed: 1 to 9");
        assert!(refused(chain(3, u64::MAX, 1, Keeping::All)).starts_with("checkpoint_bytes is"));
        assert!(refused(chain(3, MAX_BYTES, 1, Keeping::All)).starts_with("the activations would take more than"));
        assert_eq!(Chain::default().peak_bytes(), 0);
        assert_eq!(chain(u64::MAX, u64::MAX, 1, Keeping::All).peak_bytes(), u64::MAX);
    }
}
