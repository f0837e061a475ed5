package propagation

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/telemetry"
)

// InternalHost tells whether host, with or without a port, is one to which
// tags go by default: a loopback or private literal address (RFC 1918, RFC
// 4193), a single-label name, or a name under .local, .internal, .svc or
// .cluster.local. Tags carry user data; all other hosts need leave, and so does
// what is no host name of letters, digits, hyphens and underscores: what others
// make of it before they dial, IDNA's further dots for example, is theirs to know.
func InternalHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.IndexByte(host, '%') < 0 { // in a zone a dot is a character like any other (RFC 4007, section 11.2)
		host = strings.TrimSuffix(host, ".")
	}
	if strings.IndexByte(host, ':') >= 0 || host != "" && host[0] >= '0' && host[0] <= '9' {
		if addr, err := netip.ParseAddr(host); err == nil {
			addr = addr.Unmap()
			return addr.IsLoopback() || addr.IsPrivate()
		}
	}
	start := 0 // of the last label
	for i := 0; i < len(host); i++ {
		switch c := host[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_':
		case c == '.' && i > start:
			start = i + 1
		default:
			return false
		}
	}
	last := host[start:]
	if last == "" || isNumber(last) {
		return false
	}
	if start == 0 {
		return true
	}
	switch len(last) {
	case len("svc"):
		return strings.EqualFold(last, "svc")
	case len("local"):
		return strings.EqualFold(last, "local") // .cluster.local too
	case len("internal"):
		return strings.EqualFold(last, "internal")
	}
	return false
}

// isNumber tells whether a last label makes the whole host an address in the
// eyes of some resolvers: of digits, or hexadecimal (inet_aton, and the URL
// Standard of WHATWG, section 3.5).
func isNumber(label string) bool {
	if label[0] < '0' || label[0] > '9' {
		return false
	}
	digits := "0123456789"
	if len(label) > 1 && label[0] == '0' && label[1]|0x20 == 'x' {
		label, digits = label[2:], "0123456789abcdefABCDEF"
	}
	return strings.Trim(label, digits) == ""
}

// OutboundScope decides towards which hosts tags go, and keeps them from the
// others. It is safe for concurrent use. Client middleware holds one.
type OutboundScope struct {
	allow   func(host string) bool
	logger  *slog.Logger
	metrics *telemetry.Metrics

	// mu guards logged, which is touched only by calls that are withheld.
	mu     sync.Mutex
	logged map[string]struct{}
}

// maxLoggedHosts bounds the log lines on hosts outside the scope.
const maxLoggedHosts = 256

// NewOutboundScope makes the scope of one client. allow, which may be nil, adds
// hosts to those of [InternalHost]; it gets the host without its port. logger
// may be nil: slog.Default().
func (p *Propagator) NewOutboundScope(allow func(host string) bool, logger *slog.Logger) *OutboundScope {
	if logger == nil {
		logger = slog.Default()
	}
	return &OutboundScope{allow: allow, logger: logger, metrics: p.metrics, logged: make(map[string]struct{})}
}

// Allows tells whether tags go to host, which may have a port.
func (s *OutboundScope) Allows(host string) bool {
	if InternalHost(host) {
		return true
	}
	if s.allow == nil {
		return false
	}
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return s.allow(host)
}

// Withhold keeps the tag from a call to host: it returns ctx without the tag
// and its baggage members, since OTel's instrumentation below would write those
// again. The caller takes them out of the headers, with [Propagator.Remove],
// and says in removed whether there were any. What is withheld is counted every
// time, and logged once per host.
func (s *OutboundScope) Withhold(ctx context.Context, host string, removed bool) context.Context {
	of := ctx // the request that the log line is about
	if !graytag.FromContext(ctx).IsZero() || hasOwn(ctx) {
		ctx = graytag.NewContext(ctx, graytag.Tag{})
	} else if !removed {
		return ctx
	}
	s.metrics.CountWithheld(ctx, telemetry.WithheldHost)
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	s.mu.Lock()
	_, known := s.logged[host]
	full := len(s.logged) >= maxLoggedHosts
	if !known && !full {
		s.logged[host] = struct{}{}
	}
	s.mu.Unlock()
	if !known && !full {
		s.logger.InfoContext(of, "graylane: the gray tag is withheld from a host outside the outbound scope", "host", host)
	}
	return ctx
}
