package rollout

import "math"

// FisherGreater returns the probability that gray has errors or more, of n
// requests, by chance alone, where gray fails no more often than stable, which had
// stableErrors of stableN: the one-sided exact test of Fisher, R's fisher.test(…,
// alternative = "greater"). A small value is a credible difference. It is exact
// for few errors, where approximations by a normal distribution are not, and
// errs, if at all, to the safe side: its true level is below the nominal one.
//
// It is 1 where there is nothing to compare. Counts above 10^12 are halved until they
// are not, so that it takes some milliseconds at most.
func FisherGreater(errors, n, stableErrors, stableN uint64) float64 {
	if n == 0 || stableN == 0 || errors > n || stableErrors > stableN {
		return 1
	}
	for max(n, stableN) > maxCount {
		errors, n, stableErrors, stableN = errors/2, n/2, stableErrors/2, stableN/2
	}
	if n == 0 || stableN == 0 {
		return 1
	}
	// Given the sum of errors, those of gray are hypergeometric.
	drawn, all := float64(errors+stableErrors), float64(n)+float64(stableN)
	low := math.Max(0, drawn-float64(stableN))
	high := math.Min(drawn, float64(n))
	x := float64(errors)
	if x <= low {
		return 1
	}
	// Of the two tails, sum the one that is away from the mean: its terms fall.
	if x > drawn*float64(n)/all {
		return math.Min(1, tail(x, high, 1, float64(n), float64(stableN), drawn))
	}
	return math.Max(0, 1-tail(x-1, low, -1, float64(n), float64(stableN), drawn))
}

// maxCount is where the logarithms of factorials begin to lose the answer.
const maxCount = 1_000_000_000_000

// tail sums the probabilities of k, k+step, …, end, which fall.
func tail(k, end, step, n, m, drawn float64) float64 {
	p := math.Exp(choose(n, k) + choose(m, drawn-k) - choose(n+m, drawn))
	sum := p
	for k != end {
		if step > 0 {
			p *= (n - k) * (drawn - k) / ((k + 1) * (m - drawn + k + 1))
		} else {
			p *= k * (m - drawn + k) / ((n - k + 1) * (drawn - k + 1))
		}
		k += step
		sum += p
		if p <= sum*1e-17 {
			break
		}
	}
	return sum
}

// choose is the logarithm of a binomial coefficient.
func choose(n, k float64) float64 {
	a, _ := math.Lgamma(n + 1)
	b, _ := math.Lgamma(k + 1)
	c, _ := math.Lgamma(n - k + 1)
	return a - b - c
}
