package registry

import (
	"log/slog"
	"maps"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The environment variables that [FromEnv] reads.
const (
	// EnvVersion holds the version of the instance, e.g. "v2.1.0".
	EnvVersion = "GRAY_VERSION"
	// EnvMeta holds further metadata as "k=v;k=v".
	EnvMeta = "GRAY_META"
)

// FromEnv returns base with the metadata that the deployment pipeline put into
// the environment, so that code and image are the same for every version.
//
// GRAY_META holds pairs "k=v" separated by ";". Spaces around keys and values
// and empty pairs are ignored, a pair splits at its first "=", an empty value is
// a value, and of two pairs with one key the last one counts. GRAY_VERSION sets
// the key "version" and wins over GRAY_META; both win over base. A variable that
// is empty counts as not set.
//
// A malformed pair (no "=", an empty key, a control character, invalid UTF-8) is
// skipped; one warning for all of them goes to the default slog logger. base's own
// map is not changed.
func FromEnv(base Instance) Instance {
	pairs, malformed := parseMeta(os.Getenv(EnvMeta))
	if len(malformed) > 0 {
		// The first one is enough to find the fault, and bounds the line.
		first := malformed[0]
		if len(first) > 64 {
			first = first[:64] + "…"
		}
		slog.Warn("registry: skipped malformed pairs of "+EnvMeta+", expected k=v;k=v",
			slog.Int("malformed", len(malformed)), slog.String("first", first))
	}
	version := strings.TrimSpace(os.Getenv(EnvVersion))
	if version != "" && !validMeta(version) {
		slog.Warn("registry: ignored " + EnvVersion + ", expected UTF-8 without control characters")
		version = ""
	}

	i := base.Clone()
	if len(pairs) == 0 && version == "" {
		return i
	}
	if i.Metadata == nil {
		i.Metadata = make(map[string]string, len(pairs)+1)
	}
	maps.Copy(i.Metadata, pairs)
	if version != "" {
		i.Metadata[MetadataVersion] = version
	}
	return i
}

// parseMeta parses the format of GRAY_META and returns the pairs that it could
// not read as well.
func parseMeta(s string) (pairs map[string]string, malformed []string) {
	for pair := range strings.SplitSeq(s, ";") {
		pair = strings.TrimSpace(pair)
		if pair == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if !ok || key == "" || !validMeta(pair) {
			malformed = append(malformed, pair)
			continue
		}
		if pairs == nil {
			pairs = make(map[string]string)
		}
		pairs[key] = value
	}
	return pairs, malformed
}

func validMeta(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}
