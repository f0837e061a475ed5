package propagation

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/telemetry"
)

// InternalHost tells whether host, with or without a port, is one to which
// tags go by default: a loopback or private literal address (RFC 1918, RFC
// 4193), a single-label name, or a name under .local, .internal, .svc or
// .cluster.local. Tags carry user data; all other hosts need leave.
func InternalHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"), ".")
	if host == "" {
		return false
	}
	if strings.IndexByte(host, ':') >= 0 || host[0] >= '0' && host[0] <= '9' {
		if addr, err := netip.ParseAddr(host); err == nil {
			addr = addr.Unmap()
			return addr.IsLoopback() || addr.IsPrivate()
		}
	}
	dot := strings.LastIndexByte(host, '.')
	if dot < 0 {
		// A number is an address in disguise for some resolvers.
		_, err := strconv.ParseUint(host, 0, 64)
		return err != nil && strings.IndexByte(host, ':') < 0
	}
	switch last := host[dot+1:]; len(last) {
	case len("svc"):
		return strings.EqualFold(last, "svc")
	case len("local"):
		return strings.EqualFold(last, "local") // .cluster.local too
	case len("internal"):
		return strings.EqualFold(last, "internal")
	}
	return false
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
		s.logger.InfoContext(ctx, "graylane: the gray tag is withheld from a host outside the outbound scope", "host", host)
	}
	return ctx
}
