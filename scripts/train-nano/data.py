"""Books, words and the recall task.

A recall prompt is running text with facts between its sentences, then questions in turns:

    <BOS><User> text ... The secret word of Lisbon is tiger. ... text What is the secret word of Lisbon?
    <Assistant></think>The secret word of Lisbon is tiger.<EOS><User> What is ...

The words of `host/evidence/data` are what Hotseam's oracles ask. A fact in training has a name or a value of these lists, or
neither, never both: every pair that an oracle asks is new to the network.
"""

import collections
import random
import re

import numpy as np

BOS, EOS, PAD, USER, ASSISTANT, THINK_END = 0, 1, 2, 3, 4, 6
HELD_OUT = ("log-school-house", "time-machine")
KINDS = ("secret word", "passphrase")


def sentences(paragraph):
    return re.split(r"(?<=[.!?]) +", paragraph)


def read_books(directory):
    """Text of every `*.txt`, held-out books excepted, in order of file names."""
    slug = lambda path: re.sub("[^a-z]+", "-", path.stem.lower())
    files = [f for f in sorted(directory.glob("*.txt")) if not any(h in slug(f) or h in "the-" + slug(f) for h in HELD_OUT)]
    return [f.read_text() for f in files]


class Text:
    """Tokens of books in two forms: `plain`, as they stand with line ends, and `spaced`, every sentence after a space."""

    def __init__(self, tokenizer, books):
        first, spaced, starts = [], [], []
        for book in books:
            for paragraph in book.split("\n"):
                parts = [s for s in sentences(paragraph) if s]
                if parts:
                    starts.append(len(spaced))
                    first.append(parts[0])
                    spaced += [" " + s for s in parts]
        encode = lambda batch: [np.array(e.ids, np.uint16) for e in tokenizer.encode_batch_fast(batch, add_special_tokens=False)]
        first, spaced_ids = encode(first), encode(spaced)
        newline = np.array(tokenizer.encode("\n", add_special_tokens=False).ids, np.uint16)
        plain, begin = [], set(starts)
        heads = iter(first)
        for i, ids in enumerate(spaced_ids):
            plain += [next(heads), ] if i in begin else [ids]
            if i + 1 in begin or i + 1 == len(spaced_ids):
                plain.append(newline)
        self.plain = np.concatenate(plain)
        kept = [ids for ids, text in zip(spaced_ids, spaced) if len(text) > 16]
        self.spaced = np.concatenate(kept)
        self.offsets = np.concatenate([[0], np.cumsum([len(k) for k in kept])])


def word_lists(books, root):
    """Names and values for facts, frequent ones first, without the words that oracles ask."""
    asked = {w.lower() for f in ("names", "values") for w in (root / f"host/evidence/data/{f}.txt").read_text().split()}
    count = collections.Counter()
    for book in books:
        count.update(re.findall(r"(?<=[a-z,] )[A-Za-z][a-z]{2,11}(?=[ ,.])", book))
    held = lambda w: any(w.lower().startswith(a) or a.startswith(w.lower()) for a in asked)
    lower = {w.lower() for w, n in count.items() if w[0].islower() and n > 4}
    names = [w for w, n in count.most_common() if w[0].isupper() and n > 4 and w.lower() not in lower and not held(w)]
    values = [w for w, n in count.most_common() if w[0].islower() and 3 < len(w) < 11 and n > 20 and not held(w)]
    return names, values[300:]


