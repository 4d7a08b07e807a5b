"""Training text for the built-in voice: sentences made from frames, everyday lines and word lists.

Nothing is copied from a book or a corpus. The frames and lines below are ours; the vocabulary comes
from SCOWL (Debian package ``scowl``; its notice is in the NOTICE file), sorted into word classes by
the teacher's own tagger and kept only where the teacher's dictionary knows the pronunciation.
Common words (SCOWL sizes 10 and 20) are drawn more often than rare ones (35), each list without
replacement, so that every word comes up before any comes up twice.

    python -m scripts.demo.text --scowl /usr/share/dict/scowl --count 14000 --out text.txt
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

HELD_OUT = Path(__file__).with_name("held_out.txt")
SIZES = (10, 20, 35)
SIZE_WEIGHTS = (0.55, 0.27, 0.18)
MAX_WORDS = 20

NAMES = """john mary anna peter tom jane sarah david emma paul lucy jack alice george helen mark
susan henry kate frank daniel laura michael julia robert sophie james linda thomas olivia martin
clara simon rachel andrew nora kevin diana steven maria patrick elena oscar grace victor ruth leo
maya ben zoe max ivy sam eric amy brian carol denise edward fiona gary hannah ian jessica karen
larry monica neil oliver pamela quentin rose scott tina ursula vincent wendy william ellen charlie
molly harry jenny luke megan ryan stella adam beth chris debbie felix gloria hugo irene joe kim
london paris england america london berlin canada china italy spain france germany india japan
texas boston chicago""".split()
PEOPLE = """man woman boy girl child teacher doctor farmer baker driver student neighbor friend
mother father sister brother uncle aunt cousin nurse artist singer writer sailor soldier lawyer
dentist waiter king queen gentleman stranger visitor captain pilot cook clerk grandmother
grandfather baby husband wife son daughter boss guest engineer plumber mechanic librarian passenger
tourist manager customer police officer carpenter gardener musician painter scientist reporter
judge coach player actor dancer butcher tailor barber cashier electrician firefighter journalist
secretary professor hairdresser photographer shopkeeper landlord roommate colleague volunteer
detective janitor receptionist veterinarian""".split()
PLACES = (
    """house garden kitchen bedroom bathroom office school church hospital library museum park
