package arrival

import (
	"context"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/internal/loglimit"
	"github.com/graylane/graylane/internal/telemetry"
)

// The marker of a refusal, a header of HTTP and, in trailers, a key of gRPC. It
// says that no handler has seen the request.
const (
	MisroutedHeader = "X-Gray-Misrouted"
	MisroutedKey    = "x-gray-misrouted"
)

// Marker returns the value of the marker of an instance of service. The name is in
// it because answers are relayed: a refusal of a service further on is none of the
// one that was asked.
func Marker(service string) string { return url.PathEscape(service) }

// Lines on arrivals that should not be, of one middleware.
const (
	misroutedLines    = 8
	misroutedInterval = 10 * time.Second
	maxShown          = 128 // bytes of what a client has chosen
)

// MisroutedLog logs arrivals that should not be, eight in ten seconds at most. It is
// safe for concurrent use. Make one with [NewMisroutedLog].
type MisroutedLog struct {
	logger *slog.Logger
	limit  *loglimit.Limit
}

// NewMisroutedLog logs to logger; nil is slog.Default() at the time of the call.
func NewMisroutedLog(logger *slog.Logger) *MisroutedLog {
	return &MisroutedLog{logger: logger, limit: loglimit.New(misroutedLines, misroutedInterval)}
}

// Log logs that a has happened. key says what target is: path or method. hidden
// says that versions are names of people.
func (l *MisroutedLog) Log(ctx context.Context, a *subset.Arrival, hidden, refused bool, key, target string) {
	logger := l.logger
	if logger == nil {
		logger = slog.Default()
	}
	if !logger.Enabled(ctx, slog.LevelWarn) {
		return
	}
	ok, dropped := l.limit.Take(time.Now())
	if !ok {
		return
	}
	version, wanted := telemetry.Text(a.Version), telemetry.Text(a.Wanted)
	if hidden {
		version, wanted = telemetry.Hide(version), telemetry.Hide(wanted)
	}
	attrs := []slog.Attr{
		slog.String("service", a.Service), slog.String("version", shown(version)), slog.String("wanted", shown(wanted)),
		slog.String(key, shown(target)), slog.Bool("refused", refused),
	}
	if dropped > 0 {
		attrs = append(attrs, slog.Int("not_logged", dropped))
	}
	logger.LogAttrs(ctx, slog.LevelWarn, "graylane: a request has arrived that wants another version, and that the policy does not let this one serve", attrs...)
}

func shown(s string) string {
	if len(s) > maxShown {
		s = s[:maxShown] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
