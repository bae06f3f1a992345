//! What every search of an instance needs: which buffers overlap in time, which are equal, and the unit of addresses.

use super::instance::Instance;

/// Facts about an instance that all searches share.
pub(super) struct Relations<'a> {
    pub(super) instance: &'a Instance,
    /// For each buffer, those that overlap it in time.
    pub(super) neighbours: Vec<Vec<u32>>,
    /// The buffers of each section.
    pub(super) members: Vec<Vec<u32>>,
    /// For each buffer, the previous one with the same span, size and alignment.
    pub(super) twins: Vec<Option<u32>>,
    /// All buffers in the order of the sections in which they begin.
    by_start: Vec<u32>,
    /// For each section, how many buffers begin before it.
    begun: Vec<u32>,
    /// In a packing without needless gaps, all addresses are multiples of this.
    pub(super) unit: u64,
}

impl<'a> Relations<'a> {
    pub(super) fn new(instance: &'a Instance) -> Relations<'a> {
        let buffers = instance.buffers();
        let count = buffers.len();
        let others = |a: usize| (0..count).filter(|&b| a != b && instance.overlap(a, b)).map(|b| b as u32).collect();
        let mut members = vec![Vec::new(); instance.loads.len()];
        for (buffer, &(start, end)) in instance.spans.iter().enumerate() {
            members[start as usize..end as usize].iter_mut().for_each(|list: &mut Vec<u32>| list.push(buffer as u32));
        }
        let kind = |b: usize| (instance.spans[b], buffers[b].size, buffers[b].alignment);
        let twins = (0..count).map(|b| (0..b).rev().find(|&a| kind(a) == kind(b)).map(|a| a as u32)).collect();
        let unit = buffers.iter().fold(0, |unit, buffer| gcd(gcd(unit, buffer.size), step_of(buffer.alignment)));
        let mut by_start: Vec<u32> = (0..count as u32).collect();
        by_start.sort_by_key(|&buffer| instance.spans[buffer as usize].0);
        let sections = 0..=instance.loads.len() as u32;
        let begun =
            sections.map(|section| by_start.partition_point(|&b| instance.spans[b as usize].0 < section) as u32).collect();
        let neighbours = (0..count).map(others).collect();
        Relations { instance, neighbours, members, twins, by_start, begun, unit: unit.max(1) }
    }

    /// The buffers that begin in these sections.
    pub(super) fn beginning(&self, (first, end): (u32, u32)) -> &[u32] {
        &self.by_start[self.begun[first as usize] as usize..self.begun[end as usize] as usize]
    }
}

/// An alignment of 1 forces nothing; as 0 it does not change a greatest common divisor.
fn step_of(alignment: u64) -> u64 {
    if alignment == 1 { 0 } else { alignment }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
