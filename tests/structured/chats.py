"""Templated chats of five kinds, by seed: what the small target was trained on, and prompts that it never saw.

Each kind is a small grammar whose answer follows from the prompt: functions, stories and letters, word problems with
worked steps, tool calls, and SQL, shell and YAML. A prompt belongs to one of two parts by a hash of its text: the
target learns from LEARNED alone, so any chat of FRESH is new to it. Equal arguments give equal chats anywhere. No
torch, no tokenizer.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

LEARNED, FRESH = "learned", "fresh"
FRESH_OF = 8
"""One prompt in so many is fresh."""

NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hugo", "Ida", "Jonas", "Lena", "Mia")
CITIES = ("Oslo", "Paris", "Rome", "Berlin", "Madrid", "Vienna", "Lisbon", "Athens", "Dublin", "Prague")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
THINGS = ("apples", "books", "stamps", "coins", "marbles", "pens", "cards", "shells")


@dataclass(frozen=True)
class Chat:
    """Messages that end with the assistant's answer, and the tools that are offered."""

    category: str
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = field(default=())

    @property
    def prompt_text(self) -> str:
        """All that is shown and not written by the assistant, as one text."""
        shown = [message for message in self.messages if message["role"] != "assistant"]
        return json.dumps([shown, self.tools], sort_keys=True)

    @property
    def part(self) -> str:
        """LEARNED or FRESH."""
        return FRESH if zlib.crc32(self.prompt_text.encode()) % FRESH_OF == 0 else LEARNED

    def row(self, number: int) -> dict[str, Any]:
        """As a line of a JSONL source."""
        body: dict[str, Any] = {"id": f"{self.category}-{number}", "messages": list(self.messages)}
        return body | ({"tools": list(self.tools)} if self.tools else {})


def endless(category: str, seed: int, part: str) -> Iterator[Chat]:
    """Distinct chats of one kind and part, for ever (a grammar has some ten thousand prompts)."""
    draw = random.Random(f"{seed} {category}")
    makers = KINDS[category]
    while True:
        chat = draw.choice(makers)(draw)
        if chat.part == part:
            yield chat


def chats(category: str, count: int, seed: int, part: str) -> list[Chat]:
    """`count` chats with distinct prompts."""
    found: dict[str, Chat] = {}
    stream = endless(category, seed, part)
    while len(found) < count:
        chat = next(stream)
        found.setdefault(chat.prompt_text, chat)
    return list(islice(found.values(), count))


def said(category: str, question: str, answer: str, system: str | None = None) -> Chat:
    """A chat of one turn."""
    before = [{"role": "system", "content": system}] if system else []
    asked = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return Chat(category, (*before, *asked))


# coding: small Python functions and classes

VERBS = ("find", "get", "pick", "collect", "make", "take", "read", "keep")
ARGUMENTS = ("values", "numbers", "scores", "prices", "sizes", "ages")
TESTS = {
    "above {n}": "{x} > {n}", "below {n}": "{x} < {n}", "at least {n}": "{x} >= {n}",
    "divisible by {n}": "{x} % {n} == 0", "not equal to {n}": "{x} != {n}",
}  # fmt: skip
CHANGES = {"plus {n}": "{x} + {n}", "minus {n}": "{x} - {n}", "times {n}": "{x} * {n}", "divided by {n}": "{x} / {n}"}
FOLDS = {"sum": ("0", "total += {x}"), "product": ("1", "total *= {x}"), "number": ("0", "total += 1")}
ASKS = ("Write a Python function", "Please write a function", "I need a Python function", "Give me a function")
CLASSES = ("Point", "Box", "Order", "Account", "Player", "Sensor")
FIELDS = ("width", "height", "price", "count", "level", "weight")


def python(code: str) -> str:
    """A fenced block."""
    return f"```python\n{code}\n```"


def list_function(draw: random.Random) -> Chat:
    """Filter, then change each."""
    argument = draw.choice(ARGUMENTS)
    name, one = f"{draw.choice(VERBS)}_{argument}", argument[:-1]
    (test, code), (change, changed) = draw.choice(list(TESTS.items())), draw.choice(list(CHANGES.items()))
    n, m = draw.randint(2, 99), draw.randint(2, 20)
    test, code = test.format(n=n), code.format(x=one, n=n)
    change, changed = change.format(n=m), changed.format(x=one, n=m)
    return said(
        "coding",
        f"{draw.choice(ASKS)} {name} that takes {argument} and returns those {test}, each {change}.",
        python(
            f"def {name}({argument}):\n    result = []\n    for {one} in {argument}:\n        if {code}:\n"
            f"            result.append({changed})\n    return result"
        ),
    )


