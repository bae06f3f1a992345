//! One setting for all ranks, from what was tried on each.

use parkade::profile::Profile;

use super::{RankAdvice, Tried, one_setting, still_to_try};
use crate::advise::Outcome;

const MIB: u64 = 1 << 20;
const EXPANDABLE: &str = "expandable_segments:True";

/// A rank with so much memory, and what settings need on it. The first are its own; the best are those that need least.
fn rank(available_mib: Option<u64>, needs: &[(&str, u64)]) -> RankAdvice {
    let tried = |&(settings, needs_mib): &(&str, u64)| {
        let serves = available_mib.is_none_or(|available| needs_mib <= available);
        Tried {
            settings: settings.to_owned(),
            serves,
            reaches_beyond: false,
            outcome: match available_mib {
                None => Outcome::Unknown,
                Some(_) if serves => Outcome::Fits,
                Some(_) => Outcome::DoesNotFit,
            },
            needs_bytes: needs_mib * MIB,
            enough_bytes: needs_mib * MIB,
            driver_us: 1000,
            keys: settings.matches(':').count(),
            is_expandable: settings.contains(EXPANDABLE),
            needs_limit: false,
            warnings: Vec::new(),
        }
    };
    let tried: Vec<Tried> = needs.iter().map(tried).collect();
    let best = (0..tried.len()).filter(|&place| tried[place].serves).min_by_key(|&place| tried[place].needs_bytes);
    let profile = &Profile::PYTORCH_2_11;
    RankAdvice {
        profile,
        available_bytes: available_mib.map(|mib| mib * MIB),
        reserved_bytes: 0,
        tried,
        is_estimated: false,
        best,
    }
}

#[test]
fn the_setting_with_the_widest_margin_on_its_tightest_rank() {
    let one = rank(Some(1000), &[("", 1200), ("split:1", 700), ("round:1", 980), ("both:1", 850)]);
    let other = rank(Some(1000), &[("", 1200), ("split:1", 990), ("round:1", 700), ("both:1", 860)]);
    let found = one_setting(&[one, other]).expect("advice");
    // Each rank alone wants another one.
    assert_eq!((found.settings.as_str(), found.serves_all, found.tightest), ("both:1", true, 1));
    assert_eq!(found.ranks[1].margin_bytes(), Some(140 * MIB as i64));
    assert!(found.hopeless.is_empty() && !found.is_own && found.assumed_bytes.is_none());
}

#[test]
fn a_rank_with_less_memory_counts_by_what_is_left_to_it() {
    let small = rank(Some(500), &[("a:1", 400), ("b:1", 490)]);
    let large = rank(Some(1000), &[("a:1", 930), ("b:1", 700)]);
    let found = one_setting(&[small, large]).expect("advice");
    assert_eq!((found.settings.as_str(), found.tightest), ("a:1", 1));
}

#[test]
fn where_no_setting_serves_all_it_is_said_who_is_left() {
    let one = || rank(Some(1000), &[("", 1100), ("split:1", 900), ("round:1", 1300)]);
    let other = rank(Some(1000), &[("", 1100), ("split:1", 1200), ("round:1", 900)]);
    let found = one_setting(&[one(), one(), other]).expect("advice");
    assert_eq!((found.settings.as_str(), found.serves_all, found.tightest), ("split:1", false, 2));
    assert_eq!((found.ranks[2].outcome, found.enough.clone()), (Outcome::DoesNotFit, (1100 * MIB, String::new())));
    assert!(found.hopeless.is_empty(), "each fits with some setting");
    let never = rank(Some(1000), &[("", 1500), ("split:1", 1500), ("round:1", 1500)]);
    assert_eq!(one_setting(&[one(), never]).expect("advice").hopeless, [1]);
}

#[test]
fn ranks_without_a_known_memory_are_given_that_of_the_others() {
    let died = rank(Some(1000), &[("", 1100), (EXPANDABLE, 900)]);
    let other = rank(None, &[("", 950), (EXPANDABLE, 940)]);
    let found = one_setting(&[died.clone(), other]).expect("advice");
    assert_eq!((found.settings.as_str(), found.assumed_bytes, found.tightest), (EXPANDABLE, Some(1000 * MIB), 1));
    assert_eq!(found.ranks[1].outcome, Outcome::Fits);
    let larger = rank(None, &[("", 1200), (EXPANDABLE, 1100)]);
    assert!(!one_setting(&[died, larger]).expect("advice").serves_all);
    let unknown = [rank(None, &[("", 800), ("a:1", 600)]), rank(None, &[("", 800), ("a:1", 700)])];
    let found = one_setting(&unknown).expect("advice");
    assert_eq!((found.settings.as_str(), found.tightest, found.assumed_bytes), ("a:1", 1, None));
}

#[test]
fn settings_stay_where_they_are_best_for_every_rank() {
    let at_ease = || RankAdvice { best: Some(0), ..rank(Some(1000), &[("", 600), ("a:1", 500)]) };
    let found = one_setting(&[at_ease(), at_ease()]).expect("advice");
    assert!(found.is_own && found.settings.is_empty());
    let other = rank(Some(1000), &[("", 990), ("a:1", 500)]);
    assert_eq!(one_setting(&[at_ease(), other]).expect("advice").settings, "a:1");
}

#[test]
fn what_is_best_for_one_rank_is_tried_on_the_others() {
    let mut ranks = [rank(Some(1000), &[("", 1100), ("a:7", 900)]), rank(Some(1000), &[("", 1100), ("b:9", 900)])];
    assert_eq!(still_to_try(&ranks), [["b:9"], ["a:7"]]);
    assert!(!one_setting(&ranks).expect("the default was tried on both").serves_all);
    let more = rank(Some(1000), &[("a:7", 950), ("b:9", 930)]).tried;
    ranks.iter_mut().for_each(|rank| {
        rank.tried.extend(more.iter().filter(|one| rank.with(&one.settings).is_none()).cloned().collect::<Vec<_>>())
    });
    let found = one_setting(&ranks).expect("advice");
    assert!(found.serves_all && still_to_try(&ranks).iter().all(Vec::is_empty), "{found:?}");
    assert!(one_setting(&[rank(None, &[("a:1", 1)]), rank(None, &[("b:1", 1)])]).is_none(), "nothing is common");
    assert!(one_setting(&[]).is_none());
}
