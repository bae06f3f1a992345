//! Decides whether a replay fits, and for a run that died judges it as `advise` does.

use anyhow::{Result, anyhow};
use parkade_analysis::advise::{self, Advice, AdviseOptions, DeviceOutcome, MemoryBudget, fit_as_recorded};
use parkade_analysis::continuation::Doubt;
use parkade_analysis::ending::Ending;
use parkade_recording::DeviceRecording;
use parkade_replay::{Outlook, OutlookOptions};

/// The judgement on a replay. The table, the words and the JSON object all show this.
pub(super) struct Judged {
    pub(super) outcome: advise::Outcome,
    /// The outcome of each device alone.
    pub(super) outcomes: Vec<advise::Outcome>,
    /// How each device's recorded run ended.
    pub(super) endings: Vec<Ending>,
    /// Why the rest of a run that died is in doubt.
    pub(super) doubt: Option<Doubt>,
    /// The entry at which each device's replayed run fails.
    fails: Vec<Option<usize>>,
    /// The first device whose recorded run failed under these same settings in no less memory, although the replay serves it; the
    /// recording has lost its beginning.
    pub(super) fails_as_recorded: Option<usize>,
    /// Whether some device fits because the recorded run did, against the result of its replay.
    pub(super) any_as_recorded: bool,
    /// Whether the part before the first entry needed more than the available memory on some device.
    pub(super) hides_more: bool,
}

/// The facts known before the replay: how the runs ended and, for a run that died, what `advise` says about the settings.
pub(super) struct Known {
    endings: Vec<Ending>,
    advice: Option<Advice>,
    /// The limit of each device: the given one or, if a run died and none was given, the one that `advise` assumes.
    pub(super) limits: Vec<Option<u64>>,
    /// Whether any limit was assumed.
    pub(super) is_assumed: bool,
}

impl Known {
    pub(super) fn of(traced: &[&DeviceRecording], options: &OutlookOptions) -> Result<Known> {
        let endings: Vec<Ending> = traced.iter().map(|device| Ending::of(device)).collect();
        let given = MemoryBudget { capacity_bytes: options.capacity_bytes, limit_bytes: options.limit_bytes };
        if endings.iter().all(|ending| ending.death().is_none()) {
            return Ok(Known { limits: vec![given.limit_bytes; endings.len()], endings, advice: None, is_assumed: false });
        }
        let (own, profile) = (options.own.clone(), options.profile);
        let asked = AdviseOptions {
            own,
            profile,
            memory: given,
            given: vec![options.settings.clone()],
            only_given: true,
            devices_seen: traced.len(),
        };
        let advice = advise::advise(traced, &asked, &|_| ()).map_err(|(device, error)| match traced.len() {
            1 => error.into(),
            _ => anyhow!("device {device}: {error}"),
        })?;
        let is_given = given != MemoryBudget::default();
        let limits = if is_given { vec![given.limit_bytes; endings.len()] } else { assumed_limits(&advice) };
        let is_assumed = !is_given && limits.iter().any(Option::is_some);
        Ok(Known { endings, advice: Some(advice), limits, is_assumed })
    }

    /// Judges the replay of each device. If the recorded run fitted, its own outcome replaces the replay's.
    pub(super) fn judge(self, traced: &[&DeviceRecording], outlooks: &mut [Outlook], options: &OutlookOptions) -> Judged {
        let capacity_bytes = options.capacity_bytes;
        let bytes =
            |&limit_bytes: &Option<u64>| MemoryBudget { capacity_bytes, limit_bytes }.bytes(options.profile, &options.settings);
        let available: Option<Vec<u64>> = self.limits.iter().map(bytes).collect();
        let mut any_as_recorded = false;
        for ((outlook, recording), &bytes) in outlooks.iter_mut().zip(traced).zip(available.iter().flatten()) {
            let asked = (options.profile, &options.settings);
            any_as_recorded |= fit_as_recorded(&mut outlook.prediction, recording, &options.own, asked, bytes);
        }
        match (self.advice, available) {
            (Some(advice), Some(_)) => died(&advice, self.endings, outlooks),
            (_, available) => Judged { any_as_recorded, ..complete(self.endings, outlooks, available.as_deref()) },
        }
    }
}