def fold_function(draw: random.Random) -> Chat:
    """Filter, then fold."""
    argument, (fold, (start, step)) = draw.choice(ARGUMENTS), draw.choice(list(FOLDS.items()))
    one, name = argument[:-1], f"{fold}_of_{argument}"
    test, code = draw.choice(list(TESTS.items()))
    n = draw.randint(2, 99)
    test, code = test.format(n=n), code.format(x=one, n=n)
    return said(
        "coding",
        f"{draw.choice(ASKS)} {name} that returns the {fold} of all {argument} that are {test}.",
        python(
            f"def {name}({argument}):\n    total = {start}\n    for {one} in {argument}:\n        if {code}:\n"
            f"            {step.format(x=one)}\n    return total"
        ),
    )


def small_class(draw: random.Random) -> Chat:
    """Two fields and a method."""
    name, (a, b) = draw.choice(CLASSES), draw.sample(FIELDS, 2)
    word, sign = draw.choice([("sum", "+"), ("product", "*"), ("difference", "-")])
    return said(
        "coding",
        f"Write a Python class {name} with fields {a} and {b} and a method {word} that returns their {word}.",
        python(
            f"class {name}:\n    def __init__(self, {a}, {b}):\n        self.{a} = {a}\n        self.{b} = {b}\n\n"
            f"    def {word}(self):\n        return self.{a} {sign} self.{b}"
        ),
    )


# general: stories, letters, lists of steps

ANIMALS = ("fox", "cat", "wolf", "bear", "mouse", "horse", "duck", "goat")
PLACES = ("forest", "harbour", "garden", "castle", "village", "library", "market", "mountain")
FINDS = (
    "golden key", "red lamp", "paper map", "silver bell", "broken clock", "blue stone", "small boat", "lost letter",
)  # fmt: skip
ENDINGS = {
    "happily": "and everyone in the {place} was glad", "sadly": "and nobody in the {place} ever knew",
    "quietly": "and then the {place} was silent again",
}  # fmt: skip
HELPERS = ("baker", "sailor", "teacher", "painter", "doctor", "farmer")
EVENTS = ("birthday party", "concert", "dinner", "picnic", "book club", "chess evening")
DISHES = {
    "tomato soup": ("tomatoes", "pot"), "apple pie": ("apples", "oven"), "fried rice": ("rice", "pan"),
    "bean stew": ("beans", "pot"), "potato salad": ("potatoes", "bowl"), "mushroom toast": ("mushrooms", "pan"),
}  # fmt: skip
SPICES = ("salt", "pepper", "garlic", "basil", "ginger", "lemon")


def story(draw: random.Random) -> Chat:
    """A story; one in three is asked about afterwards."""
    name, animal, place = draw.choice(NAMES), draw.choice(ANIMALS), draw.choice(PLACES)
    found, helper, (how, ending) = draw.choice(FINDS), draw.choice(HELPERS), draw.choice(list(ENDINGS.items()))
    chat = said(
        "general",
        f"Tell me a short story about {name} the {animal}, who finds a {found} in the {place} and meets a {helper}. "
        f"It ends {how}.",
        f"Once upon a time there was a {animal} named {name}. One morning {name} walked through the {place} and found "
        f"a {found}. A {helper} came by and asked about the {found}. So {name} gave the {found} to the {helper}, "
        f"{ending.format(place=place)}.",
    )
    if draw.random() < 2 / 3:
        return chat
    whom = f"{name} the {animal}"
    question, answer = draw.choice(
        [
            ("Who got it in the end?", f"In the end the {helper} got the {found}, because {whom} gave it away."),
            ("Where was it found?", f"The {found} was found in the {place}, where {whom} walked one morning."),
        ]
    )
    more = ({"role": "user", "content": question}, {"role": "assistant", "content": answer})
    return Chat("general", (*chat.messages, *more))


def letter(draw: random.Random) -> Chat:
    """An invitation, signed by whom the system message names."""
    (own, other), event, day = draw.sample(NAMES, 2), draw.choice(EVENTS), draw.choice(DAYS)
    city, hour = draw.choice(CITIES), draw.randint(2, 9)
    return said(
        "general",
        f"Invite {other} to a {event} in {city} on {day} at {hour}.",
        f"Dear {other},\n\non {day} at {hour} there will be a {event} in {city}, and I would be very happy to see you "
        f"there. Please tell me before {day} if you can come to {city}.\n\nYours,\n{own}",
        system=f"You write letters for {own}.",
    )


