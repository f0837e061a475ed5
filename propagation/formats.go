package propagation

import (
	"fmt"
	"strings"

	"github.com/graylane/graylane/graytag"
)

// WithVersionHeader enables a header that holds nothing but the version:
// X-Gray-Version: v2.1.0 is the tag version=v2.1.0. It is read where neither
// X-Gray-Tag nor baggage holds a tag, and written beside them. A version that
// is no printable ASCII is not written.
func WithVersionHeader(name string) Option { return withFormat(versionHeader, name) }

// WithFlagHeader enables a header that holds true or false, read in any case
// and written in lower case, for the pair gray=true or gray=false. Other values
// are malformed.
func WithFlagHeader(name string) Option { return withFormat(flagHeader, name) }

// WithCanaryHeader enables a header that holds canary or true for
// version=canary, stable or false for version=stable, in any case; it is written
// as canary or stable. Other values are malformed, other versions are not
// written.
func WithCanaryHeader(name string) Option { return withFormat(canaryHeader, name) }

func withFormat(k kind, name string) Option {
	return optionFunc(func(c *config) { c.formats = append(c.formats, format{k, name}) })
}

type kind uint8

const (
	versionHeader kind = iota
	flagHeader
	canaryHeader
)

func (k kind) String() string {
	switch k {
	case versionHeader:
		return "version_header"
	case flagHeader:
		return "flag_header"
	}
	return "canary_header"
}

// keyFlag is the key of the pair that a flag header stands for.
const keyFlag = "gray"

type format struct {
	kind kind
	name string
}

// check holds a name to the token of RFC 9110, section 5.6.2, less what gRPC
// does not take as a metadata key.
func (f format) check() error {
	ok := f.name != "" && len(f.name) <= 128 && !strings.HasSuffix(strings.ToLower(f.name), "-bin")
	for i := 0; ok && i < len(f.name); i++ {
		c := f.name[i]
		ok = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.'
	}
	if !ok {
		return fmt.Errorf("propagation: compatibility header %q, want a header name of A-Z a-z 0-9 - _ . that does not end in -bin", f.name)
	}
	return nil
}

// read returns the tag that v stands for; valid is false where v is malformed.
func (f format) read(v string) (tag graytag.Tag, valid bool) {
	v = strings.Trim(v, " ")
	switch f.kind {
	case flagHeader:
		switch {
		case strings.EqualFold(v, "true"):
			return flagTrue, true
		case strings.EqualFold(v, "false"):
			return flagFalse, true
		}
	case canaryHeader:
		switch {
		case strings.EqualFold(v, "canary"), strings.EqualFold(v, "true"):
			return canary, true
		case strings.EqualFold(v, "stable"), strings.EqualFold(v, "false"):
			return stable, true
		}
	case versionHeader:
		t, err := graytag.Tag{}.With(graytag.KeyVersion, v)
		return t, err == nil && v != "" && !strings.ContainsAny(v, `,"`)
	}
	return graytag.Tag{}, false
}

var (
	flagTrue  = graytag.MustParse("gray=true")
	flagFalse = graytag.MustParse("gray=false")
	canary    = graytag.MustParse("version=canary")
	stable    = graytag.MustParse("version=stable")
)

// write returns the value that stands for t, "" where none does.
func (f format) write(t graytag.Tag) string {
	switch f.kind {
	case flagHeader:
		switch v := t.Get(keyFlag); {
		case strings.EqualFold(v, "true"):
			return "true"
		case strings.EqualFold(v, "false"):
			return "false"
		}
	case canaryHeader:
		if v := t.Get(graytag.KeyVersion); v == "canary" || v == "stable" {
			return v
		}
	case versionHeader:
		v := t.Get(graytag.KeyVersion)
		for i := 0; i < len(v); i++ {
			// grpc-go fails a call whose metadata holds other bytes; spaces at
			// the ends, commas and quotes do not survive every proxy.
			if c := v[i]; c <= ' ' || c > '~' || c == ',' || c == '"' {
				return ""
			}
		}
		return v
	}
	return ""
}
