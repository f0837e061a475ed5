package promsource

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// APIError is an answer that says no.
type APIError struct {
	Status  int    // of HTTP
	Type    string // the errorType of the API, such as "bad_data" or "timeout"; may be empty
	Message string // cut to 300 bytes
}

// Error says what the API said.
func (e *APIError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("promsource: status %d: %s %s", e.Status, e.Type, e.Message))
}

// AnswerError is an answer that cannot be understood, or that is no number of
// requests.
type AnswerError struct{ Reason string }

// Error says what is wrong.
func (e *AnswerError) Error() string { return "promsource: bad answer: " + e.Reason }

// PartialError is an answer of which something may be missing.
type PartialError struct {
	Warnings []string // of the API, five at most, cut to 300 bytes each
}

// Error holds the warnings.
func (e *PartialError) Error() string {
	return "promsource: the answer is not complete: " + strings.Join(e.Warnings, "; ")
}

func badAnswer(format string, args ...any) error {
	return &AnswerError{fmt.Sprintf(format, args...)}
}

// shorten makes a text that comes from outside fit into an error.
func shorten(s string) string {
	const most = 300
	s = strings.ToValidUTF8(strings.TrimSpace(s), "\uFFFD")
	if len(s) <= most {
		return s
	}
	end := most
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}