class Sampler:
    def __init__(self, tokenizer, text, names, values, seed, asked=None):
        self.tokenizer, self.text, self.names, self.values, self.asked = tokenizer, text, names, values, asked
        self.random, self.known = random.Random(seed), {}

    def encode(self, words):
        ids = self.known.get(words)
        if ids is None:
            ids = np.array(self.tokenizer.encode(words, add_special_tokens=False).ids, np.uint16)
            if len(self.known) < 200_000:
                self.known[words] = ids
        return ids

    def fact(self, width, phrases):
        """(name, kind, value); names and values from the first `width` of their lists, or one of both an oracle's."""
        r = self.random
        pick = lambda words: words[r.randrange(min(width, len(words)))]
        source = r.choice(("name", "value", "", "")) if self.asked else ""
        name = r.choice(self.asked[0]) if source == "name" else pick(self.names)
        value = r.choice(self.asked[1]) if source == "value" else pick(self.values)
        if r.random() >= phrases:
            return name, KINDS[0], value
        more = r.choice(self.asked[1]) if source == "value" and r.random() < 0.5 else pick(self.values)
        return name, KINDS[1], " ".join(r.sample((value, more), 2))

    def facts(self, n, width, phrases):
        found = {}
        while len(found) < n:
            name, kind, value = self.fact(width, phrases)
            found[(name, kind)] = value
        return [(name, kind, value) for (name, kind), value in found.items()]

    def passage(self, budget, told, depths=None):
        """`budget` tokens of running text with the sentences `told` between its own, at random places or at `depths`."""
        if budget <= 0:
            return list(told)
        offsets, r = self.text.offsets, self.random
        first = r.randrange(len(offsets) - 1)
        start = int(offsets[first])
        if start + budget >= len(self.text.spaced):
            first, start = 0, 0
        cuts = offsets[first : np.searchsorted(offsets, start + budget)] - start
        if depths is None:
            places = sorted(int(cuts[r.randrange(len(cuts))]) for _ in told)
        else:
            places = [int(cuts[np.abs(cuts - d * budget).argmin()]) for d in depths]
        parts, at = [], 0
        for place, sentence in zip(places, told):
            parts += [self.text.spaced[start + at : start + place], sentence]
            at = place
        return parts + [self.text.spaced[start + at : start + budget]]

    def recall(self, length, needles, questions, turns=1, width=10**9, phrases=0.5, depths=None, ask=None):
        """(ids, mask) of `length`; the mask is 1 on the tokens of values in answers.

        The text is spread over `turns` turns, each with its share of the facts and of the questions; a question asks a
        fact that has been told. `ask`: index of the fact that is asked last.
        """
        r = self.random
        facts = self.facts(needles, width, phrases)
        share = [[] for _ in range(turns)]
        for i in range(needles):
            share[i if i < turns and turns > 1 else r.randrange(turns)].append(i)
        plan, told = [], []
        for turn in range(turns):
            told += share[turn]
            count = questions // turns + (turn < questions % turns)
            asked = [told[r.randrange(len(told))] for _ in range(count)] if turns > 1 else r.sample(told, min(count, len(told)))
            if turn == turns - 1 and ask is not None:
                asked = asked[:-1] + [ask]
            plan.append(asked)
        tell = [self.encode(f" The {kind} of {name} is {value}.") for name, kind, value in facts]
        answers = []
        for name, kind, value in facts:
            head, tail = self.encode(f"The {kind} of {name} is"), self.encode(f" {value}")
            answers.append((self.encode(f" What is the {kind} of {name}?"), head, tail))
        dot, mark = self.encode("."), np.array([ASSISTANT, THINK_END], np.uint16)
        used = 1 + sum(map(len, tell))
        for asked in plan:
            used += max(1, len(asked))
            for i in asked:
                used += sum(map(len, answers[i])) + len(mark) + len(dot) + 1
        budget = length - used
        if budget < 32:
            return self.recall(length, max(1, needles // 2), max(1, questions // 2), 1, width, phrases)
        ids, mask = [np.array([BOS], np.uint16)], [np.zeros(1, np.uint8)]

        def put(tokens, on=0):
            ids.append(tokens)
            mask.append(np.full(len(tokens), on, np.uint8))

        left = budget
        for turn, asked in enumerate(plan):
            here = left if turn == turns - 1 else budget // turns
            left -= here
            put(np.array([USER], np.uint16))
            for part in self.passage(here, [tell[i] for i in share[turn]], depths):
                put(part)
            for at, i in enumerate(asked):
                if at:
                    put(np.array([USER], np.uint16))
                question, head, tail = answers[i]
                put(question)
                put(mark)
                put(head)
                put(tail, 1)
                put(dot)
                put(np.array([EOS], np.uint16))
        ids, mask = np.concatenate(ids)[:length], np.concatenate(mask)[:length]
        pad = length - len(ids)
        return np.pad(ids, (0, pad), constant_values=PAD), np.pad(mask, (0, pad))

    def plain(self, length):
        start = self.random.randrange(len(self.text.plain) - length)
        ids = self.text.plain[start : start + length].copy()
        ids[0] = BOS
        return ids, np.zeros(length, np.uint8)

    def batch(self, length, size, plain, width, phrases):
        """ids [size, length] and the mask of answers; the first `plain` share of the sequences is plain text."""
        r, rows = self.random, []
        for i in range(size):
            if i < plain * size:
                rows.append(self.plain(length))
                continue
            turns = r.choice((1, 1, 1, 4, 6)) if length >= 1024 else 1
            needles = r.randint(turns, max(3, min(40, length // 48), turns))
            questions = max(turns, min(needles, length // 64, 24))
            rows.append(self.recall(length, needles, questions, turns, width, phrases, ask=0 if turns > 1 else None))
        ids, mask = zip(*rows)
        return np.stack(ids).astype(np.int32), np.stack(mask)
