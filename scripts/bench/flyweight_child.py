"""flyweight under a stopwatch: `flyweight_child.py GGUF CONTEXT VOCAB`, then the lines of child.py.

This is the engine of `flyweight serve --backend cpu` without its HTTP server, so that token ids go in and out and no
token of its own ends an answer."""
import sys

from flyweight.deepseek4_server import Deepseek4Engine
from flyweight.v2 import V2Model

import child


def generator(engine, context):
    # A prompt that extends the one before would start from its state, so every prompt begins with another token.
    prompts = 0

    def generate(prompt):
        nonlocal prompts
        prompts += 1
        prompt = [prompts % 256 + 2] + prompt[1:]
        task, events = engine.submit(prompt, context - len(prompt), ())
        try:
            while True:
                kind, value = events.get()
                if kind == "token":
                    yield value
                elif kind != "prefill":
                    raise RuntimeError(f"the answer ended early: {kind} {value}")
        finally:
            engine.cancel(task)

    return generate


def main():
    gguf, context, vocab = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    engine = Deepseek4Engine(V2Model(gguf), context)
    child.serve(generator(engine, context), vocab)


if __name__ == "__main__":
    main()