/// The limit of each device that `advise` assumes.
fn assumed_limits(advice: &Advice) -> Vec<Option<u64>> {
    advice.memories.iter().map(|memory| memory.budget.limit_bytes).collect()
}

fn complete(endings: Vec<Ending>, outlooks: &[Outlook], available: Option<&[u64]>) -> Judged {
    let lost = |device: &Outlook| device.requests.lost_beginning.map_or(0, |lost| lost.reserved_bytes);
    let hides_more = outlooks.iter().zip(available.unwrap_or_default()).any(|(device, available)| lost(device) > *available);
    let outcome = |all_fit: bool| match available {
        None => advise::Outcome::Unknown,
        Some(_) if !all_fit => advise::Outcome::DoesNotFit,
        Some(_) if hides_more => advise::Outcome::Unknown,
        Some(_) => advise::Outcome::Fits,
    };
    let fails = outlooks.iter().map(|device| device.prediction.first_failure).collect();
    let outcomes = outlooks.iter().map(|device| outcome(device.fits())).collect();
    let outcome = outcome(outlooks.iter().all(Outlook::fits));
    Judged { outcome, outcomes, endings, doubt: None, fails, fails_as_recorded: None, any_as_recorded: false, hides_more }
}

fn died(advice: &Advice, endings: Vec<Ending>, outlooks: &[Outlook]) -> Judged {
    let place = advice.options.iter().position(|option| option.is_given).unwrap_or(0);
    let option = &advice.options[place];
    let doubt = advice.doubts_with(place).first().map(|&(_, doubt)| doubt).filter(|_| option.fits());
    let fails: Vec<Option<usize>> = option.devices.iter().map(DeviceOutcome::fails_at_entry).collect();
    let is_served = |(fails, outlook): (&Option<usize>, &Outlook)| fails.is_some() && outlook.fits();
    let fails_as_recorded = fails.iter().zip(outlooks).position(is_served);
    let (outcome, hides_more) = (advice.outcome_with(place), advice.hides_more);
    let of_device = |device: &DeviceOutcome| advice.outcome_on_device(place, device.device).unwrap_or(outcome);
    let outcomes = option.devices.iter().map(of_device).collect();
    Judged { outcome, outcomes, endings, doubt, fails, fails_as_recorded, any_as_recorded: false, hides_more }
}

impl Judged {
    /// The entry at which a device (an index among those replayed) runs out of memory.
    pub(super) fn fails_at(&self, place: usize) -> Option<usize> {
        self.fails.get(place).copied().flatten()
    }

    /// The first device that runs out of memory, and the entry.
    pub(super) fn first_failure(&self) -> Option<(usize, usize)> {
        self.fails.iter().enumerate().find_map(|(place, entry)| Some((place, (*entry)?)))
    }

    /// Whether some device's recorded run died.
    pub(super) fn any_died(&self) -> bool {
        self.endings.iter().any(|ending| ending.death().is_some())
    }

    /// Whether every request of a device is served and, if its run died, so is the estimated rest, without doubt.
    pub(super) fn fits(&self, place: usize) -> bool {
        let died = self.endings.get(place).is_some_and(|ending| ending.death().is_some());
        self.fails_at(place).is_none() && (!died || self.outcomes.get(place) == Some(&advise::Outcome::Fits))
    }

    /// The number of requests of a device that fail. Requests of a dying run after its error do not count, because a surviving run
    /// would not have made them.
    pub(super) fn ooms(&self, place: usize, outlook: &Outlook) -> i64 {
        let died = self.endings.get(place).is_some_and(|ending| ending.death().is_some());
        match self.fails_at(place) {
            Some(_) => outlook.prediction.stats.num_ooms.max(1),
            None if died => 0,
            None => outlook.prediction.stats.num_ooms,
        }
    }
}
