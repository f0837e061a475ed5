package registry

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxNameLen is the largest length of an instance's ID and of a service's name,
// in bytes.
const MaxNameLen = 255

// ErrNotRegistered is what [Registration.Update] returns, wrapped, for an
// instance that was deregistered, or whose ID was registered anew since.
var ErrNotRegistered = errors.New("registry: instance is not registered")

// InvalidError says what is wrong with an instance. [Registrar] implementations
// return it, possibly wrapped, for an instance that they refuse. Trying again
// with the same instance is pointless.
type InvalidError struct {
	// Field is the field of [Instance] at fault: "ID", "Service", "Address",
	// "Weight", "Status" or "Metadata".
	Field string
	// Value is the value that was refused; for metadata the key.
	Value string
	// Reason says what was expected.
	Reason string
}

// Error names the field, the value (shortened to 64 bytes) and what was expected.
func (e *InvalidError) Error() string {
	v := e.Value
	if len(v) > 64 {
		v = v[:64] + "…"
	}
	return fmt.Sprintf("registry: invalid %s %q: %s", e.Field, v, e.Reason)
}

// Validate reports, as an [*InvalidError], the first thing that keeps i from
// being registered anywhere:
//
//   - ID and Service are 1 to [MaxNameLen] bytes of valid UTF-8 without spaces,
//     control characters and the characters / ? # %, which would change the
//     meaning of the URLs that carry them.
//   - Address is host:port with a port from 1 to 65535, an IPv6 host in
//     brackets. The host is one that callers can dial: not empty and not the
//     unspecified address (0.0.0.0 or ::), which a listener reports.
//   - Weight is not negative, Status is one of the four.
//   - Metadata keys are not empty, and keys and values are valid UTF-8.
//
// A registry may have limits of its own on top.
func (i Instance) Validate() error {
	if reason := checkName(i.ID); reason != "" {
		return &InvalidError{Field: "ID", Value: i.ID, Reason: reason}
	}
	if reason := checkName(i.Service); reason != "" {
		return &InvalidError{Field: "Service", Value: i.Service, Reason: reason}
	}
	if reason := checkAddress(i.Address); reason != "" {
		return &InvalidError{Field: "Address", Value: i.Address, Reason: reason}
	}
	if i.Weight < 0 {
		return &InvalidError{Field: "Weight", Value: strconv.Itoa(i.Weight), Reason: "expected 0 or more"}
	}
	if i.Status > StatusMaintenance {
		return &InvalidError{Field: "Status", Value: strconv.Itoa(int(i.Status)), Reason: "expected one of the Status constants"}
	}
	return ValidateMetadata(i.Metadata)
}

// ValidateMetadata reports, as an [*InvalidError], a metadata key that is empty
// and a key or value that is not valid UTF-8. [Instance.Validate] includes it;
// implementations of [Registration] call it in Update.
func ValidateMetadata(metadata map[string]string) error {
	for k, v := range metadata {
		switch {
		case k == "":
			return &InvalidError{Field: "Metadata", Value: k, Reason: "expected a key that is not empty"}
		case !utf8.ValidString(k):
			return &InvalidError{Field: "Metadata", Value: k, Reason: "expected a key of valid UTF-8"}
		case !utf8.ValidString(v):
			return &InvalidError{Field: "Metadata", Value: k, Reason: "expected a value of valid UTF-8"}
		}
	}
	return nil
}

// checkName returns what is wrong with an ID or a service name, or "".
func checkName(s string) string {
	switch {
	case s == "":
		return "expected a name that is not empty"
	case len(s) > MaxNameLen:
		return fmt.Sprintf("expected at most %d bytes, got %d", MaxNameLen, len(s))
	case !utf8.ValidString(s):
		return "expected valid UTF-8"
	case strings.ContainsFunc(s, func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r) || strings.ContainsRune("/?#%", r)
	}):
		return "expected no space, control character, '/', '?', '#' or '%'"
	}
	return ""
}

// checkAddress returns what is wrong with a host:port, or "".
func checkAddress(s string) string {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return "expected host:port"
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "expected a port from 1 to 65535"
	}
	if host == "" {
		return "expected host:port with a host that callers can dial"
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return "expected a host that callers can dial, not the unspecified address"
	}
	if checkName(host) != "" && net.ParseIP(host) == nil && !strings.Contains(host, "%") {
		return "expected a host without spaces and control characters"
	}
	return ""
}

// ErrClosed is wrapped in what a registry returns, and a watch yields, after it
// was closed: nobody has to be told that it does not answer any more.
var ErrClosed = errors.New("registry is closed")
