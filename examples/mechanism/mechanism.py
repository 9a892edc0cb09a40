"""The mechanism of kanon in a program of your own, without clock, tables and AWS.

It prints: true from step 11 on, for 29 of 40 steps
"""

from kanon.gate.mechanism.above_threshold import SetState, evaluate, is_above
from kanon.gate.mechanism.parameters import Parameters, profile
from kanon.gate.mechanism.searches import Searches
from kanon.gate.mechanism.tape import Noise, Tapes
from kanon.noise.words import NoiseKey

WINDOW = 24  # steps that a client counts for
threshold_noise, query_noise = profile("published", WINDOW)
parameters = Parameters(50, WINDOW, 3600, threshold_noise, query_noise)

# The noise is a function of this key, the set and the step. Keep the key secret, and use it for one log only.
tapes = Tapes(NoiseKey("1", bytes(32)), "my deployment", "pages", parameters)
set_key = bytes(range(32))  # a keyed hash of your value
searches = Searches.of(parameters, set_key)

state, answers = SetState(), []
for step in range(470_000, 470_040):
    joined = range(5 * (step - 470_000)) if step < 470_030 else ()  # five clients more in each step, then silence
    state = evaluate(parameters, set_key, state, joined, step, lambda instance: Noise(tapes, set_key, instance))
    answers.append(is_above(searches, state.crossings, step, step))

print(f"true from step {answers.index(True)} on, for {answers.count(True)} of {len(answers)} steps")
