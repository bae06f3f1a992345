//! Operations that only read: snapshots, stats, free memory, the driver's totals.

use parkade::device::DeviceBackend;
use parkade::trace::TraceRing;
use parkade::units::{Bytes, PoolId, StreamId};

use super::failure::Failure;
use super::line::Line;
use super::render;
use super::session::{Answer, Session, pool_of};

impl Session {
    pub(super) fn query(&mut self, line: &Line<'_>) -> Answer {
        Ok(match line.name() {
            "snapshot" | "trace" => self.snapshot(line)?,
            "history" => {
                let capacity = if line.len() > 2 { usize::try_from(line.number(2)?).unwrap_or(usize::MAX) } else { 1_000_000 };
                self.allocator.observer_mut().history = (line.word(1)? == "on").then(|| TraceRing::new(capacity));
                String::new()
            }
            "stats" => format!(",\"stats\":{}", self.printed.all(self.allocator.stats(), self.profile)),
            "cache_info" => {
                let free = self.allocator.device_mut().memory_info().map_err(Failure::c10)?.free;
                format!(",\"largest\":{}", free.max(self.allocator.heap().largest_free()))
            }
            "meminfo" => {
                let info = self.allocator.device_mut().memory_info().map_err(Failure::c10)?;
                format!(",\"free\":{},\"total\":{}", info.free, info.total)
            }
            "expandable_sizes" => {
                // PyTorch leaves out the default stream.
                let segments =
                    self.allocator.expandable_segments().into_iter().filter(|(stream, _, _)| *stream != StreamId::DEFAULT);
                let sizes: Vec<String> = segments
                    .map(|(stream, page, mapped)| {
                        let class = if page == Bytes::mib(2) { "small" } else { "large" };
                        format!("[{},\"{class}\",{mapped}]", render::stream_number(stream))
                    })
                    .collect();
                format!(",\"sizes\":[{}]", sizes.join(","))
            }
            "driver" => {
                let device = self.allocator.device();
                format!(
                    ",\"used\":{},\"peak\":{},\"events\":{}",
                    device.used_bytes(),
                    device.peak_used_bytes(),
                    device.live_events()
                )
            }
            _ => ",\"name\":\"native\"".to_owned(),
        })
    }

    fn snapshot(&mut self, line: &Line<'_>) -> Answer {
        let with_traces = line.name() == "trace";
        let pool = if with_traces { PoolId::DEFAULT } else { pool_of(line)? };
        let history = self.allocator.observer().history.as_ref();
        let traces = with_traces.then(|| history.map_or(Vec::new(), |ring| ring.entries().copied().collect()));
        let segments = match pool {
            PoolId::DEFAULT => self.allocator.snapshot(),
            pool => self.allocator.snapshot_pool(pool),
        };
        let settings = &self.allocator.policy().settings;
        Ok(format!(",\"snapshot\":{}", render::snapshot(self.allocator.device(), &segments, settings, traces, self.profile)))
    }
}
