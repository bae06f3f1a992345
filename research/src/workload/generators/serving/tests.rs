use super::*;
use crate::workload::Event;
use crate::workload::generators::Lengths;

fn small(growth: Growth) -> Serving {
    Serving {
        weight_bytes: 1 << 20,
        layers: 2,
        hidden: 64,
        key_width: 64,
        vocabulary: 100,
        growth,
        requests: 40,
        ..Serving::default()
    }
}

#[test]
fn programs_are_well_formed_and_caches_all_go_back() {
    for growth in [Growth::Blocks(16), Growth::Reallocate(1), Growth::Reallocate(64), Growth::Double] {
        let workload = small(growth).workload().unwrap();
        assert_eq!(workload.check(), Ok(()));
        assert_eq!(workload.curve().last(), Some(&(1 << 20)), "{growth:?}: only the weights are left");
        assert_eq!(small(growth).workload().unwrap(), workload);
    }
}

#[test]
fn a_cache_grows_as_it_is_told() {
    let one = |growth| {
        let (prompts, answers) = (Lengths::Fixed(5), Lengths::Fixed(6));
        let serving = Serving { requests: 1, tensors: 1, prompts, answers, ..small(growth) };
        let workload = serving.workload().unwrap();
        // A token has 2 x 2 x 64 x 2 bytes; activations of one and of five tokens have 128 to 2,560.
        let tokens = |event: &Event| match *event {
            Event::Allocate { bytes, .. } if bytes >= 4 * 512 && bytes != 2560 && bytes < 1 << 17 => Some(bytes / 512),
            _ => None,
        };
        workload.events.iter().filter_map(tokens).collect::<Vec<_>>()
    };
    assert_eq!(one(Growth::Blocks(4)), [4, 4, 4]);
    assert_eq!(one(Growth::Reallocate(4)), [8, 12]);
    assert_eq!(one(Growth::Double), [10, 20]);
    assert_eq!(one(Growth::Reallocate(1)), [6, 7, 8, 9, 10, 11]);
}

#[test]
fn more_requests_at_once_need_more() {
    let load = |slots| Serving { slots, rate: 1e6, ..small(Growth::Blocks(16)) }.workload().unwrap().load_bytes(1);
    assert!(load(1) < load(4) && load(4) < load(16));
}

#[test]
fn bad_options_are_errors() {
    let refused = |serving: Serving| serving.workload().unwrap_err().to_string();
    let plain = small(Growth::Blocks(16));
    assert!(refused(Serving { rate: 0.0, ..plain.clone() }).starts_with("rate is"));
    assert!(refused(Serving { slots: 0, ..plain.clone() }).starts_with("slots is 0"));
    assert!(refused(small(Growth::Blocks(0))).starts_with("growth is 0"));
    assert!(refused(Serving { longest: 1 << 60, ..plain.clone() }).starts_with("prompts is"));
    assert!(refused(Serving { tensors: 5, ..plain }).starts_with("tensors is 5; allowed: 1 to 4"));
}
