//! With how many other timings of its streams a replayed program fits.

use parkade_recording::DeviceRecording;

use crate::predict::{AfterFailure, Outlook, OutlookOptions, PredictOptions, TIMINGS, device_like, learned_addresses, predict};

/// How many of [`TIMINGS`] serve every request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimingsThatFit {
    /// So many do.
    pub fit: usize,
    /// Of so many.
    pub of: usize,
}

/// Replays a device's program in the same memory with each of [`TIMINGS`]. `None` if no free waits for another stream, or if there is no
/// memory in which it may not fit. `options` are those of the outlook.
#[must_use]
pub fn timings_that_fit(recording: &DeviceRecording, outlook: &Outlook, options: &OutlookOptions) -> Option<TimingsThatFit> {
    let range = outlook.timing?;
    options.limit_bytes.or(options.capacity_bytes)?;
    let learned = learned_addresses(recording, &outlook.requests);
    let fits = |timing| {
        let device = device_like(recording.device, &learned, options.capacity_bytes);
        let options = PredictOptions {
            profile: options.profile,
            settings: options.settings.clone(),
            limit_bytes: options.limit_bytes,
            after_failure: AfterFailure::Stop,
            timing,
        };
        predict(&outlook.requests, device, &options).first_failure.is_none()
    };
    // The outlook has the two extremes.
    let extremes = [range.earliest, range.latest].iter().filter(|extreme| extreme.fits).count();
    let between = TIMINGS[1..TIMINGS.len() - 1].iter().filter(|&&timing| fits(timing)).count();
    Some(TimingsThatFit { fit: extremes + between, of: TIMINGS.len() })
}
