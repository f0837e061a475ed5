package rule

// Verdict says what became of one rule.
type Verdict string

// The verdicts, in the order in which they are reached.
const (
	VerdictDisabled  Verdict = "disabled"  // switched off
	VerdictService   Verdict = "service"   // not for the target of this hop
	VerdictWindow    Verdict = "window"    // before from, or not before until
	VerdictCondition Verdict = "condition" // a condition failed
	VerdictNoKey     Verdict = "no_key"    // the percentage has nothing to hash
	VerdictPercent   Verdict = "percent"   // the bucket is not under the percentage
	VerdictMatched   Verdict = "matched"
)

// Explanation says how a decision came about.
type Explanation struct {
	// Decision is what Decide returns for the same request at the same time.
	Decision Decision
	// Rules holds every rule of the set, in the order of evaluation.
	Rules []RuleExplanation
}

// RuleExplanation says what one rule makes of a request, taken by itself.
type RuleExplanation struct {
	ID      string  `json:"id"`
	Verdict Verdict `json:"verdict"`
	// Applied tells that the rule took part in the decision: it matched, and no
	// rule before it had ended the evaluation.
	Applied bool `json:"applied"`
	// Condition is the place in match of the first condition that failed, -1
	// where none did. Attr and Op are those of the condition; Value is what the
	// request holds, and Present tells whether it holds anything.
	Condition int    `json:"condition"`
	Attr      string `json:"attr,omitempty"`
	Op        Op     `json:"op,omitempty"`
	Value     string `json:"value,omitempty"`
	Present   bool   `json:"present,omitempty"`
	// Bucket is the bucket of the request, whatever the verdict; -1 where the
	// rule has no percentage or the request no key. The rule lets in the buckets
	// below Threshold, which is -1 where it has no percentage.
	Bucket    int `json:"bucket"`
	Threshold int `json:"threshold"`
	// HashBy is the attribute that the bucket was made of, HashSource where its
	// value came from.
	HashBy     string `json:"hashBy,omitempty"`
	HashSource string `json:"hashSource,omitempty"`
}

// Matched tells whether the rule, taken by itself, matches.
func (e *RuleExplanation) Matched() bool { return e.Verdict == VerdictMatched }

// explain tries every rule in order, without the index.
func (p *program) explain(r *Request) []RuleExplanation {
	v := view{p: p, r: r, cells: make([]cell, len(p.slots)), now: r.Time}
	out := make([]RuleExplanation, len(p.rules))
	ended := p.stop
	for i := range p.rules {
		rule := &p.rules[i]
		e := &out[i]
		*e = RuleExplanation{ID: rule.id, Condition: -1, Bucket: -1, Threshold: -1}
		v.explain(rule, e)
		if e.Matched() && !ended {
			e.Applied = true
			ended = len(rule.services) == 0
		}
	}
	return out
}

func (v *view) explain(rule *compiled, e *RuleExplanation) {
	if rule.percent.set {
		e.Threshold = int(rule.percent.thousandths)
		if key, ok := v.hashKey(rule); ok {
			e.HashBy, e.HashSource = key.Attr, key.Source
			e.Bucket = Bucket(rule.salt, key.Value)
		}
	}
	for i := range rule.conditions {
		c := &rule.conditions[i]
		if !v.passes(c) {
			e.Condition, e.Attr, e.Op = i, v.p.slots[c.slot].name, c.op
			e.Value, e.Present = v.value(c.slot)
			break
		}
	}
	switch {
	case !rule.enabled:
		e.Verdict = VerdictDisabled
	case !rule.applies(v.r.Service):
		e.Verdict = VerdictService
	case !rule.inForce(v.now):
		e.Verdict = VerdictWindow
	case e.Condition >= 0:
		e.Verdict = VerdictCondition
	case e.Threshold < 0 || e.Threshold == hundred:
		e.Verdict = VerdictMatched
	case e.Threshold == 0:
		e.Verdict = VerdictPercent
	case e.Bucket < 0:
		e.Verdict = VerdictNoKey
	case e.Bucket >= e.Threshold:
		e.Verdict = VerdictPercent
	default:
		e.Verdict = VerdictMatched
	}
}
