#!/usr/bin/env python3
"""Makes chat tasks for `tern eval --tasks`: JSON lines with id, task, messages, tools? and expect or expect_tool.

usage: make_tasks.py [--items N] [--seed S] [--kinds KIND,...] [--for tiny|smollm2] [--shots N] > tasks.jsonl

KIND is a name, and how hard it is: NAME, NAME:N or NAME:LOW-HIGH, with *WEIGHT for more or fewer items of it.
The number counts words, names or digits, or is the largest number of sums; --list says which.
The same options give the same bytes. No item comes twice, in one file; a kind that has no more items is filled up by the
others, and an error if none has.

The defaults are the kinds and sizes on which the model's own format answers 60-98 % right, measured with tern eval
(docs/eval.md has the figures): other kinds say nothing about a format.
"""
import argparse, json, random, sys

WORDS = """anchor apple badge basket bridge cactus candle cloud copper crown dragon drum eagle engine falcon feather flame
forest garden glacier grape hammer harbor house iron island jacket jewel kettle knife ladder lamp lemon marble meadow mirror
mouse needle nest ocean olive orchid parrot pearl pepper piano quartz queen ribbon river rocket rose saddle silver snake
stone temple tiger timber tree umbrella urn valley vase velvet violin walnut wheel window yellow zebra""".split()
CITIES = """Athens Berlin Cairo Delhi Dublin Hanoi Havana Lima Lisbon London Madrid Nairobi Oslo Paris Prague Quito Rome
Seoul Tokyo Vienna""".split()
# name: argument, phrasings
TOOLS = {
    "get_weather": ("city", ["What is the weather in {}?", "How is the weather in {} today?", "Tell me the weather for {}."]),
    "get_time": ("city", ["What time is it in {}?", "What is the local time in {}?", "Tell me the time in {}."]),
    "find_item": ("name", ["Where is the {}?", "Find the {} for me.", "Look up the {}."]),
}


def user(text): return {"role": "user", "content": text}


def answer(text): return {"role": "assistant", "content": text}


