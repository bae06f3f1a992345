//! How a program that runs PyTorch can use a policy today: by a setting, through `parkade.enable`, or not.

use parkade_policies::base;

use crate::commands::beside::{enable_call, is_in_catalogue};
use crate::commands::enable::shell_line;

/// How PyTorch can use a policy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Usable {
    /// It is what PyTorch does without settings.
    Default,
    /// With PyTorch's own settings.
    Setting(String),
    /// With a different release of PyTorch.
    Release,
    /// Through `parkade.enable`.
    Enable(String),
    /// It exists only in the simulator.
    Simulator,
}

parkade_recording::names! {
    Usable {
        Usable::Default => "default",
        Usable::Setting(_) => "setting",
        Usable::Release => "release",
        Usable::Enable(_) => "enable",
        Usable::Simulator => "simulator",
    }
}

/// Explains the words in the table.
pub(super) const LEGEND: &str = "in PyTorch: default and setting need only PyTorch; release needs the release that the name states; enable \
                                 needs parkade.enable (PyTorch 2.8 to 2.15); no means that the policy exists only in the simulator";

impl Usable {
    /// How PyTorch can use the policy of this name.
    pub(super) fn of(policy: &str) -> Usable {
        let parameter = |key: &str| {
            let (_, text) = policy.split_once(':')?;
            let (_, value) = text.split_once(&format!("{key}="))?;
            Some(value)
        };
        let settings = || parameter("settings").and_then(|value| value.strip_prefix('[')?.strip_suffix(']'));
        match base(policy) {
            "pytorch" if parameter("release").is_some() => Usable::Release,
            "pytorch" => settings().map_or(Usable::Default, |settings| Usable::Setting(shell_line(settings))),
            "pytorch-expandable" => Usable::Setting(shell_line("expandable_segments:True")),
            // Its plan comes from the program's first step, which the study knows and PyTorch does not.
            "stalloc" => Usable::Simulator,
            // The Python package has only the catalogue's policies.
            _ if !is_in_catalogue(policy) => Usable::Simulator,
            _ => Usable::Enable(enable_call(policy)),
        }
    }

    /// The word in the table.
    pub(super) fn word(&self) -> &'static str {
        if *self == Usable::Simulator { "no" } else { self.name() }
    }

    /// The line to paste.
    pub(super) fn line(&self) -> Option<&str> {
        match self {
            Usable::Setting(line) | Usable::Enable(line) => Some(line),
            Usable::Default | Usable::Release | Usable::Simulator => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use parkade_policies::{BESIDE, CATALOGUE};

    use super::*;

    #[test]
    fn each_policy_has_its_line() {
        let line = |policy: &str| Usable::of(policy).line().map(str::to_owned);
        let export = |value: &str| Some(format!("export PYTORCH_CUDA_ALLOC_CONF={value}"));
        assert_eq!(line("pytorch-expandable"), export("expandable_segments:True"));
        let settings = "roundup_power2_divisions:[256:1,>:4],max_split_size_mb:20";
        assert_eq!(line(&format!("pytorch:settings=[{settings}]")), export(&format!("'{settings}'")));
        assert_eq!(line("best-fit-remap:fit=first").as_deref(), Some("parkade.enable(policy=\"best-fit-remap:fit=first\")"));
        assert_eq!(line("compaction").as_deref(), Some("parkade.enable(policy=\"compaction\", serial=True)"));
        assert_eq!(Usable::of("pytorch:release=2.15;settings=[expandable_segments:True]"), Usable::Release);
        for policy in CATALOGUE.iter().chain(BESIDE) {
            let usable = Usable::of(&policy.name);
            assert_eq!(usable == Usable::Simulator, policy.name == "stalloc", "{}", policy.name);
            assert_eq!(usable.line().is_some(), matches!(usable, Usable::Setting(_) | Usable::Enable(_)), "{}", policy.name);
        }
    }
}