street road bridge river lake sea ocean beach island mountain hill valley forest field farm village
town city market shop store bank station airport hotel restaurant theater garage castle tower cave
desert harbor corner yard room hall cellar roof attic balcony basement bakery pharmacy cinema zoo
stadium gym pool playground parking lot subway post office supermarket cafe square factory court
cabin camp path trail highway platform gate hallway lobby elevator staircase porch driveway fence
living room waiting room gas station bus stop""".replace("parking lot", "parking_lot")
    .replace("post office", "post_office")
    .replace("living room", "living_room")
    .replace("waiting room", "waiting_room")
    .replace("gas station", "gas_station")
    .replace("bus stop", "bus_stop")
    .split()
)
THINGS = """book pen paper table chair window door lamp bed cup plate bowl spoon fork knife bottle
box bag key phone computer clock watch picture mirror hat coat shirt shoe sock dress ring ball toy
bicycle car truck bus train boat ship plane ticket letter card map camera radio pencil blanket
pillow basket bucket rope hammer nail ladder candle umbrella wallet brush towel stone stick coin
flag drum guitar piano sheet board wheel engine bell button curtain carpet sofa desk drawer shelf
kettle stove oven laptop keyboard printer screen charger battery headphones suitcase backpack jacket
sweater scarf glove boot sandal raincoat glasses necklace toothbrush soap shampoo sponge bucket
vacuum heater fan fridge freezer toaster microwave dishwasher blender sink faucet pipe tap bathtub
shower toilet doorbell lightbulb switch wire plug tire brake exhaust pedal seat helmet tent lantern
flashlight sleeping_bag rug vase painting poster calendar notebook magazine newspaper envelope stamp
package parcel violin trumpet flute cello whistle puzzle kite balloon doll robot statue fountain
bench sign ticket invoice receipt contract passport menu recipe password message email photo video
song poem story joke report homework exam lesson question answer mistake secret promise present
surprise party meeting concert wedding funeral interview appointment""".split()
FOOD = """bread butter cheese milk water coffee tea soup rice pasta meat fish chicken cake pie fruit
salad sugar salt pepper honey jam juice wine beer toast pizza chocolate lunch dinner breakfast
lemonade ice bacon cream yogurt cereal garlic ginger spinach broccoli cabbage lettuce corn popcorn
mustard vinegar oil flour dough syrup ham turkey beef pork lamb salmon tuna shrimp tofu oatmeal
porridge spaghetti noodles sausage steak gravy ketchup mayonnaise cinnamon vanilla""".split()
COUNT_FOOD = """apple orange banana lemon pear peach cherry grape potato tomato onion carrot sandwich
cookie egg mushroom bean nut strawberry blueberry raspberry pineapple melon coconut cucumber pumpkin
pancake waffle muffin biscuit donut burger taco dumpling pretzel""".split()
ANIMALS = """cat dog horse cow pig chicken duck goose bird mouse rat rabbit fox wolf bear lion tiger
elephant monkey sheep goat fish frog snake bee spider turtle whale deer owl kitten puppy rooster hen
squirrel hedgehog beaver otter seal penguin dolphin shark lobster crab butterfly mosquito ant parrot
pigeon eagle hawk swan donkey camel giraffe zebra kangaroo koala panda gorilla crocodile lizard
hamster""".split()
WEATHER = """sunny rainy cloudy windy snowy foggy cold hot warm nice cool dry stormy bad good lovely
terrible humid icy freezing mild""".split()
COLORS = "red blue green yellow black white brown gray pink purple orange silver golden".split()
ONES = """one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen seventeen eighteen nineteen""".split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
DAYS = "monday tuesday wednesday thursday friday saturday sunday".split()
MONTHS = """january february march april may june july august september october november
december""".split()
PREPOSITIONS = """in on under near behind beside above below by over around across outside inside
from through past against toward between along into onto without with""".split()
TIMES = """in the morning|in the afternoon|in the evening|at night|every day|last night|this morning
|last week|next week|next year|right now|at noon|after lunch|before dinner|all day|on DAY|in MONTH
|at HOUR o'clock|once a week|twice a day|these days|for a long time|two days ago|today|tomorrow
|yesterday|tonight|later|soon|last month|on the weekend|after work|during the holidays|at midnight
|every DAY morning|since last MONTH|until NUM thirty|for NUM minutes|for almost NUM hours|at first
|from time to time|half an hour ago|as soon as possible|before sunrise|by the end of MONTH
|in the middle of the night|on DAY evening|all weekend|in a few minutes|as usual""".split("|")
AUX = "can could will would should must might may".split()
AUX_NOT = "can't won't didn't don't couldn't shouldn't wouldn't never".split()
POSSESSIVES = "my your his her our their".split()
HAVE_VERBS = [
    "wants to",
    "has to",
    "likes to",
    "tried to",
    "decided to",
    "forgot to",
    "needs to",
    "hopes to",
    "refused to",
    "promised to",
    "started to",
    "used to",
    "would rather",
    "is going to",
    "was supposed to",
    "managed to",
    "loves to",
    "learned how to",
]
DRINKS = [
    "a cup of coffee",
    "a cup of tea",
    "a glass of water",
    "a glass of milk",
    "some juice",
    "a bottle of wine",
    "a bowl of soup",
    "a piece of cake",
    "a slice of bread",
    "some cheese",
    "a bowl of rice",
    "a pound of sugar",
    "a bag of flour",
    "a can of beans",
    "a loaf of bread",
]
GREETINGS = [
    "good morning",
    "hello",
    "good evening",
    "good night",
    "goodbye",
    "hi",
    "welcome",
    "excuse me",
    "see you soon",
    "thanks",
    "well done",
    "oh dear",
    "no problem",
    "wait",
    "congratulations",
    "happy birthday",
    "listen",
    "of course",
    "i am sorry",
]

# Whole sentences people say; upper case words are slots (see Grammar.fill).
LINES = """how are you today?|what time is it?|i don't know.|nice to meet you.|see you later.
|what is your name?|where are you from?|how much does it cost?|can you help me, please?|i am hungry.
|that sounds great.|let me think about it.|it doesn't matter.|what happened?|be careful!|hurry up!
|i have no idea.|could you repeat that, please?|it's my turn.|never mind.|take your time.|come in.
|have a nice day.|i'm looking forward to it.|what do you mean?|that's not fair.|keep going.|stop it!
|how was your weekend?|i'll be right back.|could you turn off the lights?|you are welcome.|go ahead.
|please sit down.|don't worry about it.|i am sorry for being late.|who is there?|let's go home.
|what would you like for dinner?|the phone is ringing.|i need a new pair of shoes.|did you sleep well?
|my back hurts.|i lost my keys.|the bus is late again.|where is the bathroom?|i can't find my glasses.
|is it going to rain tomorrow?|we are running out of milk.|this chair is not comfortable.
|turn left at the traffic lights.|the elevator is out of order.|there is nothing to worry about.
|would you like some more tea?|i have a headache.|the water is too cold to swim in.|it's up to you.
|he is taller than his father.|she speaks three languages.|my favorite color is COLOR.|i love you.
|please close the PLACE door.|the meeting was moved to DAY.|my birthday is in MONTH.|good luck!
|we are having FOOD and FOOD for dinner.|he lives on the NTH floor.|i was born in MONTH.
|could you pass the FOOD, please?|there are NUM students in my class.|the train leaves at NUM fifteen.
|i ordered the FOOD with FOOD, but they brought me FOOD.|that will be NUM dollars and NUM cents.
|the doctor told me to drink more water and get some rest.|she has been waiting for NUM hours.
|i would like to make an appointment for DAY, please.|the store is closed on DAY and DAY.
|my phone battery is almost empty.|can i try this on?|do you accept credit cards?|keep the change.
|the internet is not working.|please leave a message after the tone.|i'm afraid we are fully booked.
|we should leave before the traffic gets worse.|the weather forecast says it will be WEATHER.
|he broke his arm while he was climbing a tree.|do you want to go for a walk?|smells good.
|if you have any questions, please call me.|it was raining so hard that we stayed at home.
|i usually get up at HOUR o'clock and have FOOD for breakfast.|there is a PLACE across the street.
|NAME and NAME are getting married in MONTH.|my PERSON is NUM years old.|who wants FOOD?
|the quick brown fox jumps over the lazy dog.|practice makes perfect.|better late than never.
|first, mix the FOOD with the FOOD, then add NUM spoons of FOOD.|put the FOOD in the oven.
|the flight to NAME was delayed because of bad weather.|how far is it to the PLACE?
|i saw a ANIMAL and NUM ANIMALS in the PLACE.|don't forget to feed the ANIMAL.|watch out!
|she went to the PLACE to buy FOOD, FOOD and NUM COUNTFOODS.|what are you doing?|who cares?
|the nearest PLACE is about NUM minutes from here.|you should see a doctor.|i agree with you.
|we moved here NUM years ago.|he used to play football every DAY.|they won the game NUM to NUM.
|would you mind opening the window?|this is the best FOOD i have ever eaten.|what a beautiful day!
|excuse me, is this the way to the PLACE?|i think i left my THING in the PLACE.|that's enough.
|the children are playing in the PLACE.|someone stole my THING yesterday.|call me when you get home.
|on the other hand, nobody really knew the truth.|as far as i know, the PLACE opens at HOUR.
|according to the PERSON, there was nothing wrong with the THING.|sooner or later you will understand.
|he was so tired that he fell asleep on the THING.|my PERSON taught me how to fix a THING.
|the more you practice, the easier it becomes.|she is not only smart but also very kind.
|i would have called you, but i lost my phone.|what kind of THING are you looking for?
|whose THING is this?|which THING do you prefer?|the old THING in the PLACE needs to be repaired.
|everybody laughed at his joke.|nothing ever changes.|something smells strange in the PLACE.
|my PERSON works at the PLACE.|she works as a PERSON.|he wants to become a PERSON.|it costs NUM dollars.
|their new THING is bigger than ours.|i bought NUM THINGS for NUM dollars.|it's time to go to bed.
|after dinner we played cards and listened to the radio.|please be quiet, the baby is sleeping.
|the road was blocked by a fallen tree.|the police officer asked him a few questions.
|the concert starts at HOUR, so we should leave early.|we had to wait in line for NUM minutes.
|she poured the FOOD into a glass and drank it slowly.|i heard a loud noise outside the window.
|when i was young, we spent every summer at the lake.|he always takes the bus to work.
|the waiter brought us the wrong order.|how long have you been living in NAME?""".replace(
    "\n", ""
).split("|")


class Bag:
    """Draws items in random order; nothing comes twice before everything came once."""

    def __init__(self, items: Iterable[str], rng: random.Random) -> None:
        self._items = sorted(set(items))
        self._rng = rng
        self._left: list[str] = []

    def draw(self) -> str:
        """The next item, underscores as spaces."""
        if not self._left:
            self._left = self._items[:]
            self._rng.shuffle(self._left)
        return self._left.pop().replace("_", " ")

    def __len__(self) -> int:
        return len(self._items)


class Lexicon:
    """SCOWL's words by class (Penn tags) and size, as far as the teacher knows how to say them."""

    def __init__(self, scowl: Path, rng: random.Random) -> None:
        from hibari.g2p import G2P

        g2p = G2P()
        classes: dict[tuple[str, int], list[str]] = {}
        seen: set[str] = set()
        for size in SIZES:
            for spelling in ("english", "american"):
                path = scowl / f"{spelling}-words.{size}"
                for word in path.read_text(encoding="latin1").split():
                    if not re.fullmatch("[a-z]{2,13}", word) or word in seen:
                        continue
                    seen.add(word)
                    if not g2p.lexicon.is_known(word, "NN"):
                        continue
                    classes.setdefault((g2p.tagger([word])[0], size), []).append(word)
        self._rng = rng
        self._bags = {key: Bag(words, rng) for key, words in classes.items() if len(words) > 20}
        self.words = [word for words in classes.values() for word in words]

    def draw(self, *tags: str) -> str:
        """A word of one of these classes, common ones more often."""
        keys = [(tag, size) for size in SIZES for tag in tags if (tag, size) in self._bags]
        size = self._rng.choices(SIZES, SIZE_WEIGHTS)[0]
        keys = [key for key in keys if key[1] == size] or keys
        key = self._rng.choices(keys, [len(self._bags[key]) for key in keys])[0]
        return self._bags[key].draw()


