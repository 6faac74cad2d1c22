"""transformers under a stopwatch: `transformers_child.py CHECKPOINT f32|bf16 THREADS`, then the lines of child.py.

The whole model in one call for a prompt, then a token a call with the cache. Its experts run in the default
implementation and its attention eagerly, the only one it has for this model. `gemm N` prints the floating point
operations a second of an N x N f32 product by torch and by numpy, the two libraries of matrix products at hand."""
import sys
import time
import warnings

import numpy
import torch
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.utils import logging

import child

warnings.filterwarnings("ignore", category=FutureWarning)  # about argument names of later versions
logging.disable_progress_bar()


def load(directory, dtype):
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()
    return model.float() if dtype == torch.float32 else model


def generator(model):
    @torch.inference_mode()
    def step(tokens, cache):
        out = model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return out.logits[:, -1:].argmax(-1)

    def generate(prompt):
        cache = DynamicCache(config=model.config)
        token = step(torch.tensor([prompt]), cache)
        while True:
            yield token
            token = step(token, cache)

    return generate


def gemm(n):
    def rate(product):
        def look():
            start = time.perf_counter()
            product()
            return time.perf_counter() - start

        return 2 * n**3 / min(look() for _ in range(5))

    a, b = torch.rand(n, n), torch.rand(n, n)
    x, y = a.numpy(), b.numpy()
    return rate(lambda: torch.mm(a, b)), rate(lambda: numpy.matmul(x, y))


def main():
    directory, dtype, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    model = load(directory, {"f32": torch.float32, "bf16": torch.bfloat16}[dtype])
    child.serve(generator(model), model.config.vocab_size, {"gemm": gemm})


if __name__ == "__main__":
    main()