def tool_declaration(name):
    argument = TOOLS[name][0]
    return {"type": "function", "function": {"name": name, "description": "", "parameters": {
        "type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}}}


# Each kind: (what the number means, default range, function(rng, n) -> question, expected answer).
def recall(rng, n):
    names = rng.sample(WORDS, n)
    values = {name: rng.randint(10, 99) for name in names}
    asked = rng.choice(names)
    lines = [f"{name}={value}" for name, value in values.items()]
    return "\n".join(["Remember:", *lines, asked + "=?"]), f"{asked}={values[asked]}"


def words_task(title, result):
    def make(rng, n):
        words = rng.sample(WORDS, n)
        return "\n".join([title + ":", *words]), result(words)
    return make


def add(rng, n):
    a, b = rng.randint(0, n), rng.randint(0, n)
    if rng.random() < 0.5: return f"What is {a}+{b}?", str(a + b)
    return f"What is {max(a, b)}-{min(a, b)}?", str(abs(a - b))


def count(rng, n):
    wanted, *others = rng.sample(WORDS, 4)
    times = rng.randint(1, n)
    words = [wanted] * times + others  # always three: what the tiny model was trained on
    rng.shuffle(words)
    return "\n".join([f"Count {wanted}:", *words]), str(times)


def think(rng, n):
    digits = [rng.randint(1, 9) for _ in range(n)]
    return f"Think: {'+'.join(map(str, digits))}?", str(sum(digits))


def tool(rng, n):
    declared = rng.sample(sorted(TOOLS), n)
    name = rng.choice(declared)
    argument, phrasings = TOOLS[name]
    value = rng.choice(CITIES if argument == "city" else WORDS)
    return (rng.choice(phrasings).format(value), {"name": name, "arguments": {argument: value}},
            [tool_declaration(one) for one in declared])


# A conversation: the model answers every turn, and only the last answer is judged.
def turns(questions):
    messages = []
    for question in questions: messages += [user(question), {"role": "assistant"}]
    return messages[:-1]


TURNS = 8


def talk(rng, n):
    names = rng.sample(WORDS, n)
    values = {name: rng.randint(10, 99) for name in names}
    asked = [rng.choice(names) for _ in range(TURNS)]
    listed = "\n".join(["Remember:", *(f"{name}={value}" for name, value in values.items()), ""])
    return turns([listed + asked[0] + "=?", *(name + "=?" for name in asked[1:])]), f"{asked[-1]}={values[asked[-1]]}"


# For models that read English: short questions, after some that were answered (--shots).
def english_list(question, result):
    def make(rng, n):
        words = rng.sample(WORDS, n)
        return question.format(words=", ".join(words)), result(words)
    return make


def english_add(rng, n):
    a, b = rng.randint(1, n), rng.randint(1, n)
    return f"{a} + {b} =", str(a + b)


def english_next(rng, n):
    a = rng.randint(1, n)
    return f"Which number comes after {a}?", str(a + 1)


def english_larger(rng, n):
    a, b = rng.sample(range(1, n + 1), 2)
    return f"Which is larger, {a} or {b}?", str(max(a, b))


def english_letter(rng, n):
    word = rng.choice(WORDS)
    other = rng.choice([w for w in WORDS if w != word])
    return f"{other.capitalize()} and {word}: which letter does the second word begin with?", word[0]


def english_recall(rng, n):
    names = rng.sample(WORDS, n)
    values = {name: rng.randint(10, 99) for name in names}
    asked = rng.choice(names)
    lines = [f"The {name} costs {value}." for name, value in values.items()]
    return " ".join([*lines, f"What does the {asked} cost?"]), str(values[asked])


def english_talk(rng, n):
    """A fact a turn; the last turn asks one of the first n back. Of seven SmolLM2 finds the first and the last."""
    names = rng.sample(WORDS, TURNS - 1)
    values = [rng.randint(10, 99) for _ in names]
    told = [f"The {name} costs {value} dollars. What does the {name} cost?" for name, value in zip(names, values)]
    back = rng.randrange(n)
    return turns([*told, f"What does the {names[back]} cost?"]), f"The {names[back]} costs {values[back]} dollars."


KINDS = {
    "recall": ("names", (2, 3), recall),
    "repeat": ("words", (2, 3), words_task("Repeat", "\n".join)),
    "reverse": ("words", (2, 2), words_task("Reverse", lambda w: "\n".join(w[::-1]))),
    "sort": ("words", (2, 2), words_task("Sort", lambda w: "\n".join(sorted(w)))),
    "first": ("words", (2, 7), words_task("First", lambda w: w[0])),
    "last": ("words", (2, 8), words_task("Last", lambda w: w[-1])),
    "add": ("largest number", (20, 20), add),
    "count": ("times", (8, 8), count),
    "think": ("digits", (3, 3), think),
    "tool": ("declared tools", (1, 3), tool),
    "talk": ("names", (2, 3), talk),
    "e-repeat": ("words", (1, 4), english_list("Repeat: {words}", ", ".join)),
    "e-first": ("words", (3, 4), english_list("First word of: {words}", lambda w: w[0])),
    "e-last": ("words", (3, 3), english_list("Last word of: {words}", lambda w: w[-1])),
    "e-sort": ("words", (2, 3), english_list("Sort by alphabet: {words}", lambda w: ", ".join(sorted(w)))),
    "e-reverse": ("words", (2, 3), english_list("Reverse the order: {words}", lambda w: ", ".join(w[::-1]))),
    "e-count": ("words", (2, 6), english_list("How many words: {words}", lambda w: str(len(w)))),
    "e-upper": ("words", (1, 2), english_list("Write in capitals: {words}", lambda w: ", ".join(w).upper())),
    "e-add": ("largest number", (20, 20), english_add),
    "e-next": ("largest number", (500, 500), english_next),
    "e-larger": ("largest number", (99, 99), english_larger),
    "e-letter": ("unused", (1, 1), english_letter),
    "e-recall": ("names", (2, 4), english_recall),
    "e-talk": ("turns", (1, 1), english_talk),
}
DEFAULTS = {"tiny": "repeat,first,sort,reverse,add", "smollm2": "e-repeat,e-first,e-last"}
TRIES = 2000  # without a new item: the kind has none left


def parse_kind(text):
    body, _, weight = text.partition("*")
    name, _, size = body.partition(":")
    if name not in KINDS: sys.exit(f"make_tasks.py: no kind '{name}'; --list lists them")
    low, high = KINDS[name][1]
    try:
        if size: low, _, high = size.partition("-"); low, high = int(low), int(high or low)
        weight = float(weight or 1)
    except ValueError:
        sys.exit(f"make_tasks.py: '{text}' is not NAME, NAME:N or NAME:LOW-HIGH, with *WEIGHT")
    limit = {"names": len(WORDS), "words": len(WORDS), "declared tools": len(TOOLS), "turns": TURNS - 1}.get(KINDS[name][0], 10**6)
    if not 1 <= low <= high <= limit or weight <= 0: sys.exit(f"make_tasks.py: '{text}' is out of range")
    return body, name, low, high, weight


def make_examples(rng, kind, shots):
    """Answered questions, the same before every item of a kind: an engine computes their prefix once."""
    _, name, low, high, _ = kind
    messages = []
    for _ in range(shots if name.startswith("e-") else 0):
        question, expected, *_ = KINDS[name][2](rng, rng.randint(low, high))
        if isinstance(question, list): return []  # a conversation has its examples in itself
        messages += [user(question), answer(expected)]
    return messages


def make_item(rng, kind, examples):
    label, name, low, high, _ = kind
    question, expected, *tools = KINDS[name][2](rng, rng.randint(low, high))
    item = {"task": label, "messages": examples + (question if isinstance(question, list) else [user(question)])}
    if tools: item["tools"] = tools[0]
    item["expect" if isinstance(expected, str) else "expect_tool"] = expected
    return item, json.dumps([question, tools])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--for", dest="model", choices=sorted(DEFAULTS), default="tiny", help="whose defaults to use")
    parser.add_argument("--kinds", help="default: those of --for")
    parser.add_argument("--shots", type=int, default=4, help="answered questions before the one that is asked, for kinds e-*")
    parser.add_argument("--list", action="store_true", help="list the kinds")
    options = parser.parse_args()
    if options.list:
        for name, (number, (low, high), _) in KINDS.items(): print(f"{name}:{low}-{high}  number of {number}")
        return
    kinds = [parse_kind(text) for text in (options.kinds or DEFAULTS[options.model]).split(",")]
    rng, seen, made = random.Random(options.seed), set(), []
    examples = {kind: make_examples(rng, kind, options.shots) for kind in kinds}
    while len(made) < options.items:
        if not kinds: sys.exit(f"make_tasks.py: only {len(made)} different items of these kinds exist, {options.items} are wanted")
        kind = rng.choices(kinds, weights=[k[4] for k in kinds])[0]
        for _ in range(TRIES):
            item, key = make_item(rng, kind, examples[kind])
            if key not in seen: break
        else:
            kinds.remove(kind)
            continue
        seen.add(key)
        made.append(item)
    for number, item in enumerate(made): print(json.dumps({"id": number, **item}, ensure_ascii=False))


if __name__ == "__main__":
    main()