class Grammar:
    """Makes sentences."""

    def __init__(self, lexicon: Lexicon, rng: random.Random) -> None:
        self._lexicon = lexicon
        self._rng = rng
        self._bags = {
            name: Bag(items, rng)
            for name, items in {
                "NAME": NAMES,
                "PERSON": PEOPLE,
                "PLACE": PLACES,
                "THING": THINGS,
                "FOOD": FOOD,
                "COUNTFOOD": COUNT_FOOD,
                "ANIMAL": ANIMALS,
                "WEATHER": WEATHER,
                "COLOR": COLORS,
                "DAY": DAYS,
                "MONTH": MONTHS,
                "HOUR": ONES[:12],
                "TIME": TIMES,
                "DRINK": DRINKS,
                "GREETING": GREETINGS,
                "PREP": PREPOSITIONS,
                "LINE": LINES,
            }.items()
        }

    def _chance(self, probability: float) -> bool:
        return self._rng.random() < probability

    def _pick(self, *items: str) -> str:
        return self._rng.choice(items)

    def _own(self, name: str) -> str:
        return self.fill(self._bags[name].draw())

    def number(self) -> str:
        """A number in words."""
        rng = self._rng
        kind = rng.random()
        if kind < 0.5:
            return rng.choice(ONES)
        tens = rng.choice(TENS) + (" " + rng.choice(ONES[:9]) if rng.random() < 0.6 else "")
        if kind < 0.88:
            return tens
        return rng.choice(ONES[:9]) + rng.choice([" hundred", " thousand", f" hundred and {tens}"])

    def ordinal(self) -> str:
        """first, second, ..."""
        return self._pick(
            "first",
            "second",
            "third",
            "fourth",
            "fifth",
            "sixth",
            "seventh",
            "eighth",
            "ninth",
            "tenth",
            "eleventh",
            "twelfth",
            "twentieth",
        )

    def fill(self, line: str) -> str:
        """Replace the slots of a line."""

        def slot(match: re.Match[str]) -> str:
            name = match.group()
            if name == "NUM":
                return self.number()
            if name == "NTH":
                return self.ordinal()
            if name in self._bags:
                return self._bags[name].draw()
            if name.endswith("S") and name[:-1] in self._bags:
                return plural(self._bags[name[:-1]].draw())
            return name

        return re.sub(r"[A-Z]{3,}", slot, line)

    # -- parts of a sentence -------------------------------------------------------------------
    def noun(self) -> str:
        """A noun, half of them everyday ones."""
        if self._chance(0.5):
            return self._lexicon.draw("NN")
        return self._own(
            self._rng.choices(["THING", "PERSON", "PLACE", "ANIMAL", "COUNTFOOD"], [5, 3, 2, 1, 1])[
                0
            ]
        )

    def nouns(self) -> str:
        """A plural."""
        return self._lexicon.draw("NNS") if self._chance(0.6) else plural(self._own("THING"))

    def adjective(self) -> str:
        """An adjective or a color."""
        return self._own("COLOR") if self._chance(0.07) else self._lexicon.draw("JJ")

    def adverb(self) -> str:
        """An adverb."""
        return self._lexicon.draw("RB")

    def object(self) -> str:
        """What something is done to."""
        kind = self._rng.random()
        if kind < 0.25:
            return "the " + self.noun()
        if kind < 0.42:
            return f"the {self.adjective()} {self.noun()}"
        if kind < 0.52:
            return article(self.noun())
        if kind < 0.64:
            return article(f"{self.adjective()} {self.noun()}")
        if kind < 0.74:
            return f"{self._pick(*POSSESSIVES)} {self.noun()}"
        if kind < 0.80:
            return f"{self._pick(*POSSESSIVES)} {self.adjective()} {self.noun()}"
        if kind < 0.86:
            return f"{self.number()} {self.nouns()}"
        if kind < 0.91:
            return f"{self._pick('some', 'many', 'those', 'these', 'all the', 'several')} {self.nouns()}"
        if kind < 0.95:
            return f"the {self.noun()} of the {self.noun()}"
        return self._pick("some ", "") + self._own("FOOD")

    def subject(self) -> str:
        """Third person."""
        kind = self._rng.random()
        if kind < 0.30:
            return self._pick("he", "she", "it", "nobody", "someone", "everybody")
        if kind < 0.50:
            return "the " + self._own("PERSON")
        if kind < 0.62:
            return f"{self._pick(*POSSESSIVES)} {self._own('PERSON')}"
        if kind < 0.74:
            return self._own("NAME")
        if kind < 0.88:
            return "the " + self.noun()
        return f"the {self.adjective()} {self.noun()}"

    def we(self) -> str:
        """Who takes the plain verb."""
        if self._chance(0.75):
            return self._pick("i", "we", "they", "you")
        return f"{self._pick('the', 'my', 'our')} {self.nouns()}"

    def where(self) -> str:
        """Preposition and place."""
        adjective = self.adjective() + " " if self._chance(0.25) else ""
        return f"{self._own('PREP')} the {adjective}{self._own('PLACE')}"

    def past(self) -> str:
        """A past tense or participle."""
        return self._lexicon.draw("VBD", "VBN")

    def base(self) -> str:
        """A plain verb."""
        return self._lexicon.draw("VB", "VBP")

    def going(self) -> str:
        """An -ing form."""
        return self._lexicon.draw("VBG")

    def third(self) -> str:
        """A verb with -s."""
        return self._lexicon.draw("VBZ")

    def tail(self, probability: float = 0.35) -> str:
        """Where, when or how, or nothing."""
        if not self._chance(probability):
            return ""
        return self._pick(self.where(), self._own("TIME"), self.adverb())

    # -- clauses and sentences -----------------------------------------------------------------
    def clause(self) -> str:
        """A statement without its stop."""
        pick, own = self._pick, self._own
        forms: Sequence[Callable[[], str]] = (
            lambda: f"{self.subject()} {self.past()} {self.object()} {self.tail()}",
            lambda: f"{self.subject()} {self.past()} {self.where()} {self.tail(0.2)}",
            lambda: f"{self.subject()} {self.third()} {self.object()} {self.tail()}",
            lambda: (
                f"{self.we()} {pick(*AUX, *AUX_NOT)} {self.base()} {self.object()} {self.tail()}"
            ),
            lambda: f"{self.we()} {self.base()} {self.object()} {self.tail()}",
            lambda: f"{self.subject()} {pick(*HAVE_VERBS)} {self.base()} {self.object()}",
            lambda: (
                f"{self.subject()} {pick('is', 'was')} {self.going()} {self.object()} {self.tail()}"
            ),
            lambda: (
                f"{self.we()} {pick('are', 'were', 'have been', 'kept')} {self.going()} {self.where()}"
            ),
            lambda: (
                f"the {self.noun()} {pick('is', 'was', 'looks', 'seemed', 'became')} "
                f"{pick('very ', 'too ', 'so ', 'quite ', 'rather ', '', '', '')}{self.adjective()}"
            ),
            lambda: (
                f"the {self.nouns()} {pick('are', 'were')} {self.adjective()} and {self.adjective()}"
            ),
            lambda: (
                f"there {pick('is', 'was')} {article(self.adjective() + ' ' + self.noun())} {self.where()}"
            ),
            lambda: f"there {pick('are', 'were')} {self.number()} {self.nouns()} {self.where()}",
            lambda: f"the {self.noun()} was {self.past()} by the {self.noun()} {self.tail(0.2)}",
            lambda: f"the {self.nouns()} have been {self.past()} {self.tail()}",
            lambda: f"it {pick('is', 'was')} {self.adjective()} to {self.base()} {self.object()}",
            lambda: f"{self.subject()} bought {own('DRINK')} and {article(own('COUNTFOOD'))}",
            lambda: (
                f"{self.subject()} is {pick('more', 'less')} {self.adjective()} than {self.object()}"
            ),
            lambda: f"{self.we()} need {self.number()} {self.nouns()} for the {self.noun()}",
        )
        return self._rng.choice(forms)()

    def question(self) -> str:
        """With its question mark."""
        pick = self._pick
        forms: Sequence[Callable[[], str]] = (
            lambda: f"do you {self.base()} {self.object()}",
            lambda: f"did {self.subject()} {self.base()} {self.object()} {self.tail()}",
            lambda: f"where {pick('is', 'was')} {self.object()}",
            lambda: f"why {pick('is', 'was')} the {self.noun()} so {self.adjective()}",
            lambda: f"how many {self.nouns()} did {self.subject()} {self.base()}",
            lambda: (
                f"{pick('can', 'could', 'would', 'will', 'should')} "
                f"{pick('you', 'i', 'we')} {self.base()} {self.object()}"
            ),
            lambda: f"who {self.past()} {self.object()}",
            lambda: f"what did {self.subject()} {self.base()} {self.tail()}",
            lambda: f"is the {self.noun()} {self.adjective()} or {self.adjective()}",
            lambda: f"have you ever {self.past()} {self.object()}",
            lambda: f"when will {self.subject()} {self.base()} {self.object()}",
            lambda: f"which {self.noun()} is {self.adjective()}",
        )
        return self._rng.choice(forms)() + "?"

    def joined(self) -> str:
        """Two clauses, for the long sentences."""
        pick = self._pick
        one, two = self.clause(), self.clause()
        forms: Sequence[Callable[[], str]] = (
            lambda: f"{one}, {pick('and', 'but', 'so', 'because', 'although')} {two}",
            lambda: (
                f"{one} {pick('because', 'while', 'when', 'until', 'before', 'after', 'and')} {two}"
            ),
            lambda: (
                f"{pick('when', 'if', 'although', 'because', 'before', 'after', 'since')} {one}, {two}"
            ),
            lambda: f"{self._own('TIME')}, {two}",
            lambda: (
                f"{pick('he said that', 'i think', 'we hope that', 'she told me that', 'i know')} {two}"
            ),
            lambda: f"the {self.noun()} that {one} {pick('is', 'was')} {self.adjective()}",
            lambda: f"{one} with {self.object()} and {self.object()}",
        )
        return self._rng.choice(forms)()

    def order(self) -> str:
        """An order, a wish or an exclamation."""
        pick = self._pick
        forms: Sequence[Callable[[], str]] = (
            lambda: (
                f"{pick('please ', '', 'never ', 'always ')}{self.base()} {self.object()} {self.tail()}"
            ),
            lambda: f"don't {self.base()} {self.object()}",
            lambda: f"let's {self.base()} {self.object()} {self.tail()}",
            lambda: f"{self._own('GREETING')}, {pick(self._own('NAME'), self.clause())}",
            lambda: f"what {article(self.adjective() + ' ' + self.noun())}",
            lambda: (
                f"thank you for {pick('the ' + self.noun(), self.going() + ' ' + self.object())}"
            ),
        )
        return self._rng.choice(forms)() + pick(".", ".", ".", "!")

    def words(self) -> str:
        """A few words without grammar: the cheapest way to hear many of them."""
        tags = ("NN", "NNS", "JJ", "RB", "VB", "VBD", "VBN", "VBG", "VBZ", "VBP")
        chosen = [self._lexicon.draw(*tags) for _ in range(self._rng.randint(1, 6))]
        if len(chosen) > 2 and self._chance(0.5):
            return ", ".join(chosen) + "."
        return " ".join(chosen) + self._pick(".", ".", ".", "?")

    def sentence(self) -> str:
        """Any of them, at most MAX_WORDS long."""
        while True:
            kind = self._rng.random()
            if kind < 0.14:
                text = self._own("LINE")
            elif kind < 0.38:
                text = self.clause() + "."
            elif kind < 0.64:
                text = self.joined() + "."
            elif kind < 0.77:
                text = self.question()
            elif kind < 0.87:
                text = self.order()
            else:
                text = self.words()
            text = re.sub(r"\s+([.,?!])", r"\1", re.sub(r"\s+", " ", text)).strip()
            if len(text.split()) <= MAX_WORDS:
                return text