def steps(draw: random.Random) -> Chat:
    """How to cook something."""
    dish, (main, where) = draw.choice(list(DISHES.items()))
    first, second = draw.sample(SPICES, 2)
    minutes, people = draw.randint(5, 60), draw.randint(2, 9)
    return said(
        "general",
        f"How do I make {dish} for {people} people with {first} and {second}? I have {minutes} minutes.",
        f"1. Wash the {main} for {people} people and cut them.\n2. Put the {main} into the {where} with some {first}.\n"
        f"3. Wait for {minutes} minutes.\n4. Add the {second} and serve your {dish}.",
    )


# math: word problems with worked steps


def bought_and_given(draw: random.Random) -> Chat:
    """Plus, then minus."""
    (own, other), thing = draw.sample(NAMES, 2), draw.choice(THINGS)
    a, b = draw.randint(10, 39), draw.randint(2, 9)
    c = draw.randint(2, 9)
    return said(
        "math",
        f"{own} has {a} {thing}, buys {b} more and gives {c} to {other}. How many {thing} does {own} have now?",
        f"{own} starts with {a} {thing}.\nAfter buying {b} more: {a} + {b} = {a + b}.\n"
        f"After giving {c} to {other}: {a + b} - {c} = {a + b - c}.\nThe answer is {a + b - c}.",
    )


def boxes(draw: random.Random) -> Chat:
    """Times, then plus."""
    own, thing = draw.choice(NAMES), draw.choice(THINGS)
    boxed, each, more = draw.randint(2, 9), draw.randint(2, 9), draw.randint(2, 9)
    return said(
        "math",
        f"There are {boxed} boxes with {each} {thing} each, and {own} brings {more} more. How many {thing} are there?",
        f"In the boxes there are {boxed} * {each} = {boxed * each} {thing}.\n"
        f"With the {more} that {own} brings: {boxed * each} + {more} = {boxed * each + more}.\n"
        f"The answer is {boxed * each + more}.",
    )


def journey(draw: random.Random) -> Chat:
    """Speed times hours."""
    start, end = draw.sample(CITIES, 2)
    speed, hours = draw.randint(2, 9) * 10, draw.randint(2, 9)
    return said(
        "math",
        f"A train from {start} to {end} goes {speed} km in one hour and takes {hours} hours. How far is {end}?",
        f"In one hour the train goes {speed} km.\nIn {hours} hours it goes {hours} * {speed} = {hours * speed} km.\n"
        f"So from {start} to {end} it is {hours * speed} km.\nThe answer is {hours * speed}.",
    )


# agent: tool calls, and answers to what a tool said

TITLES = ("Blue Moon", "Night Train", "Summer Rain", "Open Sea", "Last Light", "High Road")
TOOLS: dict[str, tuple[str, dict[str, str]]] = {
    "get_weather": ("The weather of a city.", {"city": "string", "day": "string"}),
    "set_alarm": ("Set an alarm clock.", {"day": "string", "hour": "integer"}),
    "play_song": ("Play a song.", {"title": "string", "volume": "integer"}),
    "book_table": ("Book a table.", {"city": "string", "people": "integer", "day": "string"}),
    "find_train": ("Find a train.", {"start": "string", "end": "string", "day": "string"}),
    "send_note": ("Send a note.", {"to": "string", "title": "string"}),
}


def offered(*names: str) -> tuple[dict[str, Any], ...]:
    """Tools as OpenAI writes them."""
    return tuple(
        {
            "type": "function",
            "function": {
                "name": name,
                "description": TOOLS[name][0],
                "parameters": {
                    "type": "object",
                    "properties": {key: {"type": kind} for key, kind in TOOLS[name][1].items()},
                    "required": list(TOOLS[name][1]),
                },
            },
        }
        for name in names
    )


def request(draw: random.Random, name: str) -> tuple[str, str, dict[str, Any]]:
    """(what is asked, what is said before the call, arguments)."""
    city, other = draw.sample(CITIES, 2)
    day, hour, title, to = draw.choice(DAYS), draw.randint(1, 12), draw.choice(TITLES), draw.choice(NAMES)
    return {
        "get_weather": (
            f"What will the weather be in {city} on {day}?", f"I will look up the weather in {city} for {day}.",
            {"city": city, "day": day},
        ),
        "set_alarm": (
            f"Wake me up on {day} at {hour}.", f"I will set an alarm for {day} at {hour}.", {"day": day, "hour": hour},
        ),
        "play_song": (
            f"Play {title} with volume {hour}.", f"I will play {title} with volume {hour} for you.",
            {"title": title, "volume": hour},
        ),
        "book_table": (
            f"Book a table in {city} for {hour} people on {day}.",
            f"I will book a table in {city} for {hour} people.", {"city": city, "people": hour, "day": day},
        ),
        "find_train": (
            f"Is there a train from {city} to {other} on {day}?", f"I will find a train from {city} to {other}.",
            {"start": city, "end": other, "day": day},
        ),
        "send_note": (
            f"Send {to} a note with the title {title}.", f"I will send the note {title} to {to}.",
            {"to": to, "title": title},
        ),
    }[name]  # fmt: skip


