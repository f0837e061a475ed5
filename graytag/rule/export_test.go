package rule

// LowerComparisons bounds how many pairs of rules Lint compares; undo takes it
// back.
func LowerComparisons(n int) (undo func()) {
	before := comparisons
	comparisons = n
	return func() { comparisons = before }
}
