//! Eight programs on several streams: what trainings and servers with copies or communication beside the computation
//! ask of the allocator.

use std::collections::VecDeque;

use parkade::units::StreamId;

use crate::simulated::{Body, MAIN, Memory, Sim};

const KB: u64 = 1 << 10;
const S1: StreamId = StreamId(0x1000);
const S2: StreamId = StreamId(0x2000);
const S3: StreamId = StreamId(0x3000);
const S4: StreamId = StreamId(0x4000);

/// A layer of width 1024 over so many rows: microseconds.
fn layer_us(rows: u64) -> f64 {
    4.0 + rows as f64 * 0.05
}

/// One step of training on so many rows.
fn train(sim: &mut Sim, rows: u64, depth: usize) {
    let mut kept = Vec::new();
    for _ in 0..depth {
        let out = sim.get(rows * 4 * KB, MAIN);
        sim.gpu(MAIN, layer_us(rows));
        let active = sim.get(rows * 4 * KB, MAIN);
        sim.gpu(MAIN, rows as f64 * 0.004 + 3.0);
        sim.cpu(20.0);
        kept.push((out, active));
    }
    let mut gradient = sim.get(rows * 4 * KB, MAIN);
    while let Some((out, active)) = kept.pop() {
        let before = sim.get(rows * 4 * KB, MAIN);
        sim.gpu(MAIN, rows as f64 * 0.005 + 3.0);
        sim.free(active);
        let weight = sim.get(4096 * KB, MAIN);
        sim.gpu(MAIN, layer_us(rows));
        let input = sim.get(rows * 4 * KB, MAIN);
        sim.gpu(MAIN, layer_us(rows));
        sim.free(out);
        sim.free(before);
        sim.free(gradient);
        sim.free(weight);
        sim.cpu(25.0);
        gradient = input;
    }
    sim.free(gradient);
}

/// The next batch is copied while this one trains.
fn double_buffer(sim: &mut Sim) {
    let load = |sim: &mut Sim| {
        let rows = sim.draw.below(1000, 9000);
        let raw = sim.get(rows * 4 * KB, S1);
        sim.gpu(S1, rows as f64 * 0.08);
        let batch = sim.get(rows * 4 * KB, S1);
        sim.gpu(S1, rows as f64 * 0.005);
        sim.free(raw);
        (batch, rows)
    };
    let mut following = load(sim);
    for step in 0..50 {
        sim.wait(MAIN, S1);
        let (batch, rows) = following;
        sim.uses(&batch, MAIN);
        following = load(sim);
        train(sim, rows, 6);
        sim.free(batch);
        if step % 10 == 9 {
            sim.item(MAIN);
        }
    }
    sim.free(following.0);
}

/// Gradients are summed in buckets beside the backward pass; nothing ever waits for the GPU.
fn grad_reduce(sim: &mut Sim) {
    for _ in 0..60 {
        let rows = sim.draw.below(300, 6000);
        let mut kept: Vec<Memory> = Vec::new();
        for _ in 0..10 {
            kept.push(sim.get(rows * 6 * KB, MAIN));
            sim.gpu(MAIN, layer_us(rows) * 2.0);
            sim.cpu(15.0);
        }
        let mut held = Vec::new();
        let mut bucket = Vec::new();
        while let Some(active) = kept.pop() {
            let gradient = sim.get(9216 * KB, MAIN);
            sim.gpu(MAIN, layer_us(rows) * 4.0);
            sim.free(active);
            bucket.push(gradient);
            if bucket.len() == 3 || kept.is_empty() {
                sim.wait(S1, MAIN);
                let flat = sim.get(9216 * KB * bucket.len() as u64, S1);
                sim.gpu(S1, 60.0);
                for gradient in bucket.drain(..) {
                    sim.uses(&gradient, S1);
                    sim.free(gradient);
                }
                for _ in 0..3 {
                    let sum = sim.get(9216 * KB, S1);
                    sim.gpu(S1, 150.0);
                    sim.free(sum);
                }
                held.push(flat);
            }
        }
        sim.wait(MAIN, S1);
        for flat in held {
            sim.uses(&flat, MAIN);
            sim.gpu(MAIN, 20.0);
            sim.free(flat);
        }
    }
}

