"""Writes a checkpoint of official_checkpoint.py as GGUF: `to_gguf.py LLAMA_SOURCE CHECKPOINT OUT.gguf`.

It runs the converter that is part of llama.cpp's source, on which a directory without a tokenizer is not tried; the
vocabulary written here is one token a byte and fillers, which is enough to load the file. Experts become MXFP4 and FP8
matrices Q8_0; that is the converter's choice."""
import sys
from pathlib import Path


def vocabulary(model):
    """Writes a byte-level vocabulary of the model's size."""
    size = model.hparams["vocab_size"]
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {**{byte: chr(byte) for byte in printable}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}
    special = ["<bos>", "<eos>"]
    tokens = special + [letters[byte] for byte in range(256)]
    fillers = [f"<|{i}|>" for i in range(size - len(tokens))]
    control, normal, user_defined = 3, 1, 4
    w = model.gguf_writer
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("deepseek-v3")
    w.add_token_list(tokens + fillers)
    w.add_token_types([control] * len(special) + [normal] * 256 + [user_defined] * len(fillers))
    w.add_token_merges(["! !"])  # an empty list is refused
    w.add_bos_token_id(0)
    w.add_eos_token_id(1)
    w.add_vocab_size(size)


def main():
    source, checkpoint, out = sys.argv[1:]
    sys.path[:0] = [source, f"{source}/gguf-py"]
    import gguf
    from conversion.deepseek import DeepseekV4Model

    DeepseekV4Model.set_vocab = vocabulary
    DeepseekV4Model(Path(checkpoint), gguf.LlamaFileType.MOSTLY_BF16, Path(out)).write()


if __name__ == "__main__":
    main()
