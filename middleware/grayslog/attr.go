package grayslog

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"strings"

	"github.com/graylane/graylane/graytag"
)

// Keys of the attributes that a handler adds, for a ReplaceAttr of one's own.
const (
	VersionKey = "gray.version" // a string; "stable" for stable
	TagKey     = "gray.tag"     // a group, see [WithTag]
)

// stable is what metrics and X-Version call it, too.
const stable = "stable"

// entry is what a line is about to say; version is empty where no request is known.
type entry struct {
	version string
	tag     graytag.Tag
}

func (c *config) read(ctx context.Context) entry {
	if ctx == nil || !graytag.InScope(ctx) {
		return entry{}
	}
	tag := graytag.FromContext(ctx)
	version := c.selector.Wanted(tag)
	if version == "" {
		version = stable
	}
	if !c.tag {
		tag = graytag.Tag{}
	}
	return entry{version, tag}
}

// without returns e without what the program says itself.
func (e entry) without(own own) entry {
	if own.version {
		e.version = ""
	}
	if own.tag {
		e.tag = graytag.Tag{}
	}
	return e
}

func (e entry) isZero() bool { return e.version == "" && e.tag.IsZero() }

// own tells which of our attributes the program sets itself.
type own struct{ version, tag bool }

// see notes a where it is one of ours, also in a group without a name, whose
// attributes belong to the level above.
func (o *own) see(a slog.Attr) {
	switch {
	case a.Key == VersionKey:
		o.version = true
	case a.Key == TagKey:
		o.tag = true
	case a.Key == "" && a.Value.Kind() == slog.KindGroup:
		for _, a := range a.Value.Group() {
			o.see(a)
		}
	}
}

func (c *config) tagAttr(t graytag.Tag) slog.Attr {
	attrs := make([]slog.Attr, 0, t.Len())
	for k, v := range t.All() {
		if !c.clearUID && namesUser(k) {
			v = c.hash(v)
		}
		attrs = append(attrs, slog.String(k, v))
	}
	return slog.Attr{Key: TagKey, Value: slog.GroupValue(attrs...)}
}

// namesUser tells whether the value of key is a uid. Rules with services write their
// pairs as key.service.
func namesUser(key string) bool {
	rest, ok := strings.CutPrefix(key, graytag.KeyUID)
	return ok && (rest == "" || rest[0] == '.')
}

func (c *config) hash(uid string) string {
	var sum [sha256.Size]byte
	if len(c.uidKey) == 0 {
		sum = sha256.Sum256([]byte(uid))
	} else {
		mac := hmac.New(sha256.New, c.uidKey)
		mac.Write([]byte(uid))
		mac.Sum(sum[:0])
	}
	return "#" + hex.EncodeToString(sum[:4])
}