def plural(noun: str) -> str:
    """Plural of one of our own nouns."""
    irregular = {
        "man": "men",
        "woman": "women",
        "child": "children",
        "mouse": "mice",
        "goose": "geese",
        "fish": "fish",
        "sheep": "sheep",
        "deer": "deer",
        "wolf": "wolves",
        "knife": "knives",
        "shelf": "shelves",
        "wife": "wives",
        "glasses": "glasses",
        "headphones": "headphones",
    }
    if noun in irregular:
        return irregular[noun]
    if re.search(r"(s|x|ch|sh|z)$", noun) or noun in ("potato", "tomato"):
        return noun + "es"
    if re.search(r"[^aeiou]y$", noun):
        return noun[:-1] + "ies"
    return noun + "s"


def article(phrase: str) -> str:
    """The phrase with "a" or "an"."""
    return ("an " if phrase[0] in "aeiou" else "a ") + phrase


def bare(text: str) -> str:
    """What is compared to keep the held-out sentences out."""
    return re.sub(r"[^a-z ]", "", text.lower()).strip()


def make_text(scowl: Path, count: int, seed: int = 0) -> list[str]:
    """``count`` different lower-case sentences, none of them a held-out one."""
    rng = random.Random(seed)
    grammar = Grammar(Lexicon(scowl, rng), rng)
    seen = {bare(line) for line in HELD_OUT.read_text().splitlines()}
    lines: list[str] = []
    while len(lines) < count:
        text = grammar.sentence()
        if bare(text) not in seen:
            seen.add(bare(text))
            lines.append(text)
    return lines


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scowl", type=Path, default=Path("/usr/share/dict/scowl"))
    parser.add_argument("--count", type=int, default=14000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    lines = make_text(arguments.scowl, arguments.count, arguments.seed)
    arguments.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
