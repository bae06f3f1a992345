//! The live bytes over the course of a workload: the shape of a training step.

use super::event::{Event, Workload};

impl Workload {
    /// The live bytes after each event that allocates or frees, with requests counted as they are, not rounded.
    #[must_use]
    pub fn curve(&self) -> Vec<u64> {
        let mut sizes = Vec::new();
        let mut live = 0_u64;
        let mut curve = Vec::new();
        for event in &self.events {
            match *event {
                Event::Allocate { bytes, .. } => {
                    sizes.push(bytes);
                    live = live.saturating_add(bytes);
                }
                Event::Free { buffer } => live = live.saturating_sub(sizes.get_mut(buffer as usize).map_or(0, std::mem::take)),
                _ => continue,
            }
            curve.push(live);
        }
        curve
    }

    /// The curve as text, `columns` wide and `rows` high. Each column shows the maximum of its part of the
    /// workload. Empty for a workload without allocations, and for 0 columns or rows.
    #[must_use]
    pub fn drawn(&self, columns: usize, rows: usize) -> String {
        let curve = self.curve();
        let most = curve.iter().copied().max().unwrap_or(0);
        if most == 0 || columns == 0 || rows == 0 {
            return String::new();
        }
        let columns = columns.min(curve.len());
        let part = |column: usize| &curve[column * curve.len() / columns..(column + 1) * curve.len() / columns];
        let heights: Vec<usize> = (0..columns)
            .map(|column| {
                let highest = part(column).iter().max().map_or(0, |&live| u128::from(live));
                (highest * rows as u128).div_ceil(u128::from(most)) as usize
            })
            .collect();
        let row = |row: usize| heights.iter().map(|&height| if height >= row { '#' } else { ' ' }).collect::<String>();
        (1..=rows).rev().map(|level| row(level).trim_end().to_owned() + "\n").collect()
    }
}
