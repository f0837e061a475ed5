package rule

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Percent is a share of users, exact to a thousandth of a percent. It is made
// of decimal text, never of a binary float: 99.999 is 99999 thousandths. The
// zero Percent is "no percentage given", which is not 0 %. Percents compare
// with ==.
type Percent struct {
	thousandths uint32
	set         bool
}

// hundred is 100 % in thousandths of a percent, and the number of buckets.
const hundred = 100_000

var (
	errPercentSyntax   = errors.New("not a number such as 12.5")
	errPercentOver     = errors.New("over 100")
	errPercentUnder    = errors.New("under 0")
	errPercentDecimals = errors.New("more than three decimals")
)

// ParsePercent reads a percentage between 0 and 100 with at most three decimals,
// written as JSON writes a number: "0", "12.5", "0.001", "1e1".
func ParsePercent(text string) (Percent, error) {
	p, err := parsePercent(text)
	if err != nil {
		if len(text) > 32 {
			text = text[:32] + "…"
		}
		return Percent{}, fmt.Errorf("rule: percentage %q: %w", text, err)
	}
	return p, nil
}

// MustPercent is [ParsePercent] for constants in code and tests; it panics
// where text is no percentage.
func MustPercent(text string) Percent {
	p, err := ParsePercent(text)
	if err != nil {
		panic(err)
	}
	return p
}

func parsePercent(text string) (Percent, error) {
	if text == "" || text[0] != '-' && (text[0] < '0' || text[0] > '9') || !json.Valid([]byte(text)) || strings.TrimSpace(text) != text {
		return Percent{}, errPercentSyntax
	}
	text, negative := strings.CutPrefix(text, "-")
	mantissa, exp := text, 0
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		mantissa = text[:i]
		var err error
		if exp, err = strconv.Atoi(text[i+1:]); err != nil || exp > 1<<30 || exp < -1<<30 {
			// So far away that only the sign of the exponent matters.
			exp = 1 << 30
			if text[i+1] == '-' {
				exp = -exp
			}
		}
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	exp -= len(fraction)
	digits := strings.TrimLeft(whole+fraction, "0")
	for strings.HasSuffix(digits, "0") {
		digits, exp = digits[:len(digits)-1], exp+1
	}
	// The value is now digits * 10^exp, and digits ends in no zero.
	switch {
	case digits == "":
		return Percent{set: true}, nil
	case negative:
		return Percent{}, errPercentUnder
	case len(digits)+exp > 3:
		return Percent{}, errPercentOver
	case exp < -3:
		return Percent{}, errPercentDecimals
	}
	n, err := strconv.ParseUint(digits+strings.Repeat("0", exp+3), 10, 32)
	if err != nil || n > hundred {
		return Percent{}, errPercentOver
	}
	return Percent{uint32(n), true}, nil
}

// IsSet tells whether a percentage was given, be it 0.
func (p Percent) IsSet() bool { return p.set }

// IsZero tells whether no percentage was given; encoding/json leaves the field
// out then. 0 % is a percentage that was given: for it IsZero is false.
func (p Percent) IsZero() bool { return !p.set }

// Thousandths returns the percentage in thousandths of a percent, 0 to 100000.
// A user whose [Bucket] is less is in.
func (p Percent) Thousandths() int { return int(p.thousandths) }

// String returns the percentage as decimal text without trailing zeros, such as
// "12.5", and "" where none was given.
func (p Percent) String() string {
	if !p.set {
		return ""
	}
	whole := strconv.Itoa(int(p.thousandths / 1000))
	rest := p.thousandths % 1000
	if rest == 0 {
		return whole
	}
	return whole + "." + strings.TrimRight(fmt.Sprintf("%03d", rest), "0")
}

// MarshalJSON writes a JSON number, and null where no percentage was given.
func (p Percent) MarshalJSON() ([]byte, error) {
	if !p.set {
		return []byte("null"), nil
	}
	return []byte(p.String()), nil
}

// UnmarshalJSON reads a JSON number as [ParsePercent] does. null is refused: it
// is what JavaScript writes for NaN.
func (p *Percent) UnmarshalJSON(data []byte) error {
	parsed, err := ParsePercent(string(data))
	if err != nil {
		return err
	}
	*p = parsed
	return nil
}
