"""What a peer's process does with lines on standard input: the protocol of tests/examples/bench_engine."""
import sys
import time


def serve(generate, vocab, commands=None):
    """Answers `run N M` with the seconds of a prompt of N tokens and its first token, and those of M more tokens.

    `generate(tokens)` yields token after token. `commands` are further words, each a function of the line's numbers
    that returns numbers. A first line, `ready`, says that the model is loaded."""
    print("ready", flush=True)
    for line in sys.stdin:
        word, *numbers = line.split()
        if word == "run":
            answer = run(generate, vocab, *map(int, numbers))
        else:
            answer = commands[word](*map(int, numbers))
        print(*answer, flush=True)


def run(generate, vocab, length, count):
    prompt = [i * 2654435761 % 2**32 % vocab for i in range(length)]
    start = time.perf_counter()
    tokens = generate(prompt)
    next(tokens)
    first = time.perf_counter()
    for _ in range(count):
        next(tokens)
    rest = time.perf_counter() - first
    tokens.close()
    return first - start, rest
