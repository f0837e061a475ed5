package consul

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/graylane/graylane/graytag/rule"
)

// plainBytes is the size up to which a document is kept as it is. Every follower
// gets the whole value every five seconds, so what is larger is compressed; people
// edit files of that size elsewhere anyway.
const plainBytes = 64 << 10

// gzipMagic begins everything that is compressed with gzip (RFC 1952).
var gzipMagic = []byte{0x1f, 0x8b}

// encodeValue returns a document as Consul is to hold it.
func encodeValue(data []byte) ([]byte, error) {
	// What looks compressed has to be, or it would come back unpacked.
	if len(data) <= plainBytes && !bytes.HasPrefix(data, gzipMagic) {
		return data, nil
	}
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// decodeValue returns the document that a value holds.
func decodeValue(value []byte) ([]byte, error) {
	if !bytes.HasPrefix(value, gzipMagic) {
		return value, nil
	}
	r, err := gzip.NewReader(bytes.NewReader(value))
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(r, rule.MaxBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > rule.MaxBytes {
		return nil, fmt.Errorf("holds more than %d bytes", rule.MaxBytes)
	}
	return data, nil
}

// note is what is known of a document that Put wrote, beside its content.
type note struct {
	Author string    `json:"author,omitempty"`
	Reason string    `json:"reason,omitempty"`
	Time   time.Time `json:"time,omitzero"`
	// Revision is that of a document that was written by other means, and kept by
	// the Put that replaced it. 0 is the ModifyIndex of the note itself.
	Revision uint64 `json:"revision,omitempty"`
	// Writer tells the notes of one Put from those of all others.
	Writer string `json:"writer,omitempty"`
}

func newNote(d *rule.Document) note {
	return note{Author: d.Author, Reason: d.Reason, Time: d.Time, Writer: rand.Text()}
}

func (n *note) encode() []byte {
	data, err := json.Marshal(n)
	if err != nil { // a year past 9999
		n.Time = time.Time{}
		data, _ = json.Marshal(n)
	}
	return data
}

// decodeNote returns what a note says, the zero note where it says nothing: what
// somebody has done to it keeps nobody from the document.
func decodeNote(data []byte) note {
	var n note
	if json.Unmarshal(data, &n) != nil {
		return note{}
	}
	return n
}

// stamp names one Put: the nanoseconds since 1970 at which it happened, or a
// little later where the clock of an earlier writer was ahead. It is in the flags
// of the key, and in the history as a time that people can read. Stamps grow in
// the order in which documents were written.
type stamp uint64

const (
	stampLayout = "20060102T150405.000000000Z"
	// minStamp is in the year 2001: smaller flags mean something else.
	minStamp = 1_000_000_000_000_000_000
)

func (s stamp) valid() bool { return s >= minStamp && s <= math.MaxInt64 }

func (s stamp) String() string { return time.Unix(0, int64(s)).UTC().Format(stampLayout) }

// parseStamp is the inverse of String; ok is false for anything else.
func parseStamp(name string) (s stamp, ok bool) {
	t, err := time.Parse(stampLayout, name)
	if err != nil {
		return 0, false
	}
	s = stamp(t.UnixNano())
	return s, s.valid() && s.String() == name
}

// nextStamp returns a stamp after last.
func nextStamp(last stamp) stamp { return max(stamp(time.Now().UnixNano()), last+1) }