/// Weights are fetched two layers ahead.
fn layer_prefetch(sim: &mut Sim) {
    let widths = [4, 4, 8, 4, 4, 12, 4, 4, 8, 4, 4, 16];
    for step in 0..70 {
        let rows = sim.draw.below(300, 5000);
        let mut hidden = sim.get(rows * 4 * KB, MAIN);
        let mut waiting = VecDeque::new();
        for place in 0..widths.len() + 2 {
            if let Some(width) = widths.get(place) {
                let weight = sim.get(width * 1024 * KB, S1);
                sim.gpu(S1, *width as f64 * 25.0);
                waiting.push_back(weight);
            }
            if place < 2 {
                continue;
            }
            let Some(weight) = waiting.pop_front() else { break };
            let width = widths[place - 2];
            sim.wait(MAIN, S1);
            let wide = sim.get(rows * width * KB, MAIN);
            sim.gpu(MAIN, layer_us(rows) * width as f64 / 4.0);
            let out = sim.get(rows * 4 * KB, MAIN);
            sim.gpu(MAIN, layer_us(rows) * width as f64 / 4.0);
            sim.uses(&weight, MAIN);
            sim.free(weight);
            sim.free(wide);
            sim.free(hidden);
            hidden = out;
            sim.cpu(10.0);
        }
        sim.free(hidden);
        if step % 16 == 15 {
            sim.item(MAIN);
        }
    }
}

/// Requests of any length run on four streams.
fn serving(sim: &mut Sim) {
    let streams = [S1, S2, S3, S4];
    for turn in 0..120 {
        let mut results = Vec::new();
        for _ in 0..sim.draw.below(2, 7) {
            let stream = streams[sim.draw.below(0, 4) as usize];
            let rows = 2_f64.powf(8.0 + 6.0 * sim.draw.unit()) as u64;
            let prompt = sim.get(rows * 2 * KB, MAIN);
            sim.gpu(MAIN, rows as f64 * 0.01);
            sim.wait(stream, MAIN);
            let mut hidden: Memory = None;
            for _ in 0..6 {
                let out = sim.get(rows * 2 * KB, stream);
                sim.gpu(stream, layer_us(rows) * 0.4);
                sim.free(hidden);
                hidden = out;
            }
            let cache = sim.get(rows * 4 * KB, stream);
            sim.gpu(stream, rows as f64 * 0.01);
            sim.free(hidden);
            let answer = sim.get(rows * 2 * KB, stream);
            sim.gpu(stream, rows as f64 * 0.005);
            sim.uses(&prompt, stream);
            sim.free(prompt);
            sim.free(cache);
            results.push((answer, stream, rows));
            sim.cpu(15.0);
        }
        let all: u64 = results.iter().map(|(_, _, rows)| rows).sum();
        for (answer, stream, _) in &results {
            sim.wait(MAIN, *stream);
            sim.uses(answer, MAIN);
        }
        let total = sim.get(all * 2 * KB, MAIN);
        sim.gpu(MAIN, all as f64 * 0.01);
        for (answer, _, _) in results {
            sim.free(answer);
        }
        sim.free(total);
        if turn % 12 == 11 {
            sim.item(MAIN);
        }
    }
}

/// Activations are copied to the host and back.
fn offload(sim: &mut Sim) {
    for step in 0..50 {
        let rows = sim.draw.below(500, 4096);
        for _ in 0..10 {
            let out = sim.get(rows * 4 * KB, MAIN);
            sim.gpu(MAIN, layer_us(rows) * 3.0);
            sim.wait(S1, MAIN);
            sim.gpu(S1, rows as f64 * 0.08);
            sim.uses(&out, S1);
            sim.free(out);
            sim.cpu(30.0);
        }
        for _ in 0..10 {
            sim.wait(S2, S1);
            let back = sim.get(rows * 4 * KB, S2);
            sim.gpu(S2, rows as f64 * 0.08);
            sim.wait(MAIN, S2);
            let gradient = sim.get(rows * 4 * KB, MAIN);
            sim.gpu(MAIN, layer_us(rows) * 6.0);
            sim.uses(&back, MAIN);
            sim.free(back);
            sim.free(gradient);
            sim.cpu(30.0);
        }
        if step % 8 == 7 {
            sim.item(MAIN);
        }
    }
}

