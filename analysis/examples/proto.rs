#![allow(warnings)]
use parkade_replay::*;
fn main() {
    for f in std::env::args().skip(1) {
        let name = f.rsplit('/').next().unwrap().to_owned();
        let rec = parkade_recording::read(&std::fs::read(&f).unwrap()).unwrap();
        let d = rec.devices.iter().find(|d| !d.trace.is_empty()).unwrap();
        let own = VerifyOptions {
            settings: ReplaySettings::of_recording(rec.settings.as_ref()).unwrap_or_else(|_| ReplaySettings::given("").unwrap()),
            limit_bytes: None,
            stats_file: None,
        };
        let rq = Requests::of_recording(d, &own, &mut |_| ()).unwrap();
        let n = rq.operations.len();
        for k in [0.3, 0.45, 0.6, 0.75, 0.9] {
            let m = (n as f64 * k) as usize;
            let m = (m..n).find(|&i| matches!(rq.operations[i].1,Operation::Allocate{bytes,..} if bytes>1<<20)).unwrap_or(n - 1);
            println!("{name} {m}: {:?}", parkade_analysis::continuation::probe(&rq, d, m));
        }
    }
}
