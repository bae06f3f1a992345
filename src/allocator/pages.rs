//! The memory behind pages of expandable segments: taken from the device, mapped, and given back.
//!
//! Memory is handled in runs of as many pages as the device takes together, often one (spec 4.3, 4.5).

use alloc::vec::Vec;

use super::Allocator;
use crate::device::{BackendError, DeviceBackend};
use crate::error::AllocError;
use crate::policy::Policy;
use crate::reservation::{Pages, Run};
use crate::trace::Observer;
use crate::units::{Bytes, DeviceAddress};

impl<D: DeviceBackend, P: Policy, O: Observer> Allocator<D, P, O> {
    /// Takes memory for `count` pages, all or none (spec 4.5). `None` if there is not enough.
    pub(super) fn create_pages(&mut self, count: u64, page: u64) -> Result<Option<Vec<Run<D::Physical>>>, AllocError> {
        let mut memory = Vec::new();
        let mut missing = count;
        while missing > 0 {
            let run = match self.reservations.take_spare_run(page) {
                Some(run) => self.cut_spare(run, page, missing),
                None => self.create_run(missing, page),
            };
            match run {
                Ok(run) => {
                    missing -= run.pages;
                    memory.push(run);
                }
                Err(error) => {
                    let is_refusal = matches!(error, BackendError::OutOfMemory { .. });
                    let looked = if is_refusal { self.look_after_refusal() } else { Ok(()) };
                    self.release_pages(memory)?;
                    looked?;
                    return if is_refusal { Ok(None) } else { Err(error.into()) };
                }
            }
        }
        Ok(Some(memory))
    }

    /// Creates some of the missing pages: at least one.
    fn create_run(&mut self, missing: u64, page: u64) -> Result<Run<D::Physical>, BackendError> {
        let most = self.device.run_pages().clamp(1, missing);
        let (memory, pages) = self.device.create_run(Bytes(page), most)?;
        Ok(Run { memory, pages: pages.clamp(1, most), is_handle: false })
    }

    /// The first pages of kept memory; the rest is kept on.
    fn cut_spare(&mut self, mut run: Run<D::Physical>, page: u64, missing: u64) -> Result<Run<D::Physical>, BackendError> {
        if run.pages > missing {
            match self.device.split_run(&mut run.memory, Bytes(page), missing) {
                Ok(memory) => self.reservations.keep_spare(page, Run { memory, pages: run.pages - missing, is_handle: false }),
                Err(error) => {
                    self.reservations.keep_spare(page, run);
                    return Err(error);
                }
            }
            run.pages = missing;
        }
        Ok(run)
    }

    /// Releases all of it, even after an error. Returns the first error; what could not be released is kept
    /// and retried later.
    pub(super) fn release_pages(&mut self, memory: Vec<Run<D::Physical>>) -> Result<(), BackendError> {
        memory.into_iter().map(|run| self.release_run(run.memory)).fold(Ok(()), Result::and)
    }

    pub(super) fn release_run(&mut self, memory: D::Physical) -> Result<(), BackendError> {
        self.device.release(memory).map_err(|(memory, error)| {
            self.reservations.keep_unreleased(memory);
            error
        })
    }

    /// Retries to unmap and release what the device failed to.
    pub(super) fn release_leftovers(&mut self) -> Result<(), BackendError> {
        let stuck = self.reservations.take_stuck();
        let cleared = stuck.into_iter().map(|pages| self.clear(pages)).fold(Ok(()), Result::and);
        let leftovers = self.reservations.take_unreleased();
        cleared.and(leftovers.into_iter().map(|memory| self.release_run(memory)).fold(Ok(()), Result::and))
    }

    /// Unmaps memory that no segment uses. A failure is remembered and retried.
    fn clear(&mut self, pages: Pages) -> Result<(), BackendError> {
        let Pages { address, page, count } = pages;
        let unmapped = self.device.unmap_run(DeviceAddress(address), Bytes(page), count);
        unmapped.inspect_err(|_| self.reservations.keep_stuck(pages))
    }

    /// Maps each run of pages and then sets access for all of them. Undone after an error.
    pub(super) fn map_pages(&mut self, to: Pages, memory: Vec<Run<D::Physical>>, base: u64) -> Result<(), AllocError> {
        let Pages { address, page, .. } = to;
        let mut mapped = Vec::with_capacity(memory.len());
        let mut at = address;
        let mut outcome = Ok(());
        for run in &memory {
            outcome = self.device.map(DeviceAddress(at), Bytes(run.pages * page), &run.memory);
            if outcome.is_err() {
                break;
            }
            mapped.push(run.at(at, page));
            at += run.pages * page;
        }
        let outcome = outcome.and_then(|()| self.device.set_access(DeviceAddress(address), Bytes(at - address)));
        if let Err(error) = outcome {
            for pages in mapped {
                // Another error changes nothing: it is retried before anything else is mapped.
                let _ = self.clear(pages);
            }
            let _ = self.release_pages(memory);
            return Err(error.into());
        }
        if let Some((_, range)) = self.reservations.holding(base) {
            let mut place = (address - base) / page;
            for run in memory {
                let next = place + run.pages;
                range.put(place, run);
                place = next;
            }
        }
        Ok(())
    }
}