/// Batches of images of any size are decoded on two streams, three ahead.
fn images(sim: &mut Sim) {
    let load = |sim: &mut Sim, number: u64| {
        let stream = if number.is_multiple_of(2) { S1 } else { S2 };
        let (batch, side) = (sim.draw.below(6, 24), sim.draw.below(4, 10) * 32);
        let pixels = batch * side * side;
        let raw = sim.get(pixels * 3, stream);
        sim.gpu(stream, pixels as f64 * 0.0002);
        let ready = sim.get(pixels * 12, stream);
        sim.gpu(stream, pixels as f64 * 0.00002);
        sim.free(raw);
        (ready, pixels, stream)
    };
    let mut queue: VecDeque<_> = (0..3).map(|number| load(sim, number)).collect();
    for step in 0..110 {
        let Some((ready, pixels, stream)) = queue.pop_front() else { break };
        sim.wait(MAIN, stream);
        sim.uses(&ready, MAIN);
        let mut kept = Vec::new();
        for shrink in [48, 24, 12] {
            let out = sim.get(pixels * shrink, MAIN);
            sim.gpu(MAIN, pixels as f64 * 0.0006);
            kept.push(out);
            let work = sim.get(pixels * 4, MAIN);
            sim.gpu(MAIN, pixels as f64 * 0.0002);
            sim.free(work);
        }
        sim.free(ready);
        let next = load(sim, step + 3);
        queue.push_back(next);
        while let Some(out) = kept.pop() {
            let gradient = sim.get(pixels * 24, MAIN);
            sim.gpu(MAIN, pixels as f64 * 0.001);
            sim.free(out);
            sim.free(gradient);
            sim.cpu(40.0);
        }
        if step % 25 == 24 {
            sim.item(MAIN);
        }
    }
    for (ready, _, _) in queue {
        sim.free(ready);
    }
}

/// Three stages, one stream each, pass micro-batches on.
fn pipeline(sim: &mut Sim) {
    let streams = [S1, S2, S3];
    for step in 0..40 {
        let mut kept = Vec::new();
        for _ in 0..6 {
            let rows = sim.draw.below(200, 5000);
            let mut hidden = sim.get(rows * 4 * KB, MAIN);
            sim.gpu(MAIN, rows as f64 * 0.01);
            sim.uses(&hidden, S1);
            sim.wait(S1, MAIN);
            for (place, &stream) in streams.iter().enumerate() {
                if place > 0 {
                    sim.wait(stream, streams[place - 1]);
                    sim.uses(&hidden, stream);
                }
                for _ in 0..3 {
                    let out = sim.get(rows * 4 * KB, stream);
                    sim.gpu(stream, layer_us(rows));
                    sim.cpu(20.0);
                    sim.free(hidden);
                    hidden = out;
                }
            }
            kept.push((hidden, rows));
        }
        sim.wait(MAIN, S3);
        for (hidden, rows) in kept {
            sim.uses(&hidden, MAIN);
            sim.gpu(MAIN, layer_us(rows) * 6.0);
            sim.free(hidden);
        }
        if step % 10 == 9 {
            sim.item(MAIN);
        }
    }
}

/// Tokens go to experts and back through a stream of communication.
fn experts(sim: &mut Sim) {
    for step in 0..70 {
        let rows = sim.draw.below(2000, 12000);
        let tokens = sim.get(rows * 4 * KB, MAIN);
        sim.gpu(MAIN, rows as f64 * 0.01);
        sim.wait(S1, MAIN);
        sim.uses(&tokens, S1);
        let mut chunks = Vec::new();
        let mut left = rows;
        for place in 0..8 {
            let part = if place == 7 { left } else { sim.draw.below(0, left / 2 + 1) };
            left -= part;
            let chunk = sim.get(part * 4 * KB + 512, S1);
            sim.gpu(S1, part as f64 * 0.02);
            chunks.push((chunk, part));
        }
        sim.free(tokens);
        let mut outputs = Vec::new();
        for (chunk, part) in chunks {
            sim.wait(MAIN, S1);
            let wide = sim.get(part * 8 * KB + 512, MAIN);
            sim.gpu(MAIN, layer_us(part) * 2.0);
            let out = sim.get(part * 4 * KB + 512, MAIN);
            sim.gpu(MAIN, layer_us(part) * 2.0);
            sim.free(wide);
            sim.uses(&chunk, MAIN);
            sim.free(chunk);
            outputs.push(out);
        }
        sim.wait(S1, MAIN);
        let all = sim.get(rows * 4 * KB, S1);
        sim.gpu(S1, rows as f64 * 0.02);
        for out in outputs {
            sim.uses(&out, S1);
            sim.free(out);
        }
        sim.wait(MAIN, S1);
        sim.uses(&all, MAIN);
        sim.gpu(MAIN, rows as f64 * 0.01);
        sim.free(all);
        if step % 9 == 8 {
            sim.item(MAIN);
        }
    }
}

/// All programs. The second half was not looked at while the model was made.
pub(crate) const PROGRAMS: [(&str, Body); 8] = [
    ("double_buffer", double_buffer),
    ("grad_reduce", grad_reduce),
    ("layer_prefetch", layer_prefetch),
    ("serving", serving),
    ("offload", offload),
    ("images", images),
    ("pipeline", pipeline),
    ("experts", experts),
];
