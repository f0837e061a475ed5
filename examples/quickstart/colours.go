package main

import (
	"io"
	"os"
	"strings"

	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/propagation"
)

// colours marks text for a terminal, or leaves it plain.
type colours bool

// coloursFor turns colours on for a terminal, unless the user has set NO_COLOR
// (https://no-color.org).
func coloursFor(w io.Writer) colours {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" {
		return false
	}
	info, err := f.Stat()
	return colours(err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb")
}

const (
	reset  = "\x1b[0m"
	bold   = "\x1b[1m"
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
)

func (c colours) paint(code, s string) string {
	if !c {
		return s
	}
	return code + s + reset
}

func (c colours) bold(s string) string { return c.paint(bold, s) }

func (c colours) hop(h propagation.Hop, row string) string {
	switch {
	case h.Outcome == string(subset.Matched):
		return c.paint(green, row)
	case strings.HasPrefix(h.Outcome, "fallback"):
		return c.paint(yellow, row)
	case h.Outcome == string(subset.Misrouted):
		return c.paint(red, row)
	}
	return row
}
