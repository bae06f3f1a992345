#![allow(warnings)]
use parkade::profile::Profile;
use parkade_analysis::advise::*;
use parkade_replay::export::*;
use parkade_replay::*;
use std::time::Instant;
fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let factors: Vec<f64> = args[0].split(',').map(|x| x.parse().unwrap()).collect();
    for f in &args[1..] {
        let name = f.rsplit('/').next().unwrap().replace(".pickle.xz", "");
        let Ok(rec) = parkade_recording::read(&std::fs::read(f).unwrap()) else { continue };
        let settings =
            || ReplaySettings::of_recording(rec.settings.as_ref()).unwrap_or_else(|_| ReplaySettings::given("").unwrap());
        let own = VerifyOptions { settings: settings(), limit_bytes: None, stats_file: None };
        let Some(d) = rec.devices.iter().find(|d| !d.trace.is_empty()) else { continue };
        let rq = Requests::of_recording(d, &own, &mut |_| ()).unwrap();
        let learned = learned_addresses(d, &rq);
        let mut live = 0u64;
        let mut peak = 0u64;
        let mut sz = vec![];
        for &(_, o) in &rq.operations {
            match o {
                Operation::Allocate { bytes, failed, .. } => {
                    let b = if failed { 0 } else { (bytes + 511) / 512 * 512 };
                    sz.push(b);
                    live += b;
                    peak = peak.max(live)
                }
                Operation::Free { id, .. } => live -= sz[id],
                _ => {}
            }
        }
        for &fac in &factors {
            let limit = (peak as f64 * fac) as u64;
            let base = ExportOptions {
                own: own.clone(),
                profile: &Profile::PYTORCH_2_11,
                settings: own.settings.settings.clone(),
                limit_bytes: Some(limit),
                capacity_bytes: None,
                after_failure: AfterFailure::Stop,
                device: Some(d.device),
            };
            let cut = export(&rec, &base, &mut |_| ()).unwrap().recording;
            let cd = cut.devices.iter().find(|x| x.device == d.device).unwrap();
            if !cd.trace.iter().any(|e| e.action == parkade_recording::Action::Oom) {
                println!("{name} x{fac} FITS-AS-IS");
                continue;
            }
            let t = Instant::now();
            let opt = AdviseOptions {
                own: VerifyOptions { settings: settings(), limit_bytes: Some(limit), stats_file: None },
                profile: &Profile::PYTORCH_2_11,
                memory: MemoryBudget { capacity_bytes: None, limit_bytes: Some(limit) },
                given: vec![],
                only_given: false,
            };
            let a = match advise(&[cd], &opt, &|_| ()) {
                Ok(a) => a,
                Err(e) => {
                    println!("{name} x{fac} error {e:?}");
                    continue;
                }
            };
            let secs = t.elapsed().as_secs_f64();
            let truth = |s: &parkade::settings::Settings| {
                let p = predict(
                    &rq,
                    device_like(d.device, &learned, None),
                    &PredictOptions {
                        profile: &Profile::PYTORCH_2_11,
                        settings: s.clone(),
                        limit_bytes: Some(limit),
                        after_failure: AfterFailure::Stop,
                        timing: Timing::Recorded,
                    },
                );
                p.first_failure
            };
            let best =
                a.options.iter().filter(|o| truth(&o.settings).is_none()).map(|o| o.settings.text.clone()).collect::<Vec<_>>();
            let r = a.recommended();
            let c = a.programs[0].continuation.as_ref();
            let fits = r.is_some_and(|r| r.fits());
            let tf = r.map(|r| truth(&r.settings));
            println!(
                "{name} x{fac} n {} steady {} more {} | rec {} est_fits {} past {} need {:.4} | truth_ok {} any_ok {} outcome {} doubt {:?} | peaks/limit {:?} F {:.3} | entries {} {:.1}s",
                c.map_or(0, |c| c.steps),
                c.is_some_and(|c| c.is_steady),
                c.map_or(0, |c| c.more_steps),
                r.map_or("-", |r| if r.settings.text.is_empty() { "default" } else { &r.settings.text }),
                fits,
                r.is_some_and(|r| r.gets_past()),
                r.map_or(0.0, |r| r.smallest_capacity_bytes() as f64 / limit as f64),
                tf.is_some_and(|t| t.is_none()),
                best.len(),
                a.outcome.name(),
                a.doubts,
                c.map_or(vec![], |c| c
                    .step_peaks
                    .iter()
                    .map(|&p| (p as f64 / limit as f64 * 1000.0).round() / 1000.0)
                    .collect::<Vec<_>>()),
                c.map_or(0.0, |c| c.failed_step_peak as f64 / limit as f64),
                cd.trace.len(),
                secs
            );
        }
    }
}
