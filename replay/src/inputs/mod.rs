//! What a replay has to know beside the trace: the settings, the limit, the release of PyTorch, the statistics at the end.

mod options;
mod release;
mod replay_settings;
mod stats_file;

pub use options::VerifyOptions;
pub use release::{ReleaseEvidence, newer_release};
pub use replay_settings::{ReplaySettings, SettingsOrigin};
pub use stats_file::{StatsFile, StatsFileError};
