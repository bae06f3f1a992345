//! The largest batch against the documents' scenarios E5 and E6, and the threshold against runs on both sides of it.

use parkade_policies::{CATALOGUE, named};

use super::*;
use crate::bounds::BLOCK_BYTES;
use crate::study::{RunOptions, run};
use crate::workload::generators::Optimizer;
use crate::workload::generators::transformer::{Checkpointing, Precision, Transformer};

const GB: u64 = 1_000_000_000;

fn grid(model: &str) -> Grid {
    let transformer = Transformer::preset(model).unwrap();
    Grid {
        trainings: vec![Training { name: model.to_owned(), transformer, steps: 2 }],
        devices_bytes: vec![8 * GB],
        context_bytes: CONTEXT_BYTES,
        policies: vec![named("pytorch-expandable").unwrap()],
        most_batch: 256,
    }
}

/// The only training, with another option.
fn with(mut grid: Grid, change: impl FnOnce(&mut Transformer)) -> Grid {
    change(&mut grid.trainings[0].transformer);
    grid
}

fn walk(grid: &Grid) -> Vec<Point> {
    grid.walk(&|| ()).unwrap()
}

#[test]
fn the_batch_found_fits_and_one_more_does_not() {
    let grid = Grid { policies: CATALOGUE.iter().collect(), ..grid("gpt2") };
    for point in walk(&grid) {
        assert_eq!((point.case.device_bytes, point.case.usable_bytes), (8 * GB, 8 * GB - CONTEXT_BYTES));
        assert!(point.batch >= 1 && point.batch <= point.bound.batch && point.bound.batch < grid.most_batch, "{point:?}");
        let load = |batch| point.case.training.with_batch(batch).workload(2).unwrap().load_bytes(BLOCK_BYTES);
        assert_eq!((point.load_bytes, point.bound.load_bytes), (load(point.batch), load(point.bound.batch)));
        assert!(load(point.bound.batch + 1) > point.case.usable_bytes);
        let run = |batch| {
            let workload = point.case.training.with_batch(batch).workload(2).unwrap();
            run(&workload, (named(point.policy).unwrap().make)(), &RunOptions::new(point.case.usable_bytes))
        };
        assert_eq!(run(point.batch).peak_reserved_bytes, point.reserved_bytes, "{}", point.policy);
        assert!(run(point.batch).fits() && !run(point.batch + 1).fits(), "{}", point.policy);
        match point.why {
            Why::Load { batch, load_bytes } => {
                assert_eq!((batch, batch), (point.batch + 1, point.bound.batch + 1), "{}", point.policy);
                assert_eq!(load_bytes, load(batch));
            }
            Why::Stranded { batch, asked_bytes, live_bytes, reserved_bytes } => {
                assert_eq!(batch, point.batch + 1);
                assert!(live_bytes + asked_bytes <= point.case.usable_bytes && reserved_bytes <= point.case.usable_bytes);
            }
            why => panic!("{}: {why:?}", point.policy),
        }
    }
}

#[test]
fn seven_billion_parameters_need_more_than_four_times_their_bytes() {
    let grid = Grid { devices_bytes: CARDS.map(|card| card.total_bytes).to_vec(), ..grid("7b") };
    let points = walk(&grid);
    let training = &points[0].case.training;
    // "More than 4-6 x the parameters" for Adam: gradients and two states of the same size each make it four.
    assert_eq!(training.state_bytes(), 4 * training.parameter_bytes());
    let smallest = points[0].bound.load_bytes as f64 / training.parameter_bytes() as f64;
    assert!(smallest > 4.0 && smallest < 6.0, "{smallest}");
    assert_eq!(points[0].why, Why::States { state_bytes: training.state_bytes() });
    let batches: Vec<u64> = points.iter().map(|point| point.batch).collect();
    assert!(batches[0] == 0 && batches[1] >= 1 && batches[2] > batches[1], "{batches:?}");
    let points = walk(&with(grid, |transformer| transformer.master_copy = true));
    let training = &points[0].case.training;
    // Two bytes of weights and of gradients, and three times four in the optimizer: eight times the weights.
    assert_eq!(training.state_bytes(), 8 * training.parameter_bytes());
    assert!(points[1].batch == 0 && points[2].batch >= 1, "106 GB of states fit on the largest only");
}

#[test]
fn each_cure_moves_the_largest_batch() {
    let batch =
        |change: fn(&mut Transformer)| walk(&with(Grid { devices_bytes: vec![12 * GB], ..grid("gpt2-large") }, change))[0].batch;
    let none = batch(|_| ());
    let fp32 = batch(|model| model.precision = Precision::Fp32);
    let other = batch(|model| model.checkpointing = Checkpointing::EveryOther);
    let sqrt = batch(|model| model.checkpointing = Checkpointing::Sqrt);
    let short = batch(|model| model.sequence = 512);
    let plain = batch(|model| model.optimizer = Optimizer::Sgd);
    // Only one micro-batch's activations live at once, but the gradients of the last one live beside them.
    let accumulated = batch(|model| model.accumulation = 4);
    assert!(none >= 1 && fp32 < none && none < other && other < sqrt, "{fp32} {none} {other} {sqrt}");
    assert!(short >= 2 * none && plain > none && accumulated > 2 * none, "{short} {plain} {accumulated}");
}

#[test]
fn threads_change_nothing() {
    let grid = Grid { policies: CATALOGUE.iter().collect(), devices_bytes: vec![6 * GB, 9 * GB], ..grid("gpt2") };
    let on = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| walk(&grid))
    };
    let one = on(1);
    assert_eq!(one, on(3));
    let order: Vec<_> = one.iter().map(|point| (point.case.device_bytes, point.policy)).collect();
    let expected = grid.devices_bytes.iter().flat_map(|&device| CATALOGUE.iter().map(move |policy| (device, policy.name)));
    assert!(order.into_iter().eq(expected));
}

#[test]
fn the_batches_that_may_be_tried_are_the_end() {
    let points = walk(&Grid { most_batch: 3, ..grid("gpt2") });
    assert_eq!((points[0].batch, points[0].bound.batch, &points[0].why), (3, 3, &Why::NotTried));
}

#[test]
fn what_cannot_be_searched_is_an_error() {
    let refused = |change: fn(&mut Grid)| {
        let mut grid = grid("gpt2");
        change(&mut grid);
        grid.walk(&|| ()).unwrap_err().to_string()
    };
    assert_eq!(refused(|grid| grid.policies.clear()), "there is nothing to search: no policies");
    assert!(refused(|grid| grid.devices_bytes = vec![5]).contains("no memory left beside a context"));
    assert!(refused(|grid| grid.most_batch = u64::MAX).contains("cannot be searched"));
    assert!(refused(|grid| grid.trainings[0].transformer.accumulation = 1000).contains("cannot be searched"));
    assert!(refused(|grid| grid.trainings[0].transformer.accumulation = 0).starts_with("gpt2: accumulation is 0"));
    assert!(refused(|grid| grid.trainings[0].transformer.sequence = 0).starts_with("gpt2: sequence is 0"));
    assert!(refused(|grid| grid.devices_bytes = vec![GB; 200_000]).contains("200000 combinations"));
    assert!(refused(|grid| grid.trainings[0].transformer.sequence = 1 << 32).contains("more than"));
}
