// Package promsource reads how requests went from Prometheus, or from anything else
// with its query API (/api/v1/query), such as Thanos or Mimir.
//
//	src, err := promsource.New("http://prometheus:9090")
//
// It is a [rollout.Source]. Where one gateway sees all requests, and runs the
// rollout, a [rollout.Recorder] needs no Prometheus.
//
// # What it asks for
//
// The instances of a service tell by the metric graylane.server.duration which
// version was wanted, which one served, and how it ended; they need a MeterProvider
// and WithSelf on the middleware. Their clients tell by graylane.route.decisions what
// nobody served. All instances are added up. A request whose client hung up is left
// out. [DefaultQueries] holds the queries; [WithQueries] replaces them.
//
// The queries are tested with Prometheus 2.42. VictoriaMetrics counts the beginning of a
// counter in increase() already, so that it would count twice: put
// increase_prometheus in place of it.
//
// Names are those that the Prometheus exporter of OpenTelemetry makes of them:
// graylane_server_duration_seconds_bucket, graylane_route_decisions_total. Where it is
// told to make others, replace the queries.
//
// # Which service
//
// The metric of the server does not name the service: Prometheus does, by the label
// job of what it scrapes. Where another label holds the name that graylane uses, say
// so: [WithServiceLabel] of "service_name", where the exporter is told to put
// service.name there (WithResourceAsConstantLabels, as examples/observability does), or
// "app". Under another name there is no traffic: plans stay where they are. With one
// Prometheus for several environments, [WithMatchers] keeps the others out.
//
// A label of the target that has the name of one of ours displaces it:
// version becomes exported_version, service becomes exported_service. The Prometheus
// operator adds service to all targets of a ServiceMonitor. Set honor_labels
// (honorLabels), or replace the queries.
//
// # Windows and scrapes
//
// What happened is known at the next scrape, and increase() estimates what lies
// between the edges of a window and the first and last scrape in it: of n scrapes
// it makes up to n/(n-1) times what it saw. A window should be four scrapes long at
// least, better twenty: 5 minutes at a scrape each 15 s. One with fewer than two
// scrapes is refused, and so is one whose newer half has none.
//
// A counter that begins within a window, such as that of the first error there ever
// was, has no value before it to be compared with, and increase() does not see how it
// came to its first one. The default queries add that value where the target was
// scraped in the first quarter of the window and did not have the counter then.
//
// # What it does not see
//
// Nothing that an instance has not lived to tell: what it counted after the last
// scrape before it died, and requests that it died of. A [rollout.Recorder] in the
// gateway sees those.
//
// An instance that cannot be scraped is left out; the others are judged. Where the
// label job names the service, this makes a window inconclusive in which any target
// of the service was down, at the price that none is judged while instances come:
//
//	q := promsource.DefaultQueries()
//	q.Scrapes += ` and on () min(min_over_time(up{$label=~"$service"$matchers}[$window])) == 1`
//
// # Faults
//
// An API that does not answer in time, says no, or sends what cannot be
// understood is an error, which makes the analysis inconclusive; so are NaN and
// answers with warnings, of which a part is missing. No series at all are no samples.
//
// # Security
//
// The names of services and versions are quoted. The text of [WithMatchers] and
// [WithQueries] is not: it is code. Answers are bounded by [MaxAnswerBytes] and
// [MaxSeries]. Tokens and headers are sent to the host of the URL alone, over what that URL
// says: use https where the network is not trusted. Errors name its scheme and host and
// nothing else of it.
package promsource
