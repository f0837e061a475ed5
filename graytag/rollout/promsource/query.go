package promsource

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/graylane/graylane/graytag/rollout"
)

// Queries are templates of PromQL. Each has to return an instant vector whose values
// are numbers of requests in the window that ends at the time of the query. These
// stand for:
//
//	$service   the service, as a regular expression within a quoted string: job=~"$service"; all services are .*
//	$version   the gray version, in the same way
//	$label     the label of WithServiceLabel
//	$matchers  the text of WithMatchers with a comma before it, or nothing
//	$window    how long the window is, as in increase(x[$window])
//	$quarter   a quarter of that
//	$settle    three quarters of that: "offset $settle" is the end of the first quarter
//
// A $ before anything but a letter stands for itself.
type Queries struct {
	// Requests has the labels wanted, version (the one that served) and status. A
	// version that is "stable" or empty is stable. A status is one of HTTP ("503",
	// or "5xx"), or one of gRPC by its number or name ("UNAVAILABLE", "Unavailable").
	// It must not be empty.
	Requests string
	// Latency has the labels wanted, version and le: buckets in seconds, cumulative
	// as those of Prometheus are, of the same requests. Empty leaves latencies out.
	Latency string
	// Unserved has the label wanted: requests that no instance could be found for.
	Unserved string
	// Scrapes is the number of scrapes in the window, the largest of any instance.
	// Where it is empty, nobody checks that the samples are fresh and enough.
	Scrapes string
}

const (
	seconds   = "graylane_server_duration_seconds"
	decisions = "graylane_route_decisions_total"
)

// DefaultQueries returns the queries on graylane's own metrics.
func DefaultQueries() Queries {
	const about = `$label=~"$service",wanted=~"stable|$version",status!="CANCELLED"$matchers`
	return Queries{
		Requests: "sum by (wanted, version, status) (" + grown(seconds+"_count{"+about+"}") + ")",
		Latency:  "sum by (wanted, version, le) (" + grown(seconds+"_bucket{"+about+"}") + ")",
		Unserved: "sum by (wanted) (" + grown(decisions+`{service=~"$service",wanted=~"stable|$version",outcome="unavailable"$matchers}`) + ")",
		Scrapes:  "max(count_over_time(" + seconds + `_count{$label=~"$service"$matchers}[$window]))`,
	}
}

// grown returns by how much a counter has grown in the window: the increase, and
// the first value of a counter that has begun in it. Its target was scraped in the
// first quarter, without it: it is not one that a gap had hidden. The label keeps the
// two apart until they are summed.
func grown(counter string) string {
	return "increase(" + counter + "[$window])" +
		" or label_replace(min_over_time(" + counter + "[$window])" +
		" unless " + counter + " offset $settle" +
		` and on (job, instance) last_over_time({__name__=~"up|target_info"}[$quarter] offset $settle)` +
		`, "begun", "yes", "", "")`
}

var variable = regexp.MustCompile(`\$[a-zA-Z_]+`)

var variables = map[string]bool{
	"$service": true, "$version": true, "$label": true, "$matchers": true, "$window": true, "$quarter": true, "$settle": true,
}

func checkTemplate(name, template string) error {
	for _, v := range variable.FindAllString(template, -1) {
		if !variables[v] {
			return fmt.Errorf("promsource: query %s: unknown variable %s", name, v)
		}
	}
	return nil
}

// minWindow is so that a quarter of it is a duration of PromQL.
const minWindow = 4 * time.Millisecond

// expand fills a template in.
func (c *config) expand(template string, q *rollout.Query, window time.Duration) string {
	return variable.ReplaceAllStringFunc(template, func(v string) string {
		switch v {
		case "$service":
			if q.Service == "" {
				return ".*"
			}
			return literal(q.Service)
		case "$version":
			return literal(q.Version)
		case "$label":
			return c.label
		case "$matchers":
			if c.matchers == "" {
				return ""
			}
			return "," + c.matchers
		case "$window":
			return duration(window)
		case "$quarter":
			return duration(window / 4)
		case "$settle":
			return duration(window - window/4)
		}
		return v
	})
}

func duration(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) + "ms" }

// literal is a regular expression that matches s alone, to stand within a quoted
// string.
func literal(s string) string {
	quoted := strconv.Quote(regexp.QuoteMeta(strings.ToValidUTF8(s, "\uFFFD")))
	return quoted[1 : len(quoted)-1]
}
