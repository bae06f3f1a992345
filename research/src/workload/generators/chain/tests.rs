use super::*;

fn chain(layers: u64, checkpoint_bytes: u64, inner_bytes: u64, keeping: Keeping) -> Chain {
    Chain { layers, checkpoint_bytes, inner_bytes, fixed_bytes: 0, keeping }
}

fn load(chain: &Chain) -> u64 {
    let workload = chain.workload().unwrap();
    assert_eq!(workload.check(), Ok(()));
    workload.load_bytes(1)
}

/// E2 and E3, written out as the notes have them.
#[test]
fn the_peak_is_the_closed_form() {
    for (n, x, y) in (1..=24).flat_map(|n| [(n, 1, 1), (n, 10, 3), (n, 3, 100), (n, 7, 0), (n, 1000, 1001)]) {
        assert_eq!(load(&chain(n, x, y, Keeping::All)), (x + y) * n);
        assert_eq!(load(&chain(n, x, y, Keeping::Groups(1))), x * n + y);
        assert_eq!(load(&chain(n, x, y, Keeping::Nothing)), if y == 0 { x } else { x + y });
        for m in (1..=n).filter(|m| n % m == 0) {
            assert_eq!(load(&chain(n, x, y, Keeping::Groups(m))), x * (n / m) + x * (m - 1) + y * m, "{n} {m} {x} {y}");
        }
        for pieces in (1..=y).filter(|pieces| y % pieces == 0) {
            assert_eq!(load(&chain(n, x, y, Keeping::Pieces(pieces))), x * n + y / pieces, "{n} {x} {y} {pieces}");
        }
    }
}

#[test]
fn the_peak_is_the_formula_where_groups_and_pieces_do_not_divide() {
    for n in 1..=24 {
        for (x, y) in [(1, 1), (10, 3), (3, 100), (7, 7)] {
            for keeping in (1..=n).map(Keeping::Groups).chain((1..=y).map(Keeping::Pieces)) {
                let chain = Chain { fixed_bytes: 5, ..chain(n, x, y, keeping) };
                assert_eq!(load(&chain), chain.peak_bytes(), "{chain:?}");
            }
        }
    }
}

#[test]
fn a_transformers_activations_are_as_the_formula_says() {
    let (layers, batch, sequence, hidden) = (24_u64, 8, 2048, 1024);
    let x = batch * sequence * hidden * 4;
    let whole = chain(layers, x, 0, Keeping::All);
    assert_eq!(load(&whole), layers * x);
    assert_eq!(layers * x, 1_610_612_736);
    let formula = (layers as f64).sqrt() * x as f64;
    assert_eq!((formula / 1e3).round(), 328_765.0);
    let groups = chain(layers, x, 0, Chain::sqrt(layers));
    assert_eq!(groups.keeping, Keeping::Groups(5));
    // The forward pass leaves five checkpoints.
    let left = groups.workload().unwrap().curve().into_iter().take_while(|&live| live < 6 * x).max();
    assert_eq!(left, Some(5 * x));
    assert!((5.0 * x as f64 / formula - 1.0) < 0.021);
    assert_eq!(load(&groups), 8 * x);
    assert_eq!(8 * x, 536_870_912);
}

