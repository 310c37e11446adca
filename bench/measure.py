"""Interleaved rounds: in each, every software runs every case of the group once, and so does the limit."""

import statistics
import time
from dataclasses import dataclass, field

from native import NativeError, Problem
from software import Unsupported

# Largest error against float64, relative to the largest value of the sampled rows, that is still the right answer.
TOLERANCE = {("f32", False): 1e-4, ("f32", True): 5e-4, ("bf16", False): 2e-2, ("bf16", True): 5e-2}

SHORTEST = 0.03  # seconds of one timing, by repetition where a call is shorter
SETTLE = 0.02  # seconds for the threads of the software before to stop spinning


@dataclass
class Result:
    case: object
    software: str
    version: str
    status: str = "ok"  # or why there are no figures
    error: float = float("nan")
    iterations: int = 0
    seconds: list = field(default_factory=list)  # of one call, one entry a round
    limits: list = field(default_factory=list)  # GFLOP/s or GB/s that the machine gave in the same rounds
    note: str = ""

    @property
    def ok(self):
        return self.status == "ok"

    @property
    def median(self):
        return statistics.median(self.seconds)

    @property
    def rate(self):
        """GFLOP/s, or GB/s of keys and values where memory is the limit."""
        return self._amount / self.median

    @property
    def limit_rate(self):
        return statistics.median(self.limits)

    @property
    def percent(self):
        """Of the limit: the median over the rounds, each against the limit of its own round."""
        return 100 * statistics.median(
            self._amount / seconds / limit for seconds, limit in zip(self.seconds, self.limits)
        )

    @property
    def _amount(self):
        return 1e-9 * (self.case.kv_bytes if self.case.limit == "read" else self.case.flops)

    def times_as_fast_as(self, other):
        """The median over the rounds of other's time over ours: what drifts between rounds cancels."""
        return statistics.median(theirs / ours for theirs, ours in zip(other.seconds, self.seconds))


@dataclass
class Contestant:
    result: Result
    runner: object


def copies_for(case, last_level_cache):
    """Decoding goes through memory: as many caches in turn as exceed the CPU's own four times."""
    return max(1, -(-int(4 * last_level_cache) // int(case.kv_bytes))) if case.limit == "read" else 1


def prepare(software, problem):
    """A Contestant whose first result has been checked, or a Result that says why not."""
    result = Result(problem.case, software.name, software.version)
    try:
        runner = software.prepare(problem)
        if software.name == "heed":
            result.note = problem.kernel()
        runner.run(1)
        result.error = runner.error()
    except Unsupported as reason:
        result.status = f"not supported: {reason}"
    except NativeError as reason:
        result.status = f"failed: {reason}"
    except Exception as reason:  # other software fails in its own ways, and its failure is a finding
        result.status = f"failed: {type(reason).__name__}: {str(reason).splitlines()[0][:120]}"
    else:
        tolerance = TOLERANCE[problem.case.dtype, problem.case.backward]
        if not result.error <= tolerance:
            result.status = f"WRONG RESULT, not timed: error {result.error:.1e} exceeds {tolerance:.0e}"
            return Contestant(result, None)
        return Contestant(result, runner)
    return Contestant(result, None)


def calibrate(contestant, slowest):
    """Repetitions for a timing of at least SHORTEST; a case whose one call exceeds `slowest` seconds is not timed."""
    seconds = contestant.runner.run(1)
    if seconds > slowest:
        contestant.result.status = f"too slow to repeat: {seconds:.1f} s a call"
        contestant.runner = None
        return
    iterations = 1
    while seconds < SHORTEST:
        per_call = seconds / iterations
        iterations = min(int(1.2 * SHORTEST / per_call) + 1, 10 * iterations)
        seconds = contestant.runner.run(iterations)
    contestant.result.iterations = iterations


class Limit:
    """The machine's own rate for a case, taken in every round like a software's time."""

    def __init__(self, session, problem):
        self.session, self.problem = session, problem
        self.rates = []  # one a round

    def measure(self):
        case = self.problem.case
        if case.limit == "read":
            iterations = max(1, int(SHORTEST * 20e9 / case.kv_bytes))
            self.rates.append(case.kv_bytes * iterations / self.problem.run("read", iterations) * 1e-9)
        else:
            self.rates.append(self.session.library.peak_gflops(case.dtype, self.session.threads))

def measure_group(cases, softwares, session, rounds, slowest):
    """Results of every case and software of one group."""
    problems = []
    try:
        for case in cases:
            problems.append(Problem(session, case, copies_for(case, session.library.last_level_cache)))
        contestants = [prepare(software, problem) for problem in problems for software in softwares]
        running = [contestant for contestant in contestants if contestant.runner]
        for contestant in running:
            time.sleep(SETTLE)
            calibrate(contestant, slowest)
        running = [contestant for contestant in running if contestant.runner]
        limit = Limit(session, problems[0])
        for turn in range(rounds if running else 0):
            time.sleep(SETTLE)
            limit.measure()
            # A different one first in every round: none always follows the same neighbour.
            first = turn % len(running)
            for contestant in running[first:] + running[:first]:
                time.sleep(SETTLE)
                result = contestant.result
                if result.iterations > 1:
                    contestant.runner.run(1)  # wake its threads
                result.seconds.append(contestant.runner.run(result.iterations) / result.iterations)
        for contestant in running:
            contestant.result.limits = limit.rates
        return [contestant.result for contestant in contestants]
    except NativeError as reason:
        # The inputs themselves: no memory, or heed's forward pass, which a backward pass starts from.
        return [Result(case, s.name, s.version, f"failed: {reason}") for case in cases for s in softwares]
    finally:
        for problem in problems:
            problem.close()