def call_text(before: str, name: str, arguments: dict[str, Any]) -> str:
    """As the model writes it."""
    return f"{before}\n<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def tool_call(draw: random.Random) -> Chat:
    """One of two tools."""
    names = draw.sample(list(TOOLS), 2)
    name = draw.choice(names)
    question, before, arguments = request(draw, name)
    return Chat("agent", said("agent", question, call_text(before, name, arguments)).messages, offered(*names))


def tool_answer(draw: random.Random) -> Chat:
    """A call that was made, what the tool said, and the answer."""
    names = draw.sample(list(TOOLS), 2)
    place = draw.randrange(2)
    names[place] = "get_weather" if "get_weather" not in names else names[place]
    question, before, arguments = request(draw, "get_weather")
    sky, degrees = draw.choice(["sun", "rain", "snow", "clouds", "fog"]), draw.randint(1, 35)
    call = {"type": "function", "function": {"name": "get_weather", "arguments": json.dumps(arguments)}}
    return Chat(
        "agent",
        (
            {"role": "user", "content": question},
            {"role": "assistant", "content": before, "tool_calls": [call]},
            {"role": "tool", "content": json.dumps({"sky": sky, "degrees": degrees})},
            {
                "role": "assistant",
                "content": f"On {arguments['day']} there will be {sky} in {arguments['city']}, with {degrees} degrees. "
                f"If you go to {arguments['city']} on {arguments['day']}, think of the {sky}.",
            },
        ),
        offered(*names),
    )


# code-other: SQL, shell, YAML

TABLES = {
    "products": ("name", "price", "stock", "color"), "orders": ("number", "price", "day", "city"),
    "users": ("name", "age", "city", "score"), "books": ("title", "author", "year", "pages"),
}  # fmt: skip
SERVICES = ("billing", "search", "mail", "login", "images", "reports")
ENDINGS_OF_FILES = ("txt", "csv", "log", "json", "png", "md")


def sql(draw: random.Random) -> Chat:
    """A SELECT."""
    table, columns = draw.choice(list(TABLES.items()))
    (a, b), test = draw.sample(columns, 2), draw.choice(columns)
    word, sign = draw.choice([("above", ">"), ("below", "<"), ("equal to", "=")])
    n, rows = draw.randint(2, 99), draw.randint(2, 50)
    return said(
        "code-other",
        f"Write a SQL query for the {a} and {b} of {table} with {test} {word} {n}, sorted by {a}, at most {rows} rows.",
        f"```sql\nSELECT {a}, {b}\nFROM {table}\nWHERE {test} {sign} {n}\nORDER BY {a}\nLIMIT {rows};\n```",
    )


def shell(draw: random.Random) -> Chat:
    """A loop over files."""
    (verb, command), ending = draw.choice([("Copy", "cp"), ("Move", "mv")]), draw.choice(ENDINGS_OF_FILES)
    (source, target), n = draw.sample(SERVICES, 2), draw.randint(2, 99)
    return said(
        "code-other",
        f"{verb} all {ending} files from {source} to {target} in a shell script, and stop after {n} files.",
        f'```bash\ncount=0\nfor file in {source}/*.{ending}; do\n  {command} "$file" {target}/\n'
        f"  count=$((count + 1))\n  if [ $count -ge {n} ]; then break; fi\ndone\n```",
    )


def config(draw: random.Random) -> Chat:
    """A service in YAML."""
    service, port, replicas = draw.choice(SERVICES), draw.randint(20, 99) * 100, draw.randint(2, 9)
    level, city = draw.choice(["debug", "info", "error"]), draw.choice(CITIES)
    return said(
        "code-other",
        f"Write a YAML config for the {service} service in {city}: port {port}, {replicas} replicas, "
        f"log level {level}.",
        f"```yaml\nservice:\n  name: {service}\n  region: {city.lower()}\n  port: {port}\n  replicas: {replicas}\n"
        f"logging:\n  level: {level}\n  file: {service}.log\n```",
    )


KINDS: dict[str, tuple[Callable[[random.Random], Chat], ...]] = {
    "coding": (list_function, fold_function, small_class),
    "general": (story, letter, steps),
    "math": (bought_and_given, boxes, journey),
    "agent": (tool_call, tool_call, tool_answer),
    "code-other": (sql, shell, config),
}
"""Makers of each kind; one that stands twice is drawn twice as often."""
