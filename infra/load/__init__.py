"""Load on the local stack: joins over HTTP at several rates, and the evaluation of a large step."""
