package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/graylane/graylane/propagation"
)

// picture draws the way of one request, one row per call, and beneath it that of the
// work which it has left behind.
func picture(w io.Writer, c colours, title string, route, later []propagation.Hop) {
	fmt.Fprintln(w, c.bold(title))
	all := append(route[:len(route):len(route)], later...)
	for i, h := range all {
		why := h.Outcome
		if h.Wanted != h.Got {
			why += " (wanted " + h.Wanted
			if h.Reason != "" {
				why += ", " + h.Reason
			}
			why += ")"
		}
		if i >= len(route) {
			why += ", in the background"
		}
		fmt.Fprintln(w, c.hop(h, fmt.Sprintf("  %-15s  %-6s  %-18s  %s", branches(all, i)+h.Service, h.Got, h.Instance, why)))
	}
}

// branches returns the lines of the tree to the left of a call.
func branches(all []propagation.Hop, i int) string {
	var b strings.Builder
	for depth := 1; depth <= all[i].Depth; depth++ {
		more := false // whether another call of this depth comes below
		for _, h := range all[i+1:] {
			if h.Depth < depth {
				break
			}
			if h.Depth == depth {
				more = true
				break
			}
		}
		switch {
		case depth < all[i].Depth && more:
			b.WriteString("│  ")
		case depth < all[i].Depth:
			b.WriteString("   ")
		case more:
			b.WriteString("├─ ")
		default:
			b.WriteString("└─ ")
		}
	}
	return b.String()
}
