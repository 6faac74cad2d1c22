"""Medians, ranges and ratios of a run, as a table and as JSON."""
import statistics

# Goals for Hotseam over the best peer, by checkpoint and measure.
GOALS = {
    "official": {"prefill 512": 1.2, "prefill 2048": 3.0, "decode at 0": 2.0, "decode at 2048": 2.0},
    "nano-v4": {"prefill 2048": 4.0, "decode at 512": 10.0, "decode at 2048": 10.0},
}
OURS = "hotseam"


def summarise(samples, rounds, goals):
    """`samples[measure][engine]` are tokens a second by round; an engine with fewer than `rounds` cannot be the peer."""
    return [measure(name, engines, rounds, goals.get(name)) for name, engines in samples.items()]


def measure(name, engines, rounds, goal):
    row = {"measure": name, "goal": goal, "engines": {
        engine: {"tokens_per_s": round(statistics.median(rates), 1), "min": round(min(rates), 1),
                 "max": round(max(rates), 1), "runs": len(rates)}
        for engine, rates in engines.items()}}
    peers = [engine for engine, rates in engines.items() if not engine.startswith(OURS) and len(rates) == rounds]
    if peers:
        best = max(peers, key=lambda engine: statistics.median(engines[engine]))
        row |= {"best_peer": best, "ratios": {}}
        for engine in (name for name in engines if name.startswith(OURS)):
            ratios = [ours / theirs for ours, theirs in zip(engines[engine], engines[best])]
            row["ratios"][engine] = {"median": round(statistics.median(ratios), 2), "min": round(min(ratios), 2),
                                     "max": round(max(ratios), 2)}
    return row


def missed(rows):
    """Goals are for Hotseam as it comes, whatever else was asked of it."""
    ratio = lambda row: row["ratios"][OURS]["median"] if "ratios" in row else 0
    return [row["measure"] for row in rows if row["goal"] and ratio(row) < row["goal"]]


def text(result):
    m = result["machine"]
    lines = [f"{m['cpu']}, {m['cores']} cores, {m['threads']} threads used",
             f"features: {' '.join(m['features'])}",
             f"load: {m['load_before']:.2f} before, {m['load_after']:.2f} after" + (", forced" if result["forced"] else ""),
             f"memory: {m['stream_bytes_per_s'] / 1e9:.1f} GB/s read in order by all threads",
             "f32 products of 2048: " + ", ".join(f"{name} {rate / 1e9:.0f} GFLOP/s" for name, rate in m["gemm_flops"].items()),
             "versions: " + ", ".join(f"{name} {version}" for name, version in result["versions"].items()),
             f"checkpoint: {result['checkpoint']}; {result['rounds']} rounds, turns taken; tokens/s, medians", "",
             f"{'measure':16} {'engine':18} {'tokens/s':>9} {'min to max':>18} {'runs':>5}"]
    for row in result["rows"]:
        for engine, e in row["engines"].items():
            spread = f"{e['min']:.1f} to {e['max']:.1f}"
            lines.append(f"{row['measure']:16} {engine:18} {e['tokens_per_s']:9.1f} {spread:>18} {e['runs']:5}")
        for engine, ratio in row.get("ratios", {}).items():
            goal = f", goal {row['goal']:g}" if row["goal"] else ""
            lines.append(f"{'':16} {engine} to {row['best_peer']}: {ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f}){goal}")
    lines += [f"not repeated: {engine}, {reason}" for engine, reason in result["slow"].items()]
    lines += [f"hotseam, {result['batch']['sequences']} sequences decoding at 512: {result['batch']['tokens_per_s']:.1f} tokens/s"] \
        if result["batch"] else []
    lines.append("resident at most: " + ", ".join(f"{engine} {size / 1e6:.0f} MB" for engine, size in result["resident"].items()))
    if result["missed"]:
        lines.append(f"goals missed: {', '.join(result['missed'])}")
    return "\n".join(lines)