/// The fits of the module's table, in units of 10 kB (for MB) and 10 MB (for GB).
#[test]
fn the_toy_numbers_come_out() {
    let peak = |chain: Chain, keeping| load(&Chain { keeping, ..chain }) as f64;
    let near = |found: f64, measured: f64| assert!((found / measured - 1.0).abs() < 0.001, "{found} {measured}");
    let toy = Chain { layers: 5, checkpoint_bytes: 12_500, inner_bytes: 6_300, fixed_bytes: 7, keeping: Keeping::All };
    near(peak(toy, Keeping::All), 94_007.0);
    near(peak(toy, Keeping::Groups(1)), 68_808.0);
    near(peak(toy, Keeping::All) / peak(toy, Keeping::Groups(1)), 940.07 / 688.08);
    let nano = Chain { layers: 5, checkpoint_bytes: 14_420, inner_bytes: 15_900, fixed_bytes: 14, keeping: Keeping::All };
    near(peak(nano, Keeping::All), 151_614.0);
    near(peak(nano, Keeping::Groups(1)), 88_014.0);
    near(peak(nano, Keeping::Pieces(6)), 74_814.0);
    near(peak(nano, Keeping::All) / peak(nano, Keeping::Groups(1)), 1516.14 / 880.14);
    near(peak(nano, Keeping::Groups(1)) / peak(nano, Keeping::Pieces(6)), 880.14 / 748.14);
    let usage = Chain { layers: 4, checkpoint_bytes: 13_767, inner_bytes: 25_300, fixed_bytes: 2_033, keeping: Keeping::All };
    near(peak(usage, Keeping::Nothing), 41_100.0);
    near(peak(usage, Keeping::All), 158_300.0);
    near(peak(usage, Keeping::Groups(1)), 82_400.0);
    near(peak(usage, Keeping::All) / peak(usage, Keeping::Groups(1)), 15.83 / 8.24);
}

#[test]
fn recomputation_costs_a_third() {
    for keeping in [Keeping::Groups(1), Keeping::Groups(4), Keeping::Groups(5), Keeping::Pieces(3)] {
        let work = chain(12, 10, 30, keeping).work().unwrap();
        assert_eq!(work, Work { forward: 12, backward: 24, recomputed: 12 });
        assert!((work.overhead() - 1.0 / 3.0).abs() < 1e-12);
    }
    assert_eq!(chain(12, 10, 30, Keeping::All).work().unwrap().recomputed, 0);
}

#[test]
fn the_curves_are_those_of_the_notes() {
    let drawn = |chain: Chain, rows| chain.workload().unwrap().drawn(100, rows);
    let all = drawn(chain(5, 10, 0, Keeping::All), 5);
    assert_eq!(
        all,
        ["    #", "   ###", "  #####", " #######", "#########", ""].join("\n"),
        "forward up up up, backward down down down"
    );
    let forward_only = drawn(chain(5, 10, 10, Keeping::Nothing), 2);
    assert_eq!(forward_only, [" # # # # # # # # # #", "#####################", ""].join("\n"), "up and down");
    let recomputing = [
        "          # #",
        "       #  # #  #",
        "    #  # ##### #  #",
        " #  # ########### #  #",
        " # ################# #",
        "#######################",
        "",
    ];
    let groups = drawn(chain(4, 10, 20, Keeping::Groups(1)), 6);
    assert_eq!(groups, recomputing.join("\n"), "up (up down) up (up down), then down (up down) down");
}

#[test]
fn bad_options_are_errors() {
    let refused = |chain: Chain| chain.workload().unwrap_err().to_string();
    assert_eq!(refused(chain(0, 1, 1, Keeping::All)), "layers is 0; allowed: 1 to 1048576");
    assert_eq!(refused(chain(3, 1, 1, Keeping::Groups(4))), "keeping is 4; allowed: 1 to 3");
    assert_eq!(refused(chain(3, 1, 1, Keeping::Groups(0))), "keeping is 0; allowed: 1 to 3");
    assert_eq!(refused(chain(3, 1, 9, Keeping::Pieces(10))), "keeping is 10; allowed: 1 to 9");
    assert!(refused(chain(3, u64::MAX, 1, Keeping::All)).starts_with("checkpoint_bytes is"));
    assert!(refused(chain(3, MAX_BYTES, 1, Keeping::All)).starts_with("the activations would take more than"));
    assert_eq!(Chain::default().peak_bytes(), 0);
    assert_eq!(chain(u64::MAX, u64::MAX, 1, Keeping::All).peak_bytes(), u64::MAX);
}
