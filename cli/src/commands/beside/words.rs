//! What a policy needs, in words.

use crate::terminal::{ending, output, size};
use parkade_analysis::advise::Outcome as Fit;
use parkade_policies::needs_serial_work;

use super::Needs;
use super::device::{AtHand, Figures, OnDevice};

/// In what policies are not measured as settings are.
const MEASURE: &str = "policies are measured differently from settings: memory that other streams still used when it was freed comes back where \
     the recording saw it, and a policy that is short of memory does not wait for it";

impl Needs {
    /// In words.
    #[must_use]
    pub fn words(&self) -> String {
        let does = match self.worst() {
            Some(device) => self.of_device(device),
            None => String::new(),
        };
        format!("with {} instead of settings: {does}{}", self.call(), self.left_out())
    }

    /// The call that runs a program on the policy.
    #[must_use]
    pub fn call(&self) -> String {
        let promise = if needs_serial_work(self.policy) { ", serial=True" } else { "" };
        format!("parkade.enable(policy={:?}{promise})", self.policy)
    }

    /// How it fares on the device on which it fares worst, and what it needs on all.
    fn of_device(&self, device: &OnDevice) -> String {
        let on = if self.devices.len() > 1 { format!("on device {} it ", device.device) } else { String::new() };
        let figures = match &device.figures {
            Ok(figures) => figures,
            Err(why) => return format!("{on}does not serve these requests, however much memory there is: {why}"),
        };
        let fit = figures.at_hand.map_or_else(String::new, |at_hand| device.fit(figures, at_hand, &on));
        let (smallest, peak, driver_us) = (self.smallest_bytes(), self.peak_reserved_bytes(), self.driver_us());
        let in_it = if figures.takes_all { "; it takes a part of all that there is, and in the smallest memory" } else { "," };
        format!(
            "{fit}smallest memory {}{in_it} {} reserved at most, {:.1} ms of driver calls",
            size::show_bytes(smallest.unwrap_or(0)),
            size::show_bytes(peak.unwrap_or(0)),
            driver_us.unwrap_or(0) as f64 / 1000.0
        )
    }

    fn left_out(&self) -> String {
        match self.failed_requests() {
            0 => String::new(),
            1 => "; 1 request that failed in the recording, and that the run did without, is left out".to_owned(),
            count => format!("; {count} requests that failed in the recording, and that the run did without, are left out"),
        }
    }
}

impl OnDevice {
    /// Whether it fits, as a beginning of what it needs. `on` names the device if there are several.
    fn fit(&self, figures: &Figures, at_hand: AtHand, on: &str) -> String {
        let assumed = self.available_bytes.filter(|_| self.is_assumed);
        let assumed = assumed.map_or_else(String::new, |bytes| format!("in the {} that is assumed, ", size::show_bytes(bytes)));
        let cut = if self.lost_reserved_bytes.is_some() { "as far as the file goes, " } else { "" };
        let does = match self.death {
            Some(death) => self.past(death, figures, at_hand),
            None if at_hand.fits => format!("fits{}, ", self.hidden()),
            None if self.is_enough(figures) => "does not fit, although less would be enough, ".to_owned(),
            None => "does not fit, ".to_owned(),
        };
        format!("{assumed}{cut}{on}{does}")
    }

    /// Whether the least memory in which it fits is no more than there is. More is not always better.
    fn is_enough(&self, figures: &Figures) -> bool {
        self.available_bytes.is_some_and(|available| figures.smallest_bytes <= available)
    }

    /// That the run had more before its first entry than there is.
    fn hidden(&self) -> String {
        let hidden =
            self.lost_reserved_bytes.filter(|&reserved| self.available_bytes.is_some_and(|available| reserved > available));
        hidden.map_or_else(String::new, ending::had_before)
    }

    /// Whether it gets past the entry where the run died, and what is known of the rest.
    fn past(&self, death: usize, figures: &Figures, at_hand: AtHand) -> String {
        match at_hand.fails_at_entry {
            Some(entry) if entry == death => return format!("does not get past entry {death}, where the run died; "),
            Some(entry) => return format!("does not get past entry {death}, where the run died: it fails at entry {entry}; "),
            None => {}
        }
        if let (Fit::Fits, Some(steps)) = (self.outcome, self.steps) {
            let steps = output::count(steps, "step");
            return format!("by an estimate from {steps} in which nothing makes it doubtful, fits, ");
        }
        let rest = match (at_hand.fits, self.doubt) {
            (false, _) if self.is_enough(figures) => {
                ", and by the estimate it fails later, although less would be enough".to_owned()
            }
            (false, _) => {
                let need = size::show_bytes(figures.smallest_bytes);
                format!(", and by the estimate it would need {need}, more than there is")
            }
            (true, Some(doubt)) => format!(", and {}", ending::doubt(doubt)),
            (true, None) => String::new(),
        };
        format!("gets past entry {death}, where the run died; the rest is not in the file{rest}; ")
    }
}

/// How the figures of policies compare with those of settings.
#[must_use]
pub fn measure(needs: &[Needs]) -> Option<String> {
    let Needs { expandable_bytes, has_late_frees, .. } = needs.first()?;
    let bytes = expandable_bytes.map(size::show_bytes);
    match (has_late_frees, bytes) {
        (true, Some(bytes)) => Some(format!("{MEASURE}; measured so, expandable_segments:True needs {bytes}")),
        (true, None) => Some(MEASURE.to_owned()),
        (false, Some(bytes)) => Some(format!("measured as the policies are, expandable_segments:True needs {bytes}")),
        (false, None) => None,
    }
}
