#!/usr/bin/env python3
"""Reference numbers for src/eval: statsmodels, scipy and numpy, none of tern's code.

usage: python3 tests/data/eval/make_statistics.py > tests/data/eval/statistics.json
needs: scipy 1.11 or later, statsmodels, numpy

paired_score: no closed form for the share of lost items here (tern's way) but a numerical maximum of
the likelihood under the restriction gained_share - lost_share = d, and a root by brentq.
bootstrap: numpy's generator and np.quantile on the same blocks, 200000 resamples, so tern's interval
(another generator, 10000 resamples) agrees within the noise of the resampling only.
"""
import json

import numpy as np
from scipy import optimize, stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.proportion import proportion_confint

Z = stats.norm.ppf(0.975)
out = {}
out["wilson"] = [[k, n, *map(float, proportion_confint(k, n, 0.05, "wilson"))]
                 for k, n in [(0, 10), (1, 10), (5, 10), (10, 10), (81, 263), (15, 148), (0, 20), (1, 29),
                              (5580, 6000), (5999, 6000)]]
out["mcnemar"] = [[b, c, float(mcnemar([[0, b], [c, 0]], exact=True).pvalue)]
                  for b, c in [(0, 1), (5, 5), (3, 12), (10, 2), (0, 9), (40, 61), (500, 430), (1, 0)]]
out["student"] = [[v, float(stats.t.ppf(0.975, v))] for v in [4, 9, 19, 39, 100, 5999]]


def paired_score(b, c, n):
    def score(d):
        def negative(lost):
            gained = lost + d
            rest = 1 - gained - lost
            if gained < 0 or lost < 0 or rest < 0: return np.inf
            return -sum(k * np.log(max(p, 1e-300)) for k, p in ((b, gained), (c, lost), (n - b - c, rest)) if k)
        low, high = max(0.0, -d), (1 - d) / 2
        lost = optimize.minimize_scalar(negative, bounds=(low, high), method="bounded",
                                        options={"xatol": 1e-13}).x
        lost = min((low, high, lost), key=negative)
        return (b - c - n * d) / np.sqrt(n * (2 * lost + d * (1 - d)))
    estimate = (b - c) / n
    tiny = 1e-9
    low = optimize.brentq(lambda d: score(d) - Z, -1 + tiny, estimate - tiny) if estimate > -1 else -1.0
    high = optimize.brentq(lambda d: score(d) + Z, estimate + tiny, 1 - tiny) if estimate < 1 else 1.0
    return [float(low), float(high)]


out["paired_score"] = [[b, c, n, *paired_score(b, c, n)]
                       for b, c, n in [(1, 0, 44), (0, 0, 370), (0, 0, 6000), (3, 12, 200), (40, 61, 1500),
                                       (9, 78, 1600), (12, 2, 30)]]

rng = np.random.default_rng(7)
cases = []
for n, kind in [(12, "loss"), (40, "loss"), (500, "loss"), (400, "paired")]:
    weight = rng.integers(100, 512, n).astype(float) if kind == "loss" else np.ones(n)
    mean = rng.gamma(4, 0.9, n) if kind == "loss" else rng.choice([-1.0, 0.0, 1.0], n, p=[0.06, 0.9, 0.04])
    sums = mean * weight
    tail = stats.norm.cdf(-np.sqrt(n / (n - 1)) * stats.t.ppf(0.975, n - 1))
    draws = rng.integers(0, n, (200000, n)) if n < 100 else None
    ratios = (sums[draws].sum(1) / weight[draws].sum(1) if draws is not None else
              np.concatenate([(lambda d: sums[d].sum(1) / weight[d].sum(1))(rng.integers(0, n, (10000, n)))
                              for _ in range(20)]))
    low, high = np.quantile(ratios, [tail, 1 - tail])
    cases.append(dict(sums=sums.tolist(), weights=weight.tolist(), ratio=float(sums.sum() / weight.sum()),
                      low=float(low), high=float(high), spread=float(ratios.std())))
out["bootstrap"] = cases

values, block = [], []
for i in range(30):
    size = int(rng.integers(20, 40))
    values += (rng.lognormal(0, 1, size) * rng.lognormal(0, 0.3)).tolist()
    block += [i] * size
values, block = np.array(values), np.array(block)
tail = stats.norm.cdf(-np.sqrt(30 / 29) * stats.t.ppf(0.975, 29))
parts = [values[block == i] for i in range(30)]
found = np.array([np.quantile(np.concatenate([parts[i] for i in rng.integers(0, 30, 30)]), [0.5, 0.99],
                              method="inverted_cdf") for _ in range(40000)])
out["quantiles"] = dict(values=values.tolist(), block_of=block.tolist(),
                        median=np.quantile(found[:, 0], [tail, 1 - tail]).tolist(),
                        p99=np.quantile(found[:, 1], [tail, 1 - tail]).tolist(),
                        value=np.quantile(values, [0.5, 0.99], method="inverted_cdf").tolist(),
                        spread=found.std(0).tolist())
print(json.dumps(out))
