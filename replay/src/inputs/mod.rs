//! What a replay must know in addition to the trace: settings, memory limit, release
//! of PyTorch, and the stats at the end.

mod options;
mod replay_settings;
mod stats_file;

pub use options::VerifyOptions;
pub use replay_settings::{ReplaySettings, SettingsOrigin};
pub(crate) use stats_file::SINCE_2_12;
pub use stats_file::{StatsFile, StatsFileError};
