//! Cases of `kv_transport`: what arrives, where, and that nothing else does.

use crate::buffer::{Buffer, POISON, Role};
use crate::compare::Judge;
use crate::random::Random;
use crate::report::Coordinate;
use crate::runner::{Runner, context};
use crate::{Level, Op};
use hotseam_abi::{PollArgs, PutArgs, Region, RegisterArgs, component, phase, transfer};
use std::time::{Duration, Instant};

const SRC_ITEMS: usize = 12;
const DST_ITEMS: usize = 9;

/// A transfer of at most a few kilobytes that takes longer than this has failed.
const PATIENCE: Duration = Duration::from_secs(2);

/// Both sides of one component of one layer.
struct Area {
    component: u32,
    layer: u32,
    item_words: usize,
    src: Buffer,
    dst: Buffer,
    /// Item of `src` that each item of `dst` must hold.
    expected: [Option<usize>; DST_ITEMS],
}

struct World {
    areas: Vec<Area>,
}

type Outcome = std::result::Result<(), String>;

pub(super) fn run(runner: &mut Runner<'_>) {
    let table = runner.subject.kv_transport;
    if table.is_none_or(|t| t.register.is_none() || t.put.is_none() || t.poll.is_none() || t.cancel.is_none())
    {
        let missing = "register, put, poll and cancel belong together; one of them is missing".to_owned();
        return runner.fail(Op::KvTransport, "functions", missing);
    }
    if runner.subject.device.is_some() {
        let what = "it says that it runs on a device, but regions are in host memory. Take `device` out of its manifest.";
        return runner.fail(Op::KvTransport, "device", what.to_owned());
    }
    type Body = fn(&mut Runner<'_>, &mut Judge) -> Outcome;
    let cases: [(&str, Body); 7] = [
        ("scattered items of every component", scattered),
        ("no items", no_items),
        ("a second register replaces the regions", register_again),
        ("other items to where items were put before", put_again),
        ("cancel before poll, and of an unknown ticket", cancel),
        ("an item past the destination", item_out_of_range),
        ("a layer that is not registered", unknown_region),
    ];
    let n = if runner.level == Level::Quick { 2 } else { cases.len() };
    for (title, body) in cases.into_iter().take(n) {
        let mut judge = Judge::new(Op::KvTransport, 0);
        if let Err(message) = body(runner, &mut judge) {
            judge.fail(message);
        }
        runner.push(judge.finish(title.to_owned()));
    }
}

/// Every put is done, in another order than they were made, and each area holds what it must.
fn scattered(runner: &mut Runner<'_>, judge: &mut Judge) -> Outcome {
    let mut rng = Random::new(11);
    let mut world = World::new(&mut rng);
    world.register(runner)?;
    let mut tickets = Vec::new();
    for i in 0..world.areas.len() {
        let (from, to) = world.plan(i, &mut rng, 4);
        let ticket = world.put(runner, i, &from, &to)?;
        if tickets.iter().any(|(_, t)| *t == ticket) {
            return Err(format!("ticket {ticket} was given twice"));
        }
        tickets.push((i, ticket));
    }
    for (i, ticket) in tickets.into_iter().rev() {
        let bytes = wait(runner, ticket).map_err(|e| format!("{}: {e}", world.areas[i].name()))?;
        let moved = (4 * world.areas[i].item_words * 4) as u64;
        if bytes != moved {
            return Err(format!(
                "{}: done with {bytes} bytes, {moved} were asked for",
                world.areas[i].name()
            ));
        }
    }
    world.verify(judge);
    Ok(())
}

fn no_items(runner: &mut Runner<'_>, judge: &mut Judge) -> Outcome {
    let mut world = World::new(&mut Random::new(12));
    world.register(runner)?;
    let ticket = world.put(runner, 0, &[], &[])?;
    wait(runner, ticket)?;
    world.verify(judge);
    Ok(())
}

fn register_again(runner: &mut Runner<'_>, judge: &mut Judge) -> Outcome {
    let mut rng = Random::new(13);
    let (mut old, mut new) = (World::new(&mut rng), World::new(&mut rng));
    old.register(runner)?;
    new.register(runner)?;
    let (from, to) = new.plan(1, &mut rng, 3);
    let ticket = new.put(runner, 1, &from, &to)?;
    wait(runner, ticket)?;
    old.verify(judge);
    new.verify(judge);
    Ok(())
}

/// Pages are used again for other requests: what stands there is what was put last.
fn put_again(runner: &mut Runner<'_>, judge: &mut Judge) -> Outcome {
    let mut rng = Random::new(17);
    let mut world = World::new(&mut rng);
    world.register(runner)?;
    for i in 0..world.areas.len() {
        let (items, to) = (rng.permutation(SRC_ITEMS), rng.permutation(DST_ITEMS));
        let to: Vec<i32> = to[..3].iter().map(|item| *item as i32).collect();
        for from in [&items[..3], &items[3..6]] {
            let area = &mut world.areas[i];
            to.iter().zip(from).for_each(|(to, from)| area.expected[*to as usize] = Some(*from));
            let from: Vec<i32> = from.iter().map(|item| *item as i32).collect();
            let ticket = world.put(runner, i, &from, &to)?;
            wait(runner, ticket).map_err(|e| format!("{}: {e}", world.areas[i].name()))?;
        }
    }
    world.verify(judge);
    Ok(())
}

/// After cancel returns the destination is written no more.
fn cancel(runner: &mut Runner<'_>, judge: &mut Judge) -> Outcome {
    let mut rng = Random::new(14);
    let mut world = World::new(&mut rng);
    world.register(runner)?;
    let (from, to) = world.plan(0, &mut rng, 5);
    let ticket = world.put(runner, 0, &from, &to)?;
    drop_ticket(runner, ticket)?;
    let area = &mut world.areas[0];
    area.dst.words_mut().fill(POISON);
    area.expected = [None; DST_ITEMS];
    std::thread::sleep(Duration::from_millis(5));
    world.verify(judge);
    drop_ticket(runner, u64::MAX - 7)
}

/// Refused at once or failed later, but never written past the region.
fn item_out_of_range(runner: &mut Runner<'_>, judge: &mut Judge) -> Outcome {
    let mut world = World::new(&mut Random::new(15));
    world.register(runner)?;
    for (from, to) in [(0, DST_ITEMS as i32), (SRC_ITEMS as i32, 0), (0, -1)] {
        let Ok(ticket) = world.put(runner, 2, &[from], &[to]) else { continue };
        if wait(runner, ticket).is_ok() {
            return Err(format!("item {from} to item {to} was accepted and reported done"));
        }
    }
    world.areas[2].dst.words_mut().fill(POISON);
    world.verify(judge);
    Ok(())
}

fn unknown_region(runner: &mut Runner<'_>, judge: &mut Judge) -> Outcome {
    let mut world = World::new(&mut Random::new(16));
    world.register(runner)?;
    for (component, layer) in [(component::C4, 5), (component::C128, 4), (99, 2)] {
        let Ok(ticket) = put(runner, component, layer, &[0], &[0]) else { continue };
        if wait(runner, ticket).is_ok() {
            return Err(format!(
                "component {component} of layer {layer} is not registered but was reported done"
            ));
        }
    }
    world.verify(judge);
    Ok(())
}

impl Area {
    fn name(&self) -> String {
        format!("{} layer {}", component::NAMES[self.component as usize], self.layer)
    }

    fn src_item(&self, item: usize) -> &[u32] {
        &self.src.words()[item * self.item_words..(item + 1) * self.item_words]
    }

    fn dst_item(&self, item: usize) -> &[u32] {
        &self.dst.words()[item * self.item_words..(item + 1) * self.item_words]
    }
}

impl World {
    /// The components of a model of eight layers, ratios 0, 0, 4, 128, 4, 128, 4, 0.
    fn new(rng: &mut Random) -> Self {
        const LAYERS: [(u32, &[u32]); 7] = [
            (component::SWA, &[0, 1, 2, 3, 4, 5, 6, 7]),
            (component::C4, &[2, 4, 6]),
            (component::C128, &[3, 5]),
            (component::INDEX_KEYS, &[2, 4, 6]),
            (component::C4_STATE, &[2, 4, 6]),
            (component::C128_STATE, &[3, 5]),
            (component::INDEX_STATE, &[2, 4, 6]),
        ];
        let mut areas = Vec::new();
        for (component, layers) in LAYERS {
            let item_words = 24 + 4 * component as usize;
            for layer in layers {
                let src = rng.normals(SRC_ITEMS * item_words, 1.0);
                areas.push(Area {
                    component,
                    layer: *layer,
                    item_words,
                    src: Buffer::f32s("source region", src),
                    dst: Buffer::poisoned("destination region", Role::Output, DST_ITEMS * item_words),
                    expected: [None; DST_ITEMS],
                });
            }
        }
        Self { areas }
    }

    fn register(&mut self, runner: &mut Runner<'_>) -> Outcome {
        let region = |a: &mut Area| Region {
            component: a.component,
            layer: a.layer,
            src: a.src.ptr(),
            dst: a.dst.ptr(),
            item_bytes: 4 * a.item_words as u64,
            src_items: SRC_ITEMS as u64,
            dst_items: DST_ITEMS as u64,
            src_offset: 0,
            src_fd: -1,
        };
        let regions: Vec<Region> = self.areas.iter_mut().map(region).collect();
        let args = RegisterArgs {
            size: size_of::<RegisterArgs>() as u32,
            n_regions: regions.len() as u32,
            regions: regions.as_ptr(),
        };
        let f = runner.subject.kv_transport.and_then(|t| t.register).expect("register is there");
        let ctx = context(runner.subject, phase::PREFILL, u32::MAX, 0);
        let code = f(runner.subject.this, &ctx, &args);
        runner.outcome(code).map_err(|e| format!("register {e}"))
    }

    /// Chooses `n` scattered items of an area and expects them.
    fn plan(&mut self, area: usize, rng: &mut Random, n: usize) -> (Vec<i32>, Vec<i32>) {
        let (from, to) = (rng.permutation(SRC_ITEMS), rng.permutation(DST_ITEMS));
        for (from, to) in from.iter().zip(&to).take(n) {
            self.areas[area].expected[*to] = Some(*from);
        }
        let items = |order: Vec<usize>| order.into_iter().take(n).map(|i| i as i32).collect();
        (items(from), items(to))
    }

    fn put(
        &self,
        runner: &mut Runner<'_>,
        area: usize,
        from: &[i32],
        to: &[i32],
    ) -> std::result::Result<u64, String> {
        let area = &self.areas[area];
        put(runner, area.component, area.layer, from, to).map_err(|e| format!("put of {} {e}", area.name()))
    }

    /// Every destination item holds what is expected, or is untouched.
    fn verify(&self, judge: &mut Judge) {
        for area in &self.areas {
            let (name, words) = (area.name(), DST_ITEMS * area.item_words);
            if let Some(at) = area.dst.damage().or(area.src.damage()) {
                return judge.fail(format!("{name}: wrote outside the region, at word {at} of {words}"));
            }
            for item in 0..DST_ITEMS {
                let got = area.dst_item(item);
                let want = match area.expected[item] {
                    Some(from) => area.src_item(from).to_vec(),
                    None => vec![POISON; area.item_words],
                };
                let Some(word) = (0..want.len()).find(|w| want[*w] != got[*w]) else { continue };
                let what = match area.expected[item] {
                    None => "was written, but no put named it".to_owned(),
                    Some(from) => self.lost(area, from, item),
                };
                let index = vec![("item".to_owned(), item), ("byte".to_owned(), 4 * word)];
                let at = Coordinate { output: name, index };
                let (got, want) = (f32::from_bits(got[word]), f32::from_bits(want[word]));
                let message = format!("{at} {what}: got {got}, want {want}");
                return judge.fail_at(at, f64::from(got), f64::from(want), message);
            }
        }
    }

    /// Says where the bytes of a lost item went.
    fn lost(&self, area: &Area, from: usize, to: usize) -> String {
        let places = || self.areas.iter().flat_map(|a| (0..DST_ITEMS).map(move |item| (a, item)));
        let found = places().find(|(a, item)| a.dst_item(*item) == area.src_item(from));
        let foreign = self.areas.iter().find_map(|a| {
            let item = (0..SRC_ITEMS).find(|i| a.src_item(*i) == area.dst_item(to))?;
            Some(format!("holds source item {item} of {}", a.name()))
        });
        match (found, foreign) {
            (Some((a, item)), _) => {
                format!("does not hold source item {from}, which went to {} item {item}", a.name())
            }
            (None, Some(foreign)) => format!("{foreign}, not source item {from} of its own"),
            (None, None) => format!("does not hold source item {from}"),
        }
    }
}

fn put(
    runner: &mut Runner<'_>,
    component: u32,
    layer: u32,
    from: &[i32],
    to: &[i32],
) -> std::result::Result<u64, String> {
    let mut ticket = u64::MAX;
    let args = PutArgs {
        size: size_of::<PutArgs>() as u32,
        component,
        layer,
        n_items: from.len() as u32,
        room: 77,
        src_items: from.as_ptr(),
        dst_items: to.as_ptr(),
        ticket: &raw mut ticket,
        peer: 0,
    };
    let f = runner.subject.kv_transport.and_then(|t| t.put).expect("put is there");
    let ctx = context(runner.subject, phase::PREFILL, u32::MAX, 0);
    let code = f(runner.subject.this, &ctx, &args);
    runner.outcome(code)?;
    Ok(ticket)
}

/// Polls until the ticket is done; returns the bytes moved.
fn wait(runner: &mut Runner<'_>, ticket: u64) -> std::result::Result<u64, String> {
    let f = runner.subject.kv_transport.and_then(|t| t.poll).expect("poll is there");
    let ctx = context(runner.subject, phase::PREFILL, u32::MAX, 0);
    let began = Instant::now();
    loop {
        let mut args =
            PollArgs { size: size_of::<PollArgs>() as u32, state: u32::MAX, ticket, bytes: u64::MAX };
        let code = f(runner.subject.this, &ctx, &raw mut args);
        runner.outcome(code).map_err(|e| format!("poll {e}"))?;
        match args.state {
            transfer::DONE => return Ok(args.bytes),
            transfer::FAILED => return Err(format!("ticket {ticket} failed")),
            transfer::PENDING if began.elapsed() < PATIENCE => std::thread::sleep(Duration::from_micros(50)),
            transfer::PENDING => return Err(format!("ticket {ticket} is pending after {PATIENCE:?}")),
            other => return Err(format!("poll gave state {other}, which is none")),
        }
    }
}

fn drop_ticket(runner: &mut Runner<'_>, ticket: u64) -> Outcome {
    let f = runner.subject.kv_transport.and_then(|t| t.cancel).expect("cancel is there");
    let ctx = context(runner.subject, phase::PREFILL, u32::MAX, 0);
    let code = f(runner.subject.this, &ctx, ticket);
    runner.outcome(code).map_err(|e| format!("cancel of ticket {ticket} {e}"))
}
