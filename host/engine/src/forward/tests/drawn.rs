//! Tokens that the kernel chooses against those of the host's sampler, from the same logits and seeds.

use crate::forward::ops::Block;
use crate::request::Sampling;
use crate::sampler::{Chosen, Draw, NotFinite, Sampler};
use hotseam_cuda::{Buffer, Device, Stream, copy_from_device, fill};
use hotseam_cuda_emulator::{device, is_real};
use hotseam_cuda_kernels::ops::Ops;

/// What no output of the kernel is.
const POISON: u8 = 0xab;

struct Kernel {
    ops: Ops,
    stream: Stream,
    device: Device,
}

impl Kernel {
    fn new() -> Self {
        let device = Device::open(0).expect("a device");
        Self { ops: Ops::load().expect("kernels"), stream: Stream::new().expect("a stream"), device }
    }

    /// What the kernel says of each row of `logits`, from poisoned memory, of which it writes no more than that.
    fn choose(&self, logits: &[f32], draws: &[Draw]) -> Vec<(i32, u32)> {
        let (rows, width) = (draws.len(), logits.len() / draws.len());
        let block = |buffer: Result<Buffer, _>| Block::device(buffer.expect("memory"), 0);
        let chosen = Buffer::new((rows + 1) * 8, "chosen").expect("memory");
        fill(chosen.address(), POISON, chosen.bytes()).expect("filled");
        let at = chosen.address();
        let (x, out) = (block(Buffer::of(logits, "logits")), block(Ok(chosen)));
        let draws = Buffer::of(draws, "draws").expect("memory");
        let (x, out) = (x.f32([rows, width]), (out.f32([rows, 2]), out));
        self.ops.sample(self.stream.raw(), &x, draws.address(), &out.0).expect("launched");
        self.device.synchronize().expect("no fault");
        let mut words = vec![0u32; 2 * (rows + 1)];
        copy_from_device(&mut words, at).expect("read");
        assert_eq!(words[2 * rows..], [u32::from_ne_bytes([POISON; 4]); 2], "nothing behind the last row");
        words[..2 * rows].chunks(2).map(|pair| (pair[0] as i32, pair[1])).collect()
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Around 0, about `size` wide.
    fn value(&mut self, size: f32) -> f32 {
        let sum: f32 = (0..4).map(|_| (self.next() >> 40) as f32 / (1u64 << 24) as f32 - 0.5).sum();
        sum * 1.7 * size
    }
}

/// Rows of one kind after the other; the last three of them are refused.
const KINDS: usize = 11;

fn row(random: &mut Random, kind: usize, width: usize) -> Vec<f32> {
    let size = [3.0, 0.01, 12.0, 80.0][kind % 4];
    let mut row: Vec<f32> = (0..width).map(|_| random.value(size)).collect();
    let any = (random.next() % width as u64) as usize;
    match kind % KINDS {
        // Few values, so that many are equal, among them the best.
        4 => row.iter_mut().for_each(|v| *v = v.clamp(-2.0, 2.0).round()),
        5 => row.fill(-7.25),
        // Most of them impossible.
        6 => (0..width).filter(|i| *i != any && i % 3 != 0).for_each(|i| row[i] = f32::NEG_INFINITY),
        // Zeros of both signs are equal.
        7 => (0..width).for_each(|i| row[i] = if random.next().is_multiple_of(2) { -0.0 } else { 0.0 }),
        8 => row[any] = f32::NAN,
        9 => row[any] = f32::INFINITY,
        10 => row.fill(f32::NEG_INFINITY),
        _ => {}
    }
    row
}

const TEMPERATURES: [f32; 8] = [0.0, 1.0, 0.7, 0.2, 2.5, 40.0, 1e-4, 1e-38];
const TOP_PS: [f32; 6] = [1.0, 0.9, 0.5, 0.0, 0.999_999, 0.05];

/// Natural-log probability, in f64.
fn exact(logits: &[f32], id: u32) -> f64 {
    let best = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|l| (f64::from(*l) - best).exp()).sum();
    f64::from(logits[id as usize]) - best - sum.ln()
}

/// Holds `rows` rows of this width against the host; returns how many tokens were drawn.
fn hold(kernel: &Kernel, random: &mut Random, width: usize, rows: usize) -> usize {
    let mut samplers: Vec<Sampler> = (0..rows)
        .map(|i| {
            let (temperature, top_p) = (TEMPERATURES[i % TEMPERATURES.len()], TOP_PS[i / 3 % TOP_PS.len()]);
            Sampler::new(Sampling { temperature, top_p, seed: random.next() })
        })
        .collect();
    let logits: Vec<f32> = (0..rows).flat_map(|i| row(random, i, width)).collect();
    let mut drawn = 0;
    for time in 0..2 {
        let draws: Vec<Draw> = samplers.iter().map(Sampler::next).collect();
        let said = kernel.choose(&logits, &draws);
        assert_eq!(kernel.choose(&logits, &draws), said, "the same bits each time");
        for (i, (logits, sampler)) in logits.chunks(width).zip(&mut samplers).enumerate() {
            let what = format!("row {i} of width {width}, time {time}: {:?}", draws[i]);
            match sampler.choose(logits) {
                Err(NotFinite) => assert_eq!(said[i].0, -1, "{what}"),
                Ok(Chosen { id, .. }) => {
                    assert_eq!(said[i].0, id as i32, "{what}");
                    let (got, want) = (f64::from(f32::from_bits(said[i].1)), exact(logits, id));
                    let bound =
                        width as f64 / 2f64.powi(32) + (want.abs() + (width as f64).ln()) / 2f64.powi(23);
                    assert!((got - want).abs() <= bound, "{what}: {got}, {want}, not within {bound:e}");
                    drawn += usize::from(draws[i].temperature > 0.0);
                }
            }
        }
    }
    drawn
}

#[test]
fn the_device_takes_the_tokens_of_the_hosts_sampler() {
    if !device() {
        return;
    }
    let kernel = Kernel::new();
    let random = &mut Random(0x5EED);
    // Kinds, temperatures and shares of the mass meet in all combinations within their product of rows.
    let rows =
        if is_real() { 4 * KINDS * TEMPERATURES.len() * TOP_PS.len() } else { KINDS * TEMPERATURES.len() };
    let widths = [1, 2, 5, 31, 127, 128, 129, 512, 1023, 1024, 1025, 4100];
    let drawn: usize = widths.into_iter().map(|width| hold(&kernel, random, width, rows)).sum();
    // The vocabulary of DeepSeek-V4.
    let large = hold(&kernel, random, 129_280, if is_real() { 20 * KINDS } else { 2 * KINDS });
    println!("{drawn} tokens of small vocabularies and {large} of a large one");
    assert!(drawn > 100 * widths.len() && large > KINDS);
}
