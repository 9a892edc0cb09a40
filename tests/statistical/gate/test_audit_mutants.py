"""The audit rejects every planted bug, and never the unchanged code."""

import pytest

from kanon.audit.mechanism import AFTER_CROSSINGS, AUDITED, check_table, fits_in_process, judge, probes_in_process
from kanon.gate.mechanism.parameters import Parameters, profile
from tests.statistical.gate.mutants import PROBED, ROUNDED, STATISTICAL, TABLES, copy_of_mechanism

TYPES = AUDITED | AFTER_CROSSINGS
SEED = 20_260_301
PATHS = ("vectorised", "plain")


def places(mutants):
    """Each mutant on each path its bug can live in; where both share the planted line, on the path in use.

    The plain path, which is slow and which no answer comes from, waits for `make audit` beyond 500 trials, the other
    one beyond 2,000.
    """
    return [
        pytest.param(
            mutant,
            path,
            id=f"{mutant.name}, {path}",
            marks=[pytest.mark.audit] if mutant.trials > (500 if path == "plain" else 2000) else [],
        )
        for mutant in mutants
        for path in (mutant.paths if mutant.plain or mutant.vectorised else PATHS[:1])
    ]


def rejected(mutant, path, parameters, trials):
    with mutant.planted(path) as code:
        return not judge(fits_in_process("mutant", parameters, trials, SEED, path, code)).passed


@pytest.mark.parametrize(("mutant", "path"), places(STATISTICAL))
def test_the_audit_rejects_a_wrong_law(mutant, path):
    assert rejected(mutant, path, TYPES[mutant.shape], mutant.trials)


@pytest.mark.parametrize(("mutant", "path"), places(PROBED))
def test_the_probes_find_a_wrong_window_restart_latch_or_count(mutant, path):
    with mutant.planted(path) as code:
        assert not all(check.passed for check in probes_in_process(path, TYPES[mutant.shape], code))


@pytest.mark.parametrize("shape", AUDITED)
@pytest.mark.parametrize("mutant", TABLES, ids=lambda mutant: mutant.name)
def test_the_table_check_finds_errors_too_small_for_a_sample(mutant, shape):
    with mutant.planted("plain") as code:
        assert not check_table(shape, TYPES[shape].query_law, code).passed


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", TYPES)
def test_a_copy_without_a_bug_passes_everything(shape, path):
    with copy_of_mechanism(()) as code:
        assert judge(
            fits_in_process(shape, TYPES[shape], 400, SEED, path, code),
            probes_in_process(path, TYPES[shape], code),
        ).passed
        assert check_table(shape, TYPES[shape].query_law, code).passed


@pytest.mark.parametrize("shape", TYPES)
def test_the_unchanged_mechanism_passes_at_many_seeds(shape):
    fits = [fit for seed in range(5) for fit in fits_in_process(shape, TYPES[shape], 200, seed, "vectorised")]
    assert all(fit.outcome.p_value > 1e-5 for fit in fits)
    small = sum(fit.outcome.p_value < 0.05 for fit in fits)
    assert small <= 0.2 * len(fits), "p-values must spread over the unit interval, about 5% of them below 0.05"


@pytest.mark.audit
@pytest.mark.parametrize(("mutant", "path"), places([m for m in STATISTICAL if m.shape == "two-sided"]))
def test_the_audit_rejects_a_wrong_law_of_the_published_setting(mutant, path):
    assert rejected(mutant, path, Parameters(50, 24, 3600, *profile("published", 24)), mutant.trials)


@pytest.mark.audit
@pytest.mark.parametrize("mutant", [ROUNDED], ids=lambda mutant: mutant.name)
def test_the_audit_rejects_noise_rounded_from_a_float(mutant):
    assert rejected(mutant, "vectorised", AUDITED["two-sided"], mutant.trials)
