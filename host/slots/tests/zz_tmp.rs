//! tmp
mod common;
use std::time::Instant;
#[test]
fn real() {
    let dir = std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().to_owned();
    let loader = hotseam_loader::Loader::new(vec![dir]).unwrap();
    for n in loader.names() {
        let t = Instant::now();
        match loader.open(&n) {
            Ok(p) => {
                let dim = if p.seam() == 0 { 64 } else if p.seam() == 1 { 32 } else { 0 };
                println!("{n} {:?} {:?} {:?} {:?}", p.kind(), t.elapsed(), p.manifest().options.keys().collect::<Vec<_>>(), p.create(&Default::default(), dim).map(|i| *i.info()));
            }
            Err(e) => println!("{n}: {e}"),
        }
    }
    let dir = common::stock();
    let slots = common::slots(dir.path(), hotseam_slots::Topology::Single);
    let t = Instant::now();
    slots.define("live", common::rules(&[])).unwrap();
    println!("define {:?}", t.elapsed());
    let t = Instant::now();
    slots.define("b", common::rules(&[])).unwrap();
    println!("define again {:?}", t.elapsed());
    let ctx = common::step(1);
    let t = Instant::now();
    for _ in 0..1_000_000 { let _ = std::hint::black_box(slots.snapshot("live")); }
    println!("snapshot {:?}/1e6", t.elapsed());
    let s = slots.snapshot("live").unwrap();
    let args = common::no_args();
    let b = &s.layer(hotseam_slots::Phase::Decode, 1).route;
    let t = Instant::now();
    for _ in 0..1_000_000 { b.call(&ctx, &args, 1).unwrap(); }
    println!("call {:?}/1e6", t.elapsed());
}
