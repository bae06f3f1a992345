//! PyTorch's policy, which is part of the core, by name: its releases and settings as parameters.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};

use parkade::policy::PyTorch;
use parkade::profile::Profile;
use parkade::settings::Settings;

use crate::entry::{Entry, Named};
use crate::parameter::{Parameter, Values};

/// The release with these rules.
pub(crate) const RELEASE: Parameter =
    Parameter::text("release", "the release with these rules: 2.15, 2.11.0", "2.11", "a release of PyTorch from 2.1 on");

pub(crate) const ENTRY: Entry =
    Entry::new("pytorch", "PyTorch 2.11's default settings", "c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.11", |values| {
        // The values have been checked.
        let (profile, settings) = rules(values).unwrap_or((&Profile::PYTORCH_2_11, Settings::default()));
        Box::new(PyTorch::of(profile, settings))
    })
    .with_parameters(&[
        RELEASE,
        Parameter::text(
            "settings",
            "PYTORCH_CUDA_ALLOC_CONF in brackets: [expandable_segments:True]",
            "",
            "PyTorch's settings in brackets",
        ),
    ])
    .not_looking_after_waiting()
    .checked_by(|values| {
        release_in_one_form(values)?;
        let settings = settings_in_one_form(values)?;
        values.set("settings", settings);
        Ok(())
    });

pub(crate) const EXPANDABLE: Named = Named::listed(
    &ENTRY,
    "pytorch-expandable",
    "PyTorch 2.11 with expandable_segments:True",
    "c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.11",
    &[("settings", Cow::Borrowed(EXPANDABLE_ONLY))],
);
pub(crate) const OF_2_15: Named = Named::listed(
    &ENTRY,
    "pytorch:release=2.15",
    "PyTorch 2.15's default settings",
    "c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.15",
    &[("release", Cow::Borrowed("2.15"))],
);
pub(crate) const EXPANDABLE_OF_2_15: Named = Named::listed(
    &ENTRY,
    "pytorch:release=2.15;settings=[expandable_segments:True]",
    "PyTorch 2.15 with expandable_segments:True",
    "c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.15",
    &[("release", Cow::Borrowed("2.15")), ("settings", Cow::Borrowed(EXPANDABLE_ONLY))],
);

/// The settings of expandable segments, in the form that names use.
pub(crate) const EXPANDABLE_ONLY: &str = "expandable_segments:True";

/// The rules of the release, and the settings as its parser reads them.
pub(crate) fn rules(values: &Values) -> Result<(&'static Profile, Settings), String> {
    let profile = Profile::of(values.text("release")).map_err(|error| error.to_string())?;
    let settings = Settings::from_environment_as(&profile.dialect, values.text("settings"))
        .map_err(|error| format!("PyTorch refuses these settings: {error}"))?;
    Ok((profile, settings))
}

/// Writes the release without its build suffix, shortened to a series if the entire series has the same rules.
pub(crate) fn release_in_one_form(values: &mut Values) -> Result<(), String> {
    let release = values.text("release");
    let profile = Profile::of(release).map_err(|error| error.to_string())?;
    let public = release.split_once('+').map_or(release, |(public, _)| public);
    let series = public.rsplit_once('.').map_or(public, |(series, _)| series);
    let is_same = Profile::of(series).is_ok_and(|of_series| of_series == profile);
    let short = if is_same { series } else { public }.to_string();
    values.set("release", Some(short));
    Ok(())
}

/// The settings if they change the policy; `None` if they equal PyTorch's defaults.
pub(crate) fn settings_in_one_form(values: &Values) -> Result<Option<String>, String> {
    let (_, settings) = rules(values)?;
    if settings.per_process_memory_fraction < 1.0 {
        let wrong = "per_process_memory_fraction is a limit, not a rule of the policy; leave it out and give the command a limit";
        return Err(wrong.to_string());
    }
    if settings.backend != Settings::default().backend {
        return Err(format!("backend:{} is a different allocator; cuda-async is a model of it", settings.backend.name()));
    }
    let rules = Settings { text: String::new(), ..settings };
    Ok(match values.text("settings") {
        _ if rules == Settings::default() => None,
        _ if rules == expandable() => Some(EXPANDABLE_ONLY.to_string()),
        text => Some(text.to_string()),
    })
}

fn expandable() -> Settings {
    Settings { expandable_segments: true, ..Settings::default() }
}
